#include "harness/short_cases.h"

namespace pasa {
namespace {

std::int64_t tiles_of(const CaseSpec& spec) {
  std::int64_t tiles = 0;
  for (int i = 0; i < spec.source_count; ++i) tiles += (spec.source[i].len + 63) / 64 + 1;
  return spec.tokens * ((spec.heads + 15) / 16) * tiles;
}

bool has_small_pools(const CaseSpec& spec) {
  for (int i = 0; i < spec.source_count; ++i) {
    const SourceSpec& s = spec.source[i];
    if ((s.slots ? s.slots : spec.tokens * s.len) > (1 << 13) || s.stride > (1 << 17)) return false;
  }
  return true;
}

}  // namespace

std::vector<TestCase> short_cases(std::int64_t tiles) {
  constexpr std::int64_t kLongest = 24;
  std::vector<TestCase> all, selected;
  std::int64_t work = 0;
  for (const TestCase& test : quick_cases()) {
    if (test.run_only || tiles_of(test.spec) > kLongest || !has_small_pools(test.spec)) continue;
    work += tiles_of(test.spec) + 1;
    all.push_back(test);
  }
  const std::size_t step = tiles ? static_cast<std::size_t>(work / tiles + 1) : 1;
  for (std::size_t i = 0; i < all.size(); i += step) selected.push_back(all[i]);
  return selected;
}

}  // namespace pasa
