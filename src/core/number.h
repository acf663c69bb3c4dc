// Number formats: bf16, fp16, e4m3 in both flavours and UE8M0, to and from float. Exact, slow, constexpr: these functions
// define the meaning of a byte; every fast path in a backend is tested against them over its whole domain.
#pragma once

#include <bit>
#include <cstdint>

namespace pasa {

// The two e4m3 flavours. Bias 7 with -0 and NaN at 0x7f/0xff (OCP), or bias 8 with one NaN at 0x80 (fnuz).
enum class Fp8 : std::uint8_t { kE4m3fn, kE4m3fnuz };

constexpr float kNan = std::bit_cast<float>(0x7fc00000u);
constexpr float kInfinity = std::bit_cast<float>(0x7f800000u);
constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;

constexpr bool is_nan(float x) { return x != x; }

constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
constexpr std::uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (is_nan(x)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// Round to nearest, ties to even; overflow gives infinity; NaN stays NaN.
constexpr std::uint16_t float_to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) {  // normal in fp16
    const std::uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  // Subnormal: adding 0.5 puts the last fp16 bit (2^-24) on the last float bit, so the adder itself rounds to even.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
}

constexpr float fp8_to_float(Fp8 flavour, std::uint8_t code) {
  const bool fnuz = flavour == Fp8::kE4m3fnuz;
  if (fnuz ? code == 0x80 : (code & 0x7f) == 0x7f) return kNan;
  const std::uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  const int bias = fnuz ? 8 : 7;
  const std::uint32_t fraction = exponent ? 8 + mantissa : mantissa;
  // fraction * 2^(e - bias - 3), the power built as a float
  const int power = (exponent ? static_cast<int>(exponent) : 1) - bias - 3;
  const float magnitude =
      static_cast<float>(fraction) * std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
  return code & 0x80 ? -magnitude : magnitude;
}

constexpr float fp8_max(Fp8 flavour) { return flavour == Fp8::kE4m3fnuz ? 240.0f : 448.0f; }

// Saturates first, then rounds to nearest even. NaN gives the flavour's NaN; fnuz has no -0.
constexpr std::uint8_t float_to_fp8(Fp8 flavour, float x) {
  const bool fnuz = flavour == Fp8::kE4m3fnuz;
  if (is_nan(x)) return fnuz ? 0x80 : 0x7f;
  const float limit = fp8_max(flavour);
  const bool negative = (std::bit_cast<std::uint32_t>(x) >> 31) != 0;
  float magnitude = negative ? -x : x;
  if (magnitude > limit) magnitude = limit;
  const int bias = fnuz ? 8 : 7;
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  int exponent = static_cast<int>(bits >> 23) - 127;  // of the leading bit; subnormal floats count as tiny
  if (exponent < 1 - bias) exponent = 1 - bias;
  // Units of the last place: 2^(exponent - 3). Adding 2^23 of them makes the adder round to an integer, ties to even.
  const float ulp = std::bit_cast<float>(static_cast<std::uint32_t>(exponent - 3 + 127) << 23);
  const float units = magnitude / ulp;                                         // exact: a power of two
  const auto count = static_cast<std::uint32_t>((units + 0x1p23f) - 0x1p23f);  // 0..16
  // (exponent field - 1) * 8 + count: a carry out of the mantissa moves to the next binade by itself.
  const auto code = static_cast<std::uint32_t>((exponent + bias - 1) * 8) + count;
  if (code == 0 && fnuz) return 0;
  return static_cast<std::uint8_t>(code | (negative ? 0x80u : 0u));
}

// 2^(byte - 127): byte 0 is a float subnormal (kept), 255 is NaN.
constexpr float ue8m0_to_float(std::uint8_t byte) {
  if (byte == 255) return kNan;
  return std::bit_cast<float>(byte == 0 ? 0x00400000u : static_cast<std::uint32_t>(byte) << 23);
}

}  // namespace pasa
