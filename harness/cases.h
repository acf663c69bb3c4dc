// The one list of problems: named ones for people, grids for tests. A row added here is seen by the tests, the command line
// and the benchmarks.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/text.h"

namespace pasa {

struct NamedProblem {
  std::string_view name, text, what;
};
std::span<const NamedProblem> named_problems();
// A name of the list above, or a description. Throws PASA_ERROR_RANGE.
CaseSpec find_problem(std::string_view name_or_text);

struct TestCase {
  CaseSpec spec;
  std::string_view tolerance;  // a name of compare.h
  bool run_only = false;       // too large for the reference: must run and write every row
};

struct Grid {
  std::string_view name;  // "aiter-decode"
  std::string_view what;
  std::vector<TestCase> (*cases)();
};
std::span<const Grid> grids();
std::vector<TestCase> grid(std::string_view name);

// A fixed selection of all grids that holds every format, pair of formats, list form and edge, small enough for the
// reference on two cores (well under a minute).
std::vector<TestCase> quick_cases();
std::vector<TestCase> full_cases();

}  // namespace pasa
