// fp8 to and from float without a branch, so that a compiler can turn a loop over them into vector code: the fast twins of
// core/number.h, to which tests hold them over their whole domains.
#pragma once

#include <bit>
#include <cstdint>

#include "core/format.h"
#include "core/number.h"

namespace pasa::ops {

// Saturates, rounds to nearest even. Both roundings are integer or float additions that carry where they must.
template <Fp8 F>
constexpr std::uint8_t encode_fp8(float x) {
  constexpr bool fnuz = F == Fp8::kE4m3fnuz;
  constexpr int bias = fnuz ? 8 : 7;
  constexpr auto smallest_normal = static_cast<std::uint32_t>(128 - bias) << 23;
  // Added to a number below the smallest normal, it leaves the subnormal code in the last bits.
  constexpr float magic = std::bit_cast<float>(static_cast<std::uint32_t>(127 + 23 - 2 - bias) << 23);
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  constexpr auto limit = std::bit_cast<std::uint32_t>(fp8_max(F));
  const std::uint32_t clamped = magnitude > limit ? limit : magnitude;
  const std::uint32_t normal = ((clamped + 0x7ffffu + ((clamped >> 20) & 1u)) >> 20) - ((127u - bias) << 3);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(clamped) + magic) & 0xfu;
  const std::uint32_t code = clamped < smallest_normal ? subnormal : normal;
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t with_sign = fnuz && code == 0 ? 0 : code | sign;
  return static_cast<std::uint8_t>(magnitude > 0x7f800000u ? (fnuz ? 0x80u : 0x7fu) : with_sign);
}

// The code's fields as a float's top bits, times the difference of the biases; subnormal codes come out right as well.
template <Fp8 F>
constexpr float decode_fp8(std::uint8_t code) {
  constexpr bool fnuz = F == Fp8::kE4m3fnuz;
  const std::uint32_t bits = (code & 0x80u) << 24 | (code & 0x7fu) << 20;
  const float value = std::bit_cast<float>(bits) * (fnuz ? 0x1p119f : 0x1p120f);
  const bool nan = fnuz ? code == 0x80 : (code & 0x7f) == 0x7f;
  return nan ? kNan : value;
}

template <Word16 W>
constexpr std::uint16_t encode_word(float x) {
  return W == Word16::kBf16 ? float_to_bf16(x) : float_to_f16(x);
}

template <Word16 W>
constexpr float decode_word(std::uint16_t word) {
  return W == Word16::kBf16 ? bf16_to_float(word) : f16_to_float(word);
}

}  // namespace pasa::ops
