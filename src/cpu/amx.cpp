// The tile kernel on AMX. Tile instructions are written as assembly: g++ 12's intrinsics do not say which memory they read
// (it drops the stores to a tile configuration), and here the compiler may neither move nor lose one.
#include <cstddef>
#include <cstdint>

namespace pasa::cpu {
namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Eight tiles of 16 rows of 64 bytes. dot: C [16, 16] += A [16, 32] B [32, 16], B's rows being pairs; C, A, B differ.
struct Tiles {
  static void begin() {
    const TileConfig config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  static void end() { asm volatile("tilerelease"); }  // makes a context switch cheap again

  template <int Tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }
  template <int Tile>
  static void load(const void* from, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  static void store(void* to, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
  }
  template <int C, int A, int B>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace
}  // namespace pasa::cpu

#include "cpu/attention_tiles.h"

namespace pasa::cpu {
extern const Kernel kAmxKernel;
const Kernel kAmxKernel = {scratch_bytes, attend, kMaxHeads};
}  // namespace pasa::cpu
