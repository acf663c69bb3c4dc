// The command line: info | make | run | check | bench | explain | selftest (selftest.cpp) | tune (tune.cpp), and cache | indices (ops_cli.cpp).
//
// Everything it does goes through the C API, as a user's program would; the harness supplies problems, devices and
// comparison. Exit status: 0 done, 1 `check` or `selftest` found a difference, 2 the input or the arguments are wrong (one line on stderr),
// 3 the asked-for device or kernel is not there.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "harness/case_file.h"
#include "harness/cases.h"
#include "harness/compare.h"
#include "harness/counts.h"
#include "harness/data.h"
#include "harness/device.h"
#include "tools/instruction_bench.h"
#include "tools/ops_cli.h"
#include "tools/runs.h"
#include "tools/selftest.h"
#include "tools/terminal.h"
#include "tools/tune.h"

namespace pasa {
namespace {

constexpr int kDiffers = 1, kBadInput = 2, kNotThere = 3;

int exit_code(pasa_status status) {
  switch (status) {
    case PASA_ERROR_DEVICE:
    case PASA_ERROR_UNSUPPORTED:
    case PASA_ERROR_MEMORY:
    case PASA_ERROR_INTERNAL:
      return kNotThere;
    default:
      return kBadInput;
  }
}

void print_notes(const Case& c) {
  for (const std::string& note : c.notes) std::fprintf(stderr, "pasa: note: %s\n", note.c_str());
}

std::string shape_text(const Case& c) {
  const pasa_problem& p = c.problem;
  const auto source = [](const pasa_source& s, const char* name) {
    const std::string list = s.indptr.rank ? fmt::format("{} entries, ragged", s.indices.shape[0])
                                           : fmt::format("{} entries a row", s.indices.shape[1]);
    const std::string format(find_format(s.format)->name);
    return fmt::format("{}: {}, {} slots ({}), {}", name, format, pool_slots(s),
                       bytes_text(static_cast<double>(span_bytes(s.kv))), list);
  };
  std::string text = fmt::format("T {}, H {}, D {}, q {}\n  {}", c.tokens(), c.heads(), c.dim(),
                                 p.q.dtype == PASA_F16 ? "f16" : "bf16", source(p.main, "main"));
  if (p.extra.kv.rank) text += "\n  " + source(p.extra, "extra");
  return text;
}

// ---- commands

int info(const Options& options) {
  Json json{{"version", pasa_version()}, {"devices", Json::array()}, {"kernels", Json::array()}};
  const std::vector<std::string> names =
      options.device == "auto" ? device_names() : std::vector<std::string>{open_device(options.device)->name()};
  for (const std::string& name : names) {
    json["devices"].push_back({{"name", name}, {"what", open_device(name)->description()}});
  }
  json["emulated_devices"] = emulated_device_names();
  std::set<std::string> flags;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  json["cpu_features"] = Json::array();
  for (const char* flag :
       {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vbmi", "avx512_bf16", "amx_tile", "amx_bf16", "asimd"}) {
    if (flags.contains(flag)) json["cpu_features"].push_back(flag);
  }
  for (int i = 0; i < pasa_kernel_count(); ++i) {
    pasa_kernel_info kernel{sizeof kernel};
    check_status(pasa_get_kernel_info(i, nullptr, &kernel));
    json["kernels"].push_back({{"name", kernel.name},
                               {"device", kernel.device},
                               {"available", kernel.available != 0},
                               {"reason", kernel.reason}});
  }
  if (options.json) {
    print("{}\n", json.dump(2));
    return 0;
  }
  print("pasa {}\n\ndevices\n", pasa_version());
  for (const Json& device : json["devices"]) {
    print("  {:<8} {}\n", device["name"].get<std::string>(), device["what"].get<std::string>());
  }
  if (const auto emulated = emulated_device_names(); !emulated.empty()) {
    print("  and by name, executed on the CPU: {}\n", fmt::format("{}", fmt::join(emulated, ", ")));
  }
  std::string features;
  for (const Json& flag : json["cpu_features"]) features += " " + flag.get<std::string>();
  print("  features{}\n\nkernels, in order of preference\n", features);
  for (const Json& kernel : json["kernels"]) {
    const std::string reason = kernel["reason"];
    print("  {:<14} {}\n", kernel["name"].get<std::string>(), kernel["available"] ? "yes" : "no: " + reason);
  }
  return 0;
}

int make(const Options& options, bool seed_given) {
  CaseSpec spec = find_problem(options.problems[0]);
  if (seed_given) spec.seed = options.seed;
  Case c = make_case(spec);
  check_status(pasa_validate(&c.problem, nullptr));
  if (options.expected) {
    Progress progress("reference");
    const Reference reference = compute_reference(c.problem, 0, std::ref(progress));
    c.expected_out = c.allocate(PASA_F32, {c.tokens(), c.heads(), kValueDim});
    c.expected_lse = c.allocate(PASA_F32, {c.tokens(), c.heads()});
    std::ranges::copy(reference.out, static_cast<float*>(c.expected_out.data));
    std::ranges::copy(reference.lse, static_cast<float*>(c.expected_lse.data));
  }
  save_case(options.output, c);
  if (options.json) {
    print("{}\n", Json{{"problem", to_text(spec)}, {"file", options.output}}.dump(2));
  } else {
    print("{}: {}\n", options.output, shape_text(c));
    if (std::error_code error; const auto bytes = std::filesystem::file_size(options.output, error)) {
      if (!error) print("  {}\n", bytes_text(static_cast<double>(bytes)));
    }
  }
  return 0;
}

int run(const Options& options) {
  std::int64_t skipped = 0;
  Case c = load(options.problems[0], options, &skipped);
  const std::string kernel = options.kernels.empty() ? "" : options.kernels[0];
  const auto device = open_for(options, kernel);
  if (!c.problem.lse.rank) add_outputs(c, {});
  const Ran ran = run_once(c, *device, kernel);
  save_result(options.output, c, device->name(), ran.kernel);
  print_notes(c);
  if (options.json) {
    Json json{{"case", c.name},      {"result", options.output}, {"device", device->name()},  {"kernel", ran.kernel},
              {"plan", ran.summary}, {"seconds", ran.seconds},   {"skipped_indices", skipped}};
    if (!device->keeps_time()) {
      json.erase("seconds");
      json["instructions"] = ran.counts.instructions();
    }
    print("{}\n", json.dump(2));
  } else {
    const std::string cost = device->keeps_time()
                                 ? duration(ran.seconds) + " for one call (pasa bench times it properly)"
                                 : fmt::format("{:.0f} wave instructions", ran.counts.instructions());
    print("{}: {} on {}, {}\n", options.output, ran.kernel, device->name(), cost);
    if (skipped) print("  {} invalid indices were skipped\n", skipped);
  }
  return 0;
}

int check(const Options& options) {
  Json json = Json::array();
  const std::vector<Item> items = expand(options.problems);
  int good = 0, different = 0, declined = 0;
  const auto report = [&](const Case& c, const Item& item, const std::string& kernel, const char* against,
                          const Tolerance& tolerance, const Comparison& comparison) {
    ++(comparison.ok() ? good : different);
    json.push_back({{"case", c.name},
                    {"kernel", kernel},
                    {"against", against},
                    {"tolerance", tolerance.name},
                    {"ok", comparison.ok()},
                    {"tensors", to_json(comparison)}});
    if (options.json) return;
    print("{} {}: {} against {} at {}\n", comparison.ok() ? "ok    " : "DIFFER", c.name, kernel, against,
          tolerance.name);
    if (item.of_grid && comparison.ok()) return;
    for (const Deviation& part : comparison.parts) print("         {}\n", part.text());
  };
  for (const Item& item : items) {
    if (item.run_only) continue;
    Case c = load(item.problem, options);
    const std::string& name = options.tolerance.empty() ? item.tolerance : options.tolerance;
    const Tolerance& tolerance = name.empty() ? default_tolerance(c.problem) : find_tolerance(name);
    Progress progress("reference for " + c.name);
    const Reference want = compute_reference(c.problem, options.threads, std::ref(progress));
    for (const std::string& kernel : wanted_kernels(c, options)) {
      const auto device = open_for(options, kernel);
      Ran ran;
      try {
        ran = run_once(c, *device, kernel);
      } catch (const Error& error) {
        // A grid asks a forced kernel for everything; what it does not serve is no difference.
        if (!item.of_grid || error.status != PASA_ERROR_UNSUPPORTED) throw;
        ++declined;
        continue;
      }
      report(c, item, ran.kernel, "the float64 reference", tolerance, compare(c.problem, want, tolerance));
      if (c.expected_out.rank || c.expected_lse.rank) {
        report(c, item, ran.kernel, "what the file expects", tolerance,
               compare_expected(c.problem, c.expected_out, c.expected_lse, tolerance));
      }
    }
    print_notes(c);
  }
  if (options.json) print("{}\n", json.dump(2));
  if (!options.json && good + different > 1) {
    print("{} ok, {} differ", good, different);
    if (declined) print(", {} declined by the kernel", declined);
    print("\n");
  }
  return different == 0 ? 0 : kDiffers;
}

// On a device that keeps no time: what is executed.
int bench_instructions(const Options& options, Device& device) {
  std::vector<Item> items = expand(options.problems);
  if (items.empty()) {
    for (const std::string& problem : budget_problems()) items.push_back({problem});
  }
  Json json = Json::array();
  Progress progress("counting");
  for (std::size_t i = 0; i < items.size(); ++i) {
    progress(static_cast<double>(i) / static_cast<double>(items.size()));
    const Case c = load(items[i].problem, options);
    for (const std::string& kernel : wanted_kernels(c, options)) {
      json.push_back(
          to_json(count_budget(c, device, kernel.empty() ? nullptr : kernel.c_str()), c.name, device.name()));
    }
    print_notes(c);
  }
  progress(1);
  if (options.json) {
    print("{}\n", json.dump(2));
  } else {
    print_budgets(json);
  }
  return 0;
}

int bench(const Options& options) {
  if (options.list) {
    Table table({"name", "what", "problem"}, 3);
    for (const NamedProblem& named : named_problems()) {
      table.add({std::string(named.name), std::string(named.what), std::string(named.text)});
    }
    for (const Grid& grid : grids()) {
      table.add(
          {fmt::format("grid:{}", grid.name), std::string(grid.what), fmt::format("{} problems", grid.cases().size())});
    }
    table.add({"grid:quick", "a selection of all grids", fmt::format("{} problems", quick_cases().size())});
    table.print_all();
    return 0;
  }
  if (const auto device = open_for(options, options.kernels.empty() ? "" : options.kernels[0]); !device->keeps_time()) {
    return bench_instructions(options, *device);
  }
  std::vector<Item> items = expand(options.problems);
  if (items.empty()) items = {{"dsv4-c4a-1k"}, {"dsv4-c4a-8k"}, {"dsv4-c128a-1k"}, {"dsv4-c128a-8k"}};
  Json json = Json::array();
  Progress progress("benchmark");
  for (std::size_t i = 0; i < items.size(); ++i) {
    progress(static_cast<double>(i) / static_cast<double>(items.size()));
    Case c = load(items[i].problem, options);
    const Work work = count_work(c.problem);
    for (const std::string& kernel : wanted_kernels(c, options)) json.push_back(bench_one(c, work, options, kernel));
    print_notes(c);
  }
  progress(1);
  if (options.json) {
    print("{}\n", json.dump(2));
    return 0;
  }
  print_times(json);
  return 0;
}

int explain(const Options& options) {
  Json json = Json::array();
  for (const std::string& text : options.problems) {
    std::int64_t skipped = 0;
    Case c = load(text, options, &skipped);
    const std::string kernel = options.kernels.empty() ? "" : options.kernels[0];
    const auto device = open_for(options, kernel);
    pasa_problem problem = without_data(c.problem, *device);
    Json entry{{"problem", c.name}, {"device", device->name()}, {"kernels", Json::array()}};
    for (int i = 0; i < pasa_kernel_count(); ++i) {
      pasa_kernel_info answer{sizeof answer};
      check_status(pasa_get_kernel_info(i, &problem, &answer));
      entry["kernels"].push_back(
          {{"name", answer.name}, {"accepts", answer.available && answer.accepts}, {"reason", answer.reason}});
    }
    problem.kernel = kernel.empty() ? nullptr : kernel.c_str();
    const Runner runner(problem, *device);
    const Work work = count_work(c.problem);
    entry["kernel"] = runner.kernel();
    entry["plan"] = runner.summary();
    entry["splits"] = runner.splits();
    entry["workspace_bytes"] = runner.workspace_bytes();
    entry["keys"] = work.keys;
    entry["skipped_indices"] = skipped;
    entry["flops"] = work.flops;
    entry["bytes"] = work.bytes;
    json.push_back(entry);
    if (options.json) continue;
    print("{}\n  {}\n  {} valid keys, {} skipped; {:.3g} GFLOP, {} to read and write\n\n", c.name, shape_text(c),
          work.keys, skipped, work.flops * 1e-9, bytes_text(work.bytes));
    print("{} on {} ({})\n  {}\n  splits {}, workspace {}\n\nkernels, in order of preference\n", runner.kernel(),
          device->name(), device->description(), runner.summary(), runner.splits(),
          bytes_text(static_cast<double>(runner.workspace_bytes())));
    for (const Json& answer : entry["kernels"]) {
      const std::string name = answer["name"], reason = answer["reason"];
      print("  {:<14} {}\n", name,
            name == runner.kernel() ? "chosen"
            : answer["accepts"]     ? "can too"
                                    : "no: " + reason);
    }
  }
  if (options.json) print("{}\n", json.dump(2));
  return 0;
}

int main_checked(int argc, char** argv) {
  CLI::App app("pasa: paged sparse attention for MLA caches", "pasa");
  app.set_version_flag("--version", std::string(pasa_version()));
  app.require_subcommand(1);
  app.footer(
      "Examples\n"
      "  pasa make \"decode:T=64,H=128,fmt=fp8_ds_mla,len=128+1024\" -o case.safetensors\n"
      "  pasa run case.safetensors -o result.safetensors --device cpu\n"
      "  pasa check case.safetensors\n"
      "  pasa bench dsv4-c4a-8k case.safetensors --kernel all\n"
      "  pasa explain case.safetensors\n"
      "Exit status: 0 done, 1 check or selftest found a difference, 2 wrong input or arguments, 3 no such device or kernel.");
  Options options;
  const auto problems = [&](CLI::App* command, const char* what, bool many, bool needed) {
    CLI::Option* option = command->add_option("problem", options.problems, what)->expected(1, many ? 1 << 20 : 1);
    if (needed) option->required();
  };
  const auto json = [&](CLI::App* command) { command->add_flag("--json", options.json, "print JSON"); };
  const auto where = [&](CLI::App* command, bool many) {
    command->add_option("--device", options.device, "auto, cpu, cuda, cuda:N, hip, hip:N, gfx950-emu")
        ->capture_default_str();
    CLI::Option* kernel = command->add_option(
        "--kernel", options.kernels,
        many ? "force kernels, e.g. cpu:avx2,reference: one after the other" : "force a kernel, e.g. cpu:avx2");
    kernel->allow_extra_args(false);  // what follows it is a problem
    if (many) kernel->delimiter(',');
    command->add_option("--splits", options.splits, "parts of each list, 1..256 [the kernel chooses]");
    command->add_option("--threads", options.threads, "CPU threads [all]")->check(CLI::Range(1, 4096));
  };
  constexpr const char* kCase =
      "a case file, a name (pasa bench --list) or a description (pasa make --help); check and bench also take "
      "grid:NAME";

  CLI::App* info_command = app.add_subcommand("info", "devices, kernels and CPU features of this machine");
  info_command->add_option("--device", options.device, "only this one, and the kernels as they are with it");
  json(info_command);

  CLI::App* make_command = app.add_subcommand("make", "write a named or described problem as a case file");
  problems(make_command, "a name or a description, e.g. \"decode:T=64,H=128,fmt=fp8_ds_mla,len=128+1024\"", false,
           true);
  make_command->add_option("-o,--output", options.output, "the case file")->required();
  CLI::Option* seed = make_command->add_option("--seed", options.seed, "of the generator [the description's, or 0]");
  make_command->add_flag("--expected", options.expected, "store the float64 reference's out and lse in the file");
  json(make_command);
  make_command->footer(text_help());

  CLI::App* run_command = app.add_subcommand("run", "solve a case and write the result file");
  problems(run_command, kCase, false, true);
  run_command->add_option("-o,--output", options.output, "the result file: out and lse")->required();
  where(run_command, false);
  json(run_command);
  run_command->footer("Example\n  pasa run case.safetensors -o result.safetensors --kernel cpu:avx2 --splits 4");

  CLI::App* check_command =
      app.add_subcommand("check", "compare with the float64 reference, and with expected_* of the file");
  problems(check_command, kCase, true, true);
  where(check_command, true);
  std::string tolerance_names = "one of";
  for (const Tolerance& tolerance : tolerances()) tolerance_names += " " + std::string(tolerance.name);
  check_command->add_option("--tolerance", options.tolerance, tolerance_names + " [by the formats]");
  json(check_command);
  check_command->footer(
      "Example\n  pasa check case.safetensors --kernel cpu:avx2,cpu:portable\n"
      "  pasa check grid:quick --kernel all");

  CLI::App* bench_command =
      app.add_subcommand("bench", "time problems: median, GB/s, GFLOP/s, fraction of the roofline");
  problems(bench_command, kCase, true, false);
  bench_command->add_option("--case", options.problems, "the same as an option")->allow_extra_args(false);
  where(bench_command, true);
  bench_command->add_option("--warmup", options.timing.warmup, "calls before the clock starts")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  bench_command->add_option("--reps", options.timing.reps, "repetitions [as many as fit in --seconds, 5 to 1000]")
      ->check(CLI::Range(1, 1 << 20));
  bench_command->add_option("--seconds", options.timing.seconds, "time for a measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  bench_command->add_flag("--cold", options.timing.cold, "evict the caches before each call");
  bench_command->add_flag("--no-roofline", options.no_roofline, "do not measure the machine's ceilings");
  bench_command->add_flag("--list", options.list, "print the named problems");
  json(bench_command);
  bench_command->footer(
      "Examples\n  pasa bench\n  pasa bench dsv4-c4a-8k \"decode:T=1,H=16,len=128+8\" --kernel all --threads 1\n"
      "  pasa bench --device gfx950-emu\n"
      "--kernel all times every kernel that serves the problem on the device. An emulated device keeps no time: its\n"
      "instructions are counted, by a token, a tile of 64 tokens, and the fixed part of a row.");

  CLI::App* explain_command = app.add_subcommand("explain", "which kernel serves a problem, and why the others do not");
  problems(explain_command, kCase, true, true);
  where(explain_command, false);
  json(explain_command);

  CLI::App* selftest_command =
      app.add_subcommand("selftest", "check every kernel of a device, time it, and write one file to send back");
  selftest_command->add_option("--device", options.device, "auto, cpu, cuda, hip, gfx950-emu, ...")
      ->capture_default_str();
  std::string report = "pasa-selftest.json";
  selftest_command->add_option("-o,--output", report, "the file: machine, versions, results, times")
      ->capture_default_str();
  selftest_command->add_option("--seconds", options.timing.seconds, "time for a measurement")
      ->check(CLI::Range(0.0, 60.0));
  selftest_command->add_option("--threads", options.threads, "CPU threads [all]")->check(CLI::Range(1, 4096));
  selftest_command->footer(
      "Example\n  pasa selftest --device hip\n"
      "Runs the quick list of cases with every kernel of the device against the float64 reference, then times the\n"
      "DeepSeek-V4 workloads in every cache format (not on an emulated device, which keeps no time).");

  CLI::App* tune_command =
      app.add_subcommand("tune", "time a kernel's launch choices and write the table that plans read");
  problems(tune_command, "shapes to time: as for bench [a grid of decode shapes]", true, false);
  tune_command->add_option("--device", options.device, "auto, cpu, cuda, cuda:N, hip, hip:N")->capture_default_str();
  tune_command->add_option("--kernel", options.kernels, "tune this one [the device's first that has choices]")
      ->allow_extra_args(false);
  tune_command->add_option("--threads", options.threads, "CPU threads [all]")->check(CLI::Range(1, 4096));
  tune_command->add_option("--reps", options.timing.reps, "repetitions of a measurement [5]")
      ->check(CLI::Range(1, 1 << 20));
  tune_command->add_option("-o,--out", options.output,
                           "the table [$PASA_TUNE_TABLE, or pasa/tune.json in $XDG_CACHE_HOME or ~/.cache]");
  json(tune_command);
  tune_command->footer(
      "Examples\n  pasa tune --device cuda\n  pasa tune \"decode:T=48,H=64,len=128+1024\" --out tune.json\n"
      "Caches are cold. A choice that beats the planner's by more than 3 % twice becomes an entry of the table; entries\n"
      "of other shapes and machines stay. Plans made from then on take it: pasa explain says whether and why not.");

  add_ops_commands(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "pasa: %s (pasa --help shows how)\n", error.what());
    return kBadInput;
  }
  // -1 would otherwise read as "choose".
  for (CLI::App* command : {run_command, check_command, bench_command, explain_command}) {
    if (command->parsed() && command->count("--splits") && options.splits < 1) {
      throw Error(PASA_ERROR_RANGE, concat("--splits is ", options.splits, ", expected 1..256"));
    }
  }
  if (app.got_subcommand("cache") || app.got_subcommand("indices")) return 0;  // done while parsing
  if (info_command->parsed()) return info(options);
  if (make_command->parsed()) return make(options, seed->count() > 0);
  if (run_command->parsed()) return run(options);
  if (check_command->parsed()) return check(options);
  if (bench_command->parsed()) return bench(options);
  if (selftest_command->parsed()) {
    options.output = report;
    return selftest(options);
  }
  if (tune_command->parsed()) {
    options.timing.cold = true;
    options.timing.warmup = 1;
    if (options.timing.reps == 0) options.timing.reps = 5;
    return tune(options);
  }
  return explain(options);
}

}  // namespace
}  // namespace pasa

int main(int argc, char** argv) {
  try {
    return pasa::main_checked(argc, argv);
  } catch (const pasa::Error& error) {
    std::fprintf(stderr, "pasa: %s: %s\n", pasa_status_name(error.status), error.what());
    return pasa::exit_code(error.status);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "pasa: %s\n", error.what());
    return pasa::kBadInput;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "pasa: memory: out of memory\n");
    return pasa::kNotThere;
  }
}
