#include "core/tuning.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace pasa {
namespace {

// What no measurement asks for. A split row costs memory, so parts are bounded too.
constexpr std::int64_t kMaxParts = 1 << 16;

Tuned read_entry(const nlohmann::json& from) {
  const auto number = [&](const char* key, std::int64_t least, std::int64_t most) {
    if (!from.contains(key)) return std::int64_t{0};
    const auto& value = from.at(key);
    require(PASA_ERROR_VALUE, value.is_number_integer() && value >= least && value <= most, "expected a number from ",
            least, " to ", most, " as \"", key, "\", not ", value.dump());
    return value.get<std::int64_t>();
  };
  Tuned entry{.kernel = from.value("kernel", ""), .keys = from.value("keys", "")};
  entry.heads = static_cast<int>(number("heads", 1, INT32_MAX / 2));
  entry.tokens = number("tokens", 1, INT32_MAX);
  entry.length = number("length", 1, INT32_MAX);
  entry.block_h = static_cast<int>(number("block_h", 0, 1 << 12));
  entry.splits = static_cast<int>(number("splits", 0, kMaxSplits));
  require(PASA_ERROR_VALUE, entry.heads && entry.tokens && entry.length && !entry.kernel.empty(),
          "an entry lacks kernel, heads, tokens or length");
  require(PASA_ERROR_VALUE, entry.splits < 2 || entry.tokens * entry.splits <= kMaxParts, "an entry has ", entry.tokens,
          " rows x ", entry.splits, " splits, expected at most ", kMaxParts);
  return entry;
}

constexpr std::int64_t tiles_of(std::int64_t heads) { return (heads + 15) / 16; }

}  // namespace

std::string key_class(const Shape& shape) {
  bool any_wide = false, any_fp8 = false, is_twice = false;
  for (int i = 0; i < shape.source_count; ++i) {
    (find_format(shape.source[i].format)->bytes ? any_fp8 : any_wide) = true;
    is_twice |= shape.word == Word16::kF16 && shape.source[i].format != PASA_KV_F16;
  }
  return concat(any_fp8 && any_wide ? "mixed" : any_fp8 ? "fp8" : "16-bit", is_twice ? " for f16 queries" : "");
}

bool Tuned::serves(const Problem& problem) const {
  const std::int64_t keys_of_row = problem.average_keys();
  return problem.tokens <= tokens && problem.tokens * 8 > tokens * 7 && keys_of_row <= length &&
         keys_of_row * 4 > length * 3 && tiles_of(problem.heads) == tiles_of(heads) && key_class(problem) == keys;
}

std::string tuning_path() {
  if (const char* named = std::getenv("PASA_TUNE_TABLE")) return named;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return concat(cache, "/pasa/tune.json");
  if (const char* home = std::getenv("HOME"); home && *home) return concat(home, "/.cache/pasa/tune.json");
  return "";
}

TuningTable parse_tuning(std::string path, std::string_view text) {
  TuningTable table{.path = std::move(path)};
  try {
    const auto file = nlohmann::json::parse(text);
    const std::string version = file.value("pasa", "?");
    require(PASA_ERROR_VALUE, version == pasa_version(), "made by pasa ", version, ", this is ", pasa_version());
    const auto machines = file.value("machines", nlohmann::json::object());
    for (const auto& [machine, entries] : machines.items()) {
      for (const auto& entry : entries) table.machines[machine].push_back(read_entry(entry));
    }
  } catch (const std::exception& error) {  // ours or the parser's
    table.fault = concat(table.path, ": ", error.what());
    table.machines.clear();
  }
  return table;
}

TuningTable load_tuning(std::string path) {
  if (path.empty()) return {.fault = "no table is named"};
  std::error_code ignored;
  std::ifstream file(path, std::ios::binary);
  if (!file || !std::filesystem::is_regular_file(path, ignored)) {
    return {.path = path, .fault = concat(path, ": no such file")};
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_tuning(std::move(path), text);
}

const TuningTable& tuning_table() {
  static const TuningTable kTable = load_tuning(tuning_path());
  return kTable;
}

std::string apply_tuning(const TuningTable& table, const Backend& backend, Problem& problem) {
  if (backend.machine == nullptr) return "";
  if (problem.splits || problem.block_h) return "not tuned: splits or block_h is asked for";
  if (!table.fault.empty()) return "not tuned: " + table.fault;  // at every plan: no stream
  const std::string machine = backend.machine(problem);
  const auto entries = table.machines.find(machine);
  if (entries == table.machines.end()) return concat("not tuned: ", table.path, ": nothing about ", machine);
  const Tuned* best = nullptr;
  for (const Tuned& entry : entries->second) {
    if (entry.kernel != backend.name || !entry.serves(problem)) continue;
    if (!best || std::pair(entry.tokens, entry.length) < std::pair(best->tokens, best->length)) best = &entry;
  }
  if (!best) {
    return concat("not tuned: ", table.path, ": nothing better was found, or nothing timed, near ", problem.heads,
                  " heads, ", problem.tokens, " rows, ", problem.average_keys(), " ", key_class(problem), " keys");
  }
  problem.block_h = best->block_h;
  problem.splits = best->splits;
  return concat("tuned: ", table.path, ": as for ", best->heads, " heads, ", best->tokens, " rows, ", best->length,
                " keys");
}

}  // namespace pasa
