// The tile kernel; until it stands, the AVX-512 one under its name.
// second that fp32 FMA does (docs/cpu.md). Thirty-two registers: 16 sums and room to load ahead.
namespace pasa::cpu {
namespace {
constexpr int kTokenTile = 8;   // scores: 8 keys x 2 vectors of heads
constexpr int kDimVectors = 4;  // accumulate: 4 heads x 4 vectors of dims
}  // namespace
}  // namespace pasa::cpu

#include "cpu/attention.h"

namespace pasa::cpu {
extern const Kernel kAmxKernel;
const Kernel kAmxKernel = {scratch_bytes, attend, kMaxHeads};
}  // namespace pasa::cpu
