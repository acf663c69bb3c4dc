// The fp32 kernel in AVX2 and FMA. Sixteen registers: 12 sums, 2 queries, 1 key; or 8 sums, 2 values, 1 weight.
namespace pasa::cpu {
namespace {
constexpr int kTokenTile = 6;   // scores: 6 keys x 2 vectors of heads
constexpr int kDimVectors = 2;  // accumulate: 4 heads x 2 vectors of dims
}  // namespace
}  // namespace pasa::cpu

#include "cpu/attention.h"

namespace pasa::cpu {
extern const Kernel kAvx2Kernel;
const Kernel kAvx2Kernel = {scratch_bytes, attend, kMaxHeads};
}  // namespace pasa::cpu
