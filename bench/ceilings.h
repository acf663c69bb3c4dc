// What this machine can do at most in the parts of sparse attention: the denominators of every fraction that `pasa bench`
// prints. They are measured, not looked up, and in the same process and with the same threads as the kernel, because clocks
// move and the tile unit of a core may be shared with a neighbour.
#pragma once

#include <cstdint>
#include <string_view>

namespace pasa::bench {

// Useful work a second of `threads` threads together, operands in registers; 0 where the CPU lacks the instruction.
struct Ceilings {
  int threads;
  double portable_gflops;     // multiply and add of the baseline instruction set
  double avx2_gflops;         // fp32 FMA, 256 bits
  double avx512_gflops;       // fp32 FMA, 512 bits
  double avx512_bf16_gflops;  // VDPBF16PS, 512 bits
  double amx_gflops;          // TDPBF16PS on full tiles
  // The same with a tile load for each, from L1: what a product that reads its operands can reach. Equal within 10 % on a
  // quiet core; a quarter of it in the tile unit's slow state (docs/cpu.md).
  double amx_loaded_gflops;

  // The unit that a kernel's arithmetic runs on, by the kernel's name ("cpu:amx").
  double for_kernel(std::string_view kernel) const {
    if (kernel == "cpu:amx") return amx_gflops;
    if (kernel == "cpu:avx512_bf16") return avx512_bf16_gflops;
    if (kernel == "cpu:avx512") return avx512_gflops;
    if (kernel == "cpu:avx2") return avx2_gflops;
    return portable_gflops;
  }
};

// About 20 ms for each unit. threads = 0: as many as OpenMP would use.
Ceilings measure_ceilings(int threads);

// Bytes a second (in 1e9) when rows of row_bytes >= 64 are read in random order from a pool of pool_bytes.
// Allocates and fills the pool; takes about 50 ms once it stands.
double measure_gather_gbps(int row_bytes, std::int64_t pool_bytes, int threads);
// The same on a pool of the caller's, e.g. the very one that a kernel has just read.
double measure_gather_gbps(const std::uint8_t* pool, std::int64_t pool_bytes, int row_bytes, int threads);

}  // namespace pasa::bench
