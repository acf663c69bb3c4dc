// The tile kernel on AVX-512's bf16 dot products, for CPUs that have no tiles but twice the fp32 rate in VDPBF16PS (AMD from
// Zen 4 on). An operand's tile is a place in memory, read where it lies; a sum's tile is memory that stays in L1: sixteen
// registers hold it while 256 instructions add to it, each with a pair of A broadcast by its load.
#include <immintrin.h>

#include <cstddef>
#include <cstring>

namespace pasa::cpu {
namespace {

struct Tiles {
  static constexpr int kRows = 16, kSums = 4;  // tiles 0 to 3 are sums, 4 to 7 operands
  struct alignas(64) State {
    float sums[kSums][kRows][16];
    struct Operand {
      const std::byte* at;
      std::ptrdiff_t stride;
    } operands[4];
  };
  static inline thread_local State state;

  static void begin() {}
  static void end() {}
  template <int T>
  static void zero() {
    std::memset(state.sums[T], 0, sizeof state.sums[T]);
  }
  template <int T>
  static void load(const void* from, std::ptrdiff_t stride) {
    if constexpr (T >= kSums) {
      state.operands[T - kSums] = {static_cast<const std::byte*>(from), stride};
    } else {
      for (int i = 0; i < kRows; ++i) {
        _mm512_store_ps(state.sums[T][i], _mm512_loadu_ps(static_cast<const std::byte*>(from) + i * stride));
      }
    }
  }
  template <int T>
  static void store(void* to, std::ptrdiff_t stride) {
    for (int i = 0; i < kRows; ++i) {
      _mm512_storeu_ps(static_cast<std::byte*>(to) + i * stride, _mm512_load_ps(state.sums[T][i]));
    }
  }
  template <int C, int A, int B>
  static void dot() {
    const auto [a, a_stride] = state.operands[A - kSums];
    const auto [b, b_stride] = state.operands[B - kSums];
    __m512 sums[kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) sums[i] = _mm512_load_ps(state.sums[C][i]);
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      const auto row = (__m512bh)_mm512_loadu_si512(b + k * b_stride);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        int pair;
        std::memcpy(&pair, a + i * a_stride + 4 * k, sizeof pair);
        sums[i] = _mm512_dpbf16_ps(sums[i], row, (__m512bh)_mm512_set1_epi32(pair));
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) _mm512_store_ps(state.sums[C][i], sums[i]);
  }
};

}  // namespace
}  // namespace pasa::cpu

#include "cpu/attention_tiles.h"

namespace pasa::cpu {
extern const Kernel kAvx512Bf16Kernel;
const Kernel kAvx512Bf16Kernel = {scratch_bytes, attend, kMaxHeads};
}  // namespace pasa::cpu
