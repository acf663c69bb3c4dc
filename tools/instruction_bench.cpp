#include "tools/instruction_bench.h"

#include "tools/terminal.h"

namespace pasa {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTile = 64;  // keys

Json to_json(const Counts& counts) {
  Json json{{"instructions", counts.instructions()}};
  for (std::size_t i = 0; i < Counts::kKinds; ++i) json[std::string(Counts::kNames[i])] = counts.of[i];
  json["matrix_clocks"] = counts.matrix_clocks();
  json["vector_clocks"] = counts.vector_clocks();
  json["issue_clocks"] = counts.issue_clocks();
  return json;
}

std::string number(double x) { return fmt::format("{:.{}f}", x, x < 99.95 ? 1 : 0); }

// A line for each problem of what `part` of it costs, if it has such a part.
void print_part(const Json& rows, const char* title, const char* part) {
  if (std::ranges::none_of(rows, [&](const Json& row) { return row[part]["instructions"] > 0; })) return;
  print("{}\n", title);
  Table table({"", "all", "matrix", "vector", "transc", "LDS", "memory", "scalar", "waits", "bytes",
               "clocks:", "matrix", "vector", "LDS", "issue"},
              1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& counts = rows[i][part];
    if (counts["instructions"] == 0) continue;
    std::vector<std::string> cells = {std::to_string(i + 1)};
    for (const char* key : {"instructions", "matrix", "vector", "transcendental", "lds", "memory", "scalar", "waits",
                            "memory_bytes", "", "matrix_clocks", "vector_clocks", "lds_clocks", "issue_clocks"}) {
      cells.push_back(*key ? number(counts[key].get<double>()) : "");
    }
    table.add(std::move(cells));
  }
  table.print_all();
  print("\n");
}

}  // namespace

std::vector<std::string> budget_problems() {
  std::vector<std::string> problems;
  for (const char* format : {"bf16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_ds_mla", "packed_bf16", "fp8_v32"}) {
    problems.push_back(fmt::format("decode:T=1,H=16,len=1024,splits=1,invalid=0.1,fmt={}", format));
  }
  for (const char* format : {"fp8_ds_mla", "packed_bf16"}) {
    problems.push_back(fmt::format("decode:T=1,H=16,len=512+512,splits=1,invalid=0.1,fmt={}", format));
  }
  problems.emplace_back("decode:T=1,H=64,len=1024,splits=1,invalid=0.1,fmt=fp8_ds_mla");
  problems.emplace_back("prefill:T=1,H=64,len=512+512,splits=1,invalid=0.1,fmt=bf16");
  problems.emplace_back("decode:T=1,H=16,len=1024,splits=4,invalid=0.1,fmt=bf16");
  return problems;
}

Json to_json(const Budget& budget, const std::string& problem, const std::string& device) {
  return {{"problem", problem},
          {"device", device},
          {"kernel", budget.kernel},
          {"plan", budget.plan},
          {"rows", budget.rows},
          {"listed", budget.listed},
          {"token", to_json(budget.token)},
          {"tile", to_json(budget.token * kTile)},
          {"fixed", to_json(budget.fixed)},
          {"merge", to_json(budget.merge)},
          {"total", to_json(budget.total)}};
}

void print_budgets(const Json& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    print("{:<2} {}\n   {}\n", i + 1, rows[i]["problem"].get<std::string>(), rows[i]["plan"].get<std::string>());
  }
  print("\n");
  print_part(rows, "a token, all heads of a row", "token");
  print_part(rows, "a tile of 64 tokens", "tile");
  print_part(rows, "fixed part of a row and split", "fixed");
  print_part(rows, "merging the splits of a row", "merge");
  print(
      "Wave instructions, counted by executing them; no time. Tokens are list entries, valid or not; bytes are those of\n"
      "vector memory instructions. Clocks are an instruction-level cost model of one compute unit with evenly loaded SIMDs:\n"
      "matrix passes; vector instructions, transcendental ones four times; 128 bytes of LDS, with bank conflicts; issue is\n"
      "the largest, what perfect overlap would leave.\n");
}

}  // namespace pasa
