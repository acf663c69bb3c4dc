// How a key becomes the bytes of a slot: the writers of docs/formats.md, one token at a time, exact and constexpr. Tests and
// the case generator use them as they are; a cache-write kernel uses the same scale rules with its own reductions.
//
// A key comes as float or as bf16 bits (std::uint16_t). Rule of every writer: the scale follows from the largest finite
// magnitude of a group, codes saturate and round to nearest even, a NaN becomes the NaN code and does not raise the scale.
#pragma once

#include <bit>
#include <cstdint>

#include "core/format.h"
#include "core/number.h"

namespace pasa {

constexpr float key_component(float x) { return x; }
constexpr float key_component(std::uint16_t bf16) { return bf16_to_float(bf16); }
constexpr std::uint16_t key_bf16(float x) { return float_to_bf16(x); }
constexpr std::uint16_t key_bf16(std::uint16_t bf16) { return bf16; }

constexpr float kMaxFloat = 0x1.fffffep127f;
constexpr float kMaxBf16 = 0x1.fep127f;

// The amax of a group grows by one component; an infinity counts as `largest`.
constexpr float raise_amax(float amax, float x, float largest) {
  const float magnitude = x < 0 ? -x : x;
  if (!(magnitude > amax)) return amax;  // also for NaN
  return magnitude > largest ? largest : magnitude;
}

// Uniform fp8: amax / F, the amax being at least 1e-12.
constexpr float uniform_scale(Fp8 flavour, float amax) { return (amax > 1e-12f ? amax : 1e-12f) / fp8_max(flavour); }

// fp8_ds_mla: the smallest e with amax <= 448 * 2^e, the amax being at least 1e-4. With amax = m * 2^k, 1 <= m < 2, and
// 448 = 1.75 * 2^8 that is k - 8, or k - 7 if m > 1.75.
constexpr int ds_mla_exponent(float amax) {
  const auto bits = std::bit_cast<std::uint32_t>(amax > 1e-4f ? amax : 1e-4f);
  return static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffffu) > 0x600000u);
}

// fp8_v32 has two writers: amax / 448 as it is (vLLM), or the next power of two (FlashMLA).
enum class V32Scale : std::uint8_t { kPlain, kPowerOfTwo };
constexpr float v32_scale(V32Scale kind, float amax) {
  const float ratio = amax / 448.0f;
  if (kind == V32Scale::kPlain) return ratio > 0x1p-126f ? ratio : 0x1p-126f;
  const auto bits = std::bit_cast<std::uint32_t>(ratio > 1e-4f ? ratio : 1e-4f);
  return std::bit_cast<float>((bits & 0x7f800000u) + ((bits & 0x7fffffu) ? 0x800000u : 0u));
}

// Little-endian stores that work in a constant expression.
constexpr void store_u16(std::uint8_t* to, std::uint16_t x) {
  to[0] = static_cast<std::uint8_t>(x);
  to[1] = static_cast<std::uint8_t>(x >> 8);
}
constexpr void store_float(std::uint8_t* to, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(bits >> (8 * i));
}

// [512] -> codes [512], scales [8].
template <typename Element>
constexpr void quantize_uniform(Fp8 flavour, const Element* key, std::uint8_t* codes, float* scales) {
  using Format = UniformFp8<Fp8::kE4m3fn>;  // both flavours have its shape
  for (int tile = 0; tile < Format::kScales; ++tile) {
    const int begin = tile * Format::kScaleTile, end = begin + Format::kScaleTile;
    float amax = 0;
    for (int d = begin; d < end; ++d) amax = raise_amax(amax, key_component(key[d]), kMaxFloat);
    scales[tile] = uniform_scale(flavour, amax);
    for (int d = begin; d < end; ++d) codes[d] = float_to_fp8(flavour, key_component(key[d]) / scales[tile]);
  }
}

// [512], rounded to bf16 first -> record [576], tail [8]; the pad byte is 0.
template <typename Element>
constexpr void quantize_ds_mla(const Element* key, std::uint8_t* record, std::uint8_t* tail) {
  using Format = Fp8DsMla;
  for (int tile = 0; tile < Format::kScales; ++tile) {
    const int begin = tile * Format::kScaleTile, end = begin + Format::kScaleTile;
    float amax = 0;
    for (int d = begin; d < end; ++d) amax = raise_amax(amax, bf16_to_float(key_bf16(key[d])), kMaxBf16);
    const int exponent = ds_mla_exponent(amax);  // -22..120: neither the byte nor the power below needs a clamp
    const float inverse = ue8m0_to_float(static_cast<std::uint8_t>(127 - exponent));
    tail[tile] = static_cast<std::uint8_t>(127 + exponent);
    for (int d = begin; d < end; ++d) {
      record[d] = float_to_fp8(Format::kFlavour, bf16_to_float(key_bf16(key[d])) * inverse);
    }
  }
  tail[Format::kTailBytes - 1] = 0;
  for (int d = 0; d < Format::kRope; ++d) {
    store_u16(record + Format::kRopeOffset + 2 * d, key_bf16(key[Format::kNope + d]));
  }
}

// [576] -> record [656].
template <typename Element>
constexpr void quantize_v32(V32Scale kind, const Element* key, std::uint8_t* record) {
  using Format = Fp8V32;
  for (int tile = 0; tile < Format::kScales; ++tile) {
    const int begin = tile * Format::kScaleTile, end = begin + Format::kScaleTile;
    float amax = 0;
    for (int d = begin; d < end; ++d) amax = raise_amax(amax, key_component(key[d]), kMaxFloat);
    const float scale = v32_scale(kind, amax);
    store_float(record + Format::kNope + 4 * tile, scale);
    for (int d = begin; d < end; ++d) record[d] = float_to_fp8(Format::kFlavour, key_component(key[d]) / scale);
  }
  for (int d = 0; d < Format::kRope; ++d) {
    store_u16(record + Format::kRopeOffset + 2 * d, key_bf16(key[Format::kNope + d]));
  }
}

}  // namespace pasa
