// The tile kernel with loops in place of the tile unit and no instruction beyond the baseline: never in the library, only
// in tests, which so exercise every line of the kernel on machines without AMX.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/number.h"
#include "cpu/backend.h"

namespace pasa::cpu {
namespace {

struct Tiles {
  static constexpr int kRows = 16, kRowBytes = 64;
  using Tile = std::byte[kRows][kRowBytes];
  static inline thread_local Tile tiles[8];

  static void begin() { std::memset(tiles, 0, sizeof tiles); }
  static void end() {}
  template <int T>
  static void zero() {
    std::memset(tiles[T], 0, sizeof(Tile));
  }
  template <int T>
  static void load(const void* from, std::ptrdiff_t stride) {
    for (int i = 0; i < kRows; ++i)
      std::memcpy(tiles[T][i], static_cast<const std::byte*>(from) + i * stride, kRowBytes);
  }
  template <int T>
  static void store(void* to, std::ptrdiff_t stride) {
    for (int i = 0; i < kRows; ++i) std::memcpy(static_cast<std::byte*>(to) + i * stride, tiles[T][i], kRowBytes);
  }
  template <int C, int A, int B>
  static void dot() {
    static_assert(C != A && A != B && B != C);
    for (int i = 0; i < kRows; ++i) {
      float sum[16];
      std::memcpy(sum, tiles[C][i], sizeof sum);
      for (int k = 0; k < 16; ++k) {
        std::uint16_t a[2], b[32];
        std::memcpy(a, tiles[A][i] + 4 * k, sizeof a);
        std::memcpy(b, tiles[B][k], sizeof b);
        for (int j = 0; j < 16; ++j) {
          sum[j] += value(a[0]) * value(b[2 * j]);
          sum[j] += value(a[1]) * value(b[2 * j + 1]);
        }
      }
      std::memcpy(tiles[C][i], sum, sizeof sum);
    }
  }

 private:
  static float value(std::uint16_t word) {  // subnormals count as 0
    return (word & 0x7f80) == 0 ? bf16_to_float(word & 0x8000) : bf16_to_float(word);
  }
};

}  // namespace
}  // namespace pasa::cpu

#include "cpu/attention_tiles.h"

namespace pasa::cpu {
extern const Kernel kAmxEmulatedKernel;
const Kernel kAmxEmulatedKernel = {scratch_bytes, attend, kMaxHeads};
}  // namespace pasa::cpu

namespace pasa {
extern const Backend kCpuAmxEmulated;
const Backend kCpuAmxEmulated = cpu::backend<cpu::kAmxEmulatedKernel>(
    "cpu:amx_emulated", [] { return std::string(); },
    [](const Problem& p) -> std::string {
      return p.word == Word16::kF16 ? "tiles multiply bf16 only, q is fp16" : "";
    });
}  // namespace pasa
