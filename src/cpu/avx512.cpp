// The fp32 kernel in AVX-512. bf16 is widened and multiplied in fp32: where both exist, VDPBF16PS does half the work a
// second that fp32 FMA does (docs/cpu.md). Thirty-two registers: 16 sums and room to load ahead.
namespace pasa::cpu {
namespace {
constexpr int kTokenTile = 8;   // scores: 8 keys x 2 vectors of heads
constexpr int kDimVectors = 4;  // accumulate: 4 heads x 4 vectors of dims
}  // namespace
}  // namespace pasa::cpu

#include "cpu/attention.h"

namespace pasa::cpu {
extern const Kernel kAvx512Kernel;
const Kernel kAvx512Kernel = {scratch_bytes, attend, kMaxHeads};
}  // namespace pasa::cpu
