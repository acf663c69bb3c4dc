#include "tools/runs.h"

#include <algorithm>

#include "core/error.h"
#include "harness/case_file.h"
#include "harness/cases.h"
#include "harness/data.h"
#include "tools/terminal.h"

namespace pasa {
namespace {

// The argument of make, run, check, bench, explain: a known name, a description, or a case file.
bool is_description(const std::string& text) {
  return is_text(text) || std::ranges::find(named_problems(), text, &NamedProblem::name) != named_problems().end();
}

}  // namespace

Case load(const std::string& text, const Options& options, std::int64_t* skipped) {
  Case c;
  const bool described = is_description(text);
  if (described) {
    c = make_case(find_problem(text));
    c.name = text;
  } else {
    c = open_case(text);
  }
  if (options.splits) c.problem.kv_splits = options.splits;
  c.problem.threads = options.threads;
  check_status(pasa_validate(&c.problem, skipped));
  if (!described) add_outputs(c, {});
  return c;
}

std::unique_ptr<Device> open_for(const Options& options, const std::string& kernel) {
  std::string device = options.device;
  if (device == "auto" && !kernel.empty()) {
    const std::string family = kernel.substr(0, kernel.find(':'));
    if (family == "reference") device = "cpu";
    if (family == "cpu" || family == "cuda" || family == "hip") device = family;
  }
  return open_device(device);
}

pasa_problem without_data(pasa_problem problem, const Device& device) {
  for (const auto& [name, tensor] : input_tensors(problem)) {
    tensor->data = nullptr;
    tensor->device = device.type();
    tensor->device_index = device.index();
  }
  for (const auto& [name, tensor] : output_tensors(problem)) *tensor = {};
  return problem;
}

std::vector<std::string> accepting_kernels(const Case& c, const Device& device) {
  std::vector<std::string> names;
  pasa_problem problem = without_data(c.problem, device);
  for (int i = 0; i < pasa_kernel_count(); ++i) {
    pasa_kernel_info kernel{sizeof kernel};
    check_status(pasa_get_kernel_info(i, &problem, &kernel));
    if (kernel.available && kernel.accepts) names.emplace_back(kernel.name);
  }
  return names;
}

std::vector<std::string> wanted_kernels(const Case& c, const Options& options) {
  if (options.kernels.empty()) return {""};
  if (options.kernels == std::vector<std::string>{"all"}) return accepting_kernels(c, *open_device(options.device));
  return options.kernels;
}

std::vector<Item> expand(const std::vector<std::string>& problems) {
  constexpr std::string_view kPrefix = "grid:";
  std::vector<Item> items;
  for (const std::string& problem : problems) {
    if (!problem.starts_with(kPrefix)) {
      items.push_back({problem});
      continue;
    }
    const std::string name = problem.substr(kPrefix.size());
    for (const TestCase& test : name == "quick" ? quick_cases() : name == "full" ? full_cases() : grid(name)) {
      items.push_back({to_text(test.spec), std::string(test.tolerance), true, test.run_only});
    }
  }
  return items;
}

Ran run_once(Case& c, Device& device, const std::string& kernel) {
  c.problem.kernel = kernel.empty() ? nullptr : kernel.c_str();
  prepare_partials(c, device);
  Placed placed(c, device);
  Runner runner(placed.problem(), device);
  placed.poison_outputs();
  device.synchronize();
  const Stopwatch watch;
  runner.run();
  device.synchronize();
  Ran ran{runner.kernel(), runner.summary(), watch.seconds(), {}};
  for (const auto& [name, counts] : device.take_counts()) ran.counts += counts;
  placed.fetch_outputs();
  if (c.problem.acc.rank) reduce_partials(c);
  return ran;
}

Json to_json(const Comparison& comparison) {
  Json json = Json::array();
  for (const Deviation& part : comparison.parts) {
    json.push_back({{"tensor", part.tensor},
                    {"ok", part.ok},
                    {"wrong", part.wrong},
                    {"count", part.count},
                    {"worst", {part.token, part.head, part.dim}},
                    {"got", part.got},
                    {"want", part.want},
                    {"limit", part.limit},
                    {"max_abs", part.max_abs},
                    {"one_minus_cosine", part.cosine}});
  }
  return json;
}

Json bench_one(Case& c, const Work& work, const Options& options, const std::string& kernel) {
  const auto device = open_for(options, kernel);
  c.problem.kernel = kernel.empty() ? nullptr : kernel.c_str();
  prepare_partials(c, *device);
  Placed placed(c, *device);
  Runner runner(placed.problem(), *device);
  placed.poison_outputs();
  // Ceilings before and after: whatever else runs on the machine makes one look lower, never higher.
  const auto ceilings = [&] {
    return options.no_roofline ? Roofline{} : device->roofline(runner.kernel(), work, options.threads);
  };
  const Roofline before = ceilings();
  const Samples samples = device->time([&] { runner.run(); }, options.timing);
  const Roofline after = ceilings();
  const Roofline roofline{std::max(before.gflops, after.gflops), std::max(before.gbps, after.gbps)};
  if (c.problem.acc.rank) std::swap(c.problem.out, c.set_aside[0]), std::swap(c.problem.lse, c.set_aside[1]);
  c.problem.acc = c.problem.m = c.problem.l = {};
  const double median = samples.median();
  Json json{{"problem", c.name},
            {"device", device->name()},
            {"kernel", runner.kernel()},
            {"splits", runner.splits()},
            {"workspace_bytes", runner.workspace_bytes()},
            {"repetitions", samples.seconds.size()},
            {"median_s", median},
            {"best_s", samples.best()},
            {"spread", samples.spread()},
            {"keys", work.keys},
            {"bytes", work.bytes},
            {"flops", work.flops},
            {"gbytes_per_s", work.bytes / median * 1e-9},
            {"gflops_per_s", work.flops / median * 1e-9}};
  if (roofline.gflops <= 0 || roofline.gbps <= 0) return json;
  const double arithmetic = work.flops / roofline.gflops * 1e-9, memory = work.gathered_bytes / roofline.gbps * 1e-9;
  json["roofline"] = {{"gflops_per_s", roofline.gflops},
                      {"gather_gbytes_per_s", roofline.gbps},
                      {"bound", memory > arithmetic ? "memory" : "arithmetic"},
                      {"fraction", std::max(arithmetic, memory) / median}};
  return json;
}

void print_times(const Json& rows) {
  Table table({"problem", "kernel", "splits", "median", "spread", "bytes", "GB/s", "GFLOP/s", "of roofline"}, 2);
  for (const Json& row : rows) {
    std::string fraction = "-";
    if (row.contains("roofline")) {
      const std::string bound = row["roofline"]["bound"];
      fraction =
          fmt::format("{} {}", percent(row["roofline"]["fraction"].get<double>()), bound == "memory" ? "mem" : "fp");
    }
    const auto number = [&](const char* key) { return row[key].get<double>(); };
    table.add({row["problem"].get<std::string>(), row["kernel"].get<std::string>(),
               std::to_string(row["splits"].get<int>()), duration(number("median_s")), percent(number("spread")),
               bytes_text(number("bytes")), fmt::format("{:.1f}", number("gbytes_per_s")),
               fmt::format("{:.0f}", number("gflops_per_s")), fraction});
  }
  table.print_all();
  print(
      "\nspread: interquartile range over median. of roofline: the least time that this machine's measured gather "
      "rate\n"
      "(mem) or peak of the kernel's arithmetic unit (fp) would allow, over the median.\n");
}

}  // namespace pasa
