// Launch choices measured on this machine (`pasa tune`), and how a plan takes them.
//
// A kernel's planner chooses heads per tile and splits by a model of its cost. The table names the shapes for which other
// choices were faster when timed, and a plan for such a shape is made as if its caller had asked for them. The one rule:
// nothing about a table is an error. One that is absent, damaged, of another version or machine is not used, and the plan's
// summary says so; whatever it holds, the problem is served by the same kernel with the same meaning (docs/tuning.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace pasa {

// What the cost of a key depends on, in words: "fp8", "16-bit", "mixed"; with " for f16 queries" where a kernel multiplies
// bf16 twice for them.
std::string key_class(const Shape& shape);

// A measured choice and the shape it was measured at. It serves shapes with as many tiles of 16 heads, up to an eighth
// fewer rows and up to a quarter fewer keys: never more work than was timed, and not so much less that another choice would
// be far better.
struct Tuned {
  std::string kernel;  // "cuda:general"
  std::string keys;    // key_class()
  int heads = 0;
  std::int64_t tokens = 0;      // rows
  std::int64_t length = 0;      // average keys of a row's lists
  int block_h = 0, splits = 0;  // as in pasa_problem; 0: the planner's

  bool serves(const Problem& problem) const;  // whatever the kernel
};

struct TuningTable {
  std::string path;
  std::string fault;                                                // why it is not used; empty: it is
  std::map<std::string, std::vector<Tuned>, std::less<>> machines;  // by Backend::machine()
};

// $PASA_TUNE_TABLE (empty: no table), or pasa/tune.json in $XDG_CACHE_HOME or ~/.cache; empty if there is none of these.
std::string tuning_path();
TuningTable parse_tuning(std::string path, std::string_view text);
TuningTable load_tuning(std::string path);
// That of tuning_path(), read once per process.
const TuningTable& tuning_table();

// Sets block_h and splits where the table knows better; returns what it did and why, in words, empty for kernels that have
// no such choices.
std::string apply_tuning(const TuningTable& table, const Backend& backend, Problem& problem);

}  // namespace pasa
