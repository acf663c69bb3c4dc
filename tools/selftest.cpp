#include "tools/selftest.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/error.h"
#include "harness/cases.h"
#include "harness/clock.h"
#include "harness/data.h"
#include "harness/short_cases.h"
#include "tools/terminal.h"

namespace pasa {
namespace {

// The file that is to be sent back. Opened before the work begins, so that an unwritable place is no loss of it; there under
// its name only when it is complete.
class Report {
 public:
  explicit Report(std::string path) : path_(std::move(path)), part_(path_ + ".part"), file_(part_) {
    require(PASA_ERROR_VALUE, file_.good(), "cannot write ", path_);
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  ~Report() {
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
  }
  void finish(const Json& json) {
    file_ << json.dump(2) << '\n';
    file_.close();
    require(PASA_ERROR_VALUE, file_.good(), "cannot write ", path_);
    std::filesystem::rename(part_, path_);
  }

 private:
  std::string path_, part_;
  std::ofstream file_;
};

Json about(const Device& device) {
  utsname system{};
  uname(&system);
  return {{"pasa_version", pasa_version()},
          {"date", utc_now("%Y-%m-%dT%H:%M:%SZ")},
          {"device", device.name()},
          {"device_description", device.description()},
          {"cpu", open_device("cpu")->description()},
          {"system", concat(system.sysname, ' ', system.release, ' ', system.machine)}};
}

// Every kernel of the device's kind: its name, or why it does not run here.
std::vector<std::string> kernels_of(const Device& device, Json& json) {
  std::vector<std::string> names;
  std::string reasons;
  for (int i = 0; i < pasa_kernel_count(); ++i) {
    pasa_kernel_info info{sizeof info};
    check_status(pasa_get_kernel_info(i, nullptr, &info));
    constexpr const char* kFamilies[] = {"cpu", "cuda", "hip"};
    if (kFamilies[device.type()] != std::string_view(info.device)) continue;
    json.push_back({{"name", info.name}, {"available", info.available != 0}, {"reason", info.reason}});
    if (info.available) {
      if (std::string_view(info.name) != "reference") names.emplace_back(info.name);
    } else {
      reasons += concat(reasons.empty() ? "" : "; ", info.name, ": ", info.reason);
    }
  }
  require(PASA_ERROR_UNSUPPORTED, !names.empty(), "no kernel runs on ", device.name(), " (", device.description(),
          "): ", reasons);
  return names;
}

struct Tally {
  int ok = 0, differ = 0, failed = 0, declined = 0;
};

// One case on one kernel. What differs or fails is told in full, what is well in a line.
Json check_one(const TestCase& test, const Reference& want, Case& c, Device& device, const std::string& kernel,
               Tally& tally) {
  Json json{{"problem", c.name}, {"kernel", kernel}};
  try {
    run_once(c, device, kernel);
  } catch (const Error& error) {
    const bool declined = error.status == PASA_ERROR_UNSUPPORTED;
    ++(declined ? tally.declined : tally.failed);
    json["result"] = declined ? "declined" : "failed";
    json["why"] = error.what();
    return json;
  } catch (const std::runtime_error& error) {  // a finding of the emulator
    ++tally.failed;
    json["result"] = "failed";
    json["why"] = error.what();
    return json;
  }
  const Comparison comparison = compare(c.problem, want, find_tolerance(test.tolerance));
  ++(comparison.ok() ? tally.ok : tally.differ);
  json["result"] = comparison.ok() ? "ok" : "differs";
  json["tolerance"] = test.tolerance;
  if (comparison.ok()) {
    for (const Deviation& part : comparison.parts) json["max_abs"][std::string(part.tensor)] = part.max_abs;
  } else {
    json["tensors"] = to_json(comparison);
  }
  return json;
}

// The four DeepSeek-V4 decode workloads in every cache format, with one list or with two, prefill and DeepSeek V3.2.
std::vector<std::string> speed_problems(bool is_gpu) {
  struct Workload {
    int compressed, page;
  };
  const std::string rows = is_gpu ? "T=64,H=128" : "T=16,H=64";
  std::vector<std::string> problems;
  for (const auto& [compressed, page] : {Workload{256, 64}, {1024, 64}, {8, 2}, {64, 2}}) {
    for (const char* format : {"fp8_e4m3fn", "fp8_e4m3fnuz", "bf16", "fp8_ds_mla", "packed_bf16"}) {
      problems.push_back(concat("decode:", rows, ",fmt=", format, ",len=", 128 + compressed, ",pattern=unique"));
    }
    for (const char* format : {"fp8_ds_mla", "packed_bf16"}) {
      problems.push_back(concat("decode:", rows, ",fmt=", format, ",len=128+", compressed, ",page=256+", page,
                                ",pattern=window+unique"));
    }
  }
  if (is_gpu) problems.insert(problems.end(), {"dsv4-prefill", "v32-decode"});
  return problems;
}

}  // namespace

int selftest(const Options& options) {
  const Stopwatch watch;
  const auto device = open_for(options, "");
  Json kernels = Json::array(), results = Json::array(), times = Json::array();
  const std::vector<std::string> names = kernels_of(*device, kernels);
  Report report(options.output);
  Json json = about(*device);
  json["kernels"] = kernels;

  constexpr std::int64_t kEmulatedTiles = 600;
  Tally tally;
  const std::vector<TestCase> cases = device->keeps_time() ? quick_cases() : short_cases(kEmulatedTiles);
  Progress checking("checking");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    checking(static_cast<double>(i) / static_cast<double>(cases.size()));
    if (cases[i].run_only) continue;
    Case c = load(to_text(cases[i].spec), options);
    const Reference want = compute_reference(c.problem, options.threads);
    for (const std::string& kernel : names) results.push_back(check_one(cases[i], want, c, *device, kernel, tally));
  }
  checking(1);
  print("{}: {} cases on {} kernel{}: {} ok, {} differ, {} failed, {} declined\n", device->name(), cases.size(),
        names.size(), names.size() == 1 ? "" : "s", tally.ok, tally.differ, tally.failed, tally.declined);

  if (device->keeps_time()) {
    Options timed = options;
    timed.device = device->name();
    const std::vector<std::string> problems = speed_problems(device->type() != PASA_CPU);
    Progress timing("timing");
    for (std::size_t i = 0; i < problems.size(); ++i) {
      timing(static_cast<double>(i) / static_cast<double>(problems.size()));
      Case c = load(problems[i], options);
      times.push_back(bench_one(c, count_work(c.problem), timed, ""));
    }
    timing(1);
    print_times(times);
  }
  json["summary"] = {
      {"ok", tally.ok}, {"differ", tally.differ}, {"failed", tally.failed}, {"declined", tally.declined}};
  json["seconds"] = watch.seconds();
  json["cases"] = results;
  json["times"] = times;
  report.finish(json);
  print("\n{} holds all of it: please send it to the project\n", options.output);
  return tally.differ + tally.failed == 0 ? 0 : 1;
}

}  // namespace pasa
