// What the subcommands share: a problem from the command line, the device it runs on, and one run, comparison or timing of it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/compare.h"
#include "harness/counts.h"
#include "harness/device.h"

namespace pasa {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> problems;
  std::string output, device = "auto", tolerance;
  std::vector<std::string> kernels;
  int splits = 0, threads = 0;
  std::uint64_t seed = 0;
  bool json = false, expected = false, list = false, no_roofline = false;
  Timing timing;
};

// Everything about the input is checked before memory for results is taken. Malformed lists are an error here, where the
// data is at hand; indices that are skipped are none, but worth a word.
Case load(const std::string& text, const Options& options, std::int64_t* skipped = nullptr);

// Without a device asked for, a forced kernel says which one.
std::unique_ptr<Device> open_for(const Options& options, const std::string& kernel);

// The problem as the device would see it, without data: enough for a plan and for a kernel's answer.
pasa_problem without_data(pasa_problem problem, const Device& device);

// The names of the kernels that serve the problem on the device.
std::vector<std::string> accepting_kernels(const Case& c, const Device& device);
// What `--kernel` names for this problem; without it, the one that the library chooses ("").
std::vector<std::string> wanted_kernels(const Case& c, const Options& options);

// grid:NAME (or grid:quick, grid:full) stands for all its problems, each at its own tolerance.
struct Item {
  std::string problem, tolerance;
  bool of_grid = false, run_only = false;
};
std::vector<Item> expand(const std::vector<std::string>& problems);

// Runs the case once on fresh outputs; its outputs are on the host afterwards.
struct Ran {
  std::string kernel, summary;
  double seconds = 0;
  Counts counts;  // on a device that keeps no time
};
Ran run_once(Case& c, Device& device, const std::string& kernel);

Json to_json(const Comparison& comparison);
// Times the case.
Json bench_one(Case& c, const Work& work, const Options& options, const std::string& kernel);
// Prints such rows.
void print_times(const Json& rows);

}  // namespace pasa
