// The fp32 kernel for whatever the compiler targets by default: SSE2 on x86-64, NEON on aarch64. Sixteen registers.
namespace pasa::cpu {
namespace {
constexpr int kTokenTile = 4;   // scores: 4 keys x 2 vectors of heads
constexpr int kDimVectors = 2;  // accumulate: 4 heads x 2 vectors of dims
}  // namespace
}  // namespace pasa::cpu

#include "cpu/attention.h"

namespace pasa::cpu {
extern const Kernel kPortableKernel;
const Kernel kPortableKernel = {scratch_bytes, attend, kMaxHeads};
}  // namespace pasa::cpu
