// The small floating-point formats: bf16, f16, e4m3, and pairs of the first two in 32 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/number.h"

namespace ptxemu {

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};
template <typename T>
struct Pair {
  T low, high;
};

inline float from_brain(Brain x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
inline float from_half(Half x) { return pasa::f16_to_float(x.bits); }

// To nearest, ties to even. NaN becomes the GPU's: all bits but the sign.
inline Brain to_brain(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<std::uint16_t>(x != x ? 0x7fff : rounded)};
}
inline Half to_half(float x) { return {x != x ? std::uint16_t{0x7fff} : pasa::float_to_f16(x)}; }

// x + error, rounded once to a format narrower than double: the last bit is made odd if anything is below it.
inline double to_odd(double a, double b) {
  const double sum = a + b, back = sum - a, error = (a - (sum - back)) + (b - back);
  const auto bits = std::bit_cast<std::uint64_t>(sum);
  if (error == 0 || error != error || (bits & 1)) return sum;
  return std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}
// The same for narrowing to float on the way to 16 bits.
inline float odd_float(double x) {
  const auto y = static_cast<float>(x);
  const double error = x - static_cast<double>(y);
  const auto bits = std::bit_cast<std::uint32_t>(y);
  if (error == 0 || error != error || (bits & 1)) return y;
  return std::bit_cast<float>((error > 0) == (y > 0) ? bits + 1 : bits - 1);
}

inline float widen(Half x) { return from_half(x); }
inline float widen(Brain x) { return from_brain(x); }
template <typename T>
T narrow(float x);
template <>
inline Half narrow<Half>(float x) {
  return to_half(x);
}
template <>
inline Brain narrow<Brain>(float x) {
  return to_brain(x);
}

// Sums and products of two 16-bit numbers, and one of each, are rounded once.
template <typename T>
T fma_one(T a, T b, T c) {
  const double product = static_cast<double>(widen(a)) * static_cast<double>(widen(b));
  return narrow<T>(odd_float(to_odd(product, static_cast<double>(widen(c)))));
}
template <typename T>
Pair<T> fma(Pair<T> a, Pair<T> b, Pair<T> c) {
  return {fma_one(a.low, b.low, c.low), fma_one(a.high, b.high, c.high)};
}
template <typename T>
Pair<T> operator*(Pair<T> a, Pair<T> b) {
  return {narrow<T>(widen(a.low) * widen(b.low)), narrow<T>(widen(a.high) * widen(b.high))};
}
template <typename T>
Pair<T> operator+(Pair<T> a, Pair<T> b) {
  const T one = narrow<T>(1.0f);
  return fma(a, Pair<T>{one, one}, b);
}
template <typename T>
Pair<T> operator-(Pair<T> a, Pair<T> b) {
  const T minus = narrow<T>(-1.0f);
  return fma(b, Pair<T>{minus, minus}, a);
}

inline float from_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  float x = exponent ? std::ldexp(static_cast<float>(8 + mantissa), exponent - 10)
                     : std::ldexp(static_cast<float>(mantissa), -9);
  if ((code & 127) == 127) x = std::bit_cast<float>(0x7fffffffu);
  return code & 128 ? -x : x;
}
// To nearest, ties to even; beyond the largest number: that number.
inline std::uint8_t to_e4m3(float x) {
  if (x != x) return 0x7f;
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float size = std::fabs(x);
  if (size >= 448.0f) return static_cast<std::uint8_t>(sign | 0x7e);
  const int exponent = std::max(std::ilogb(size), -6);  // of 0: the least
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  return static_cast<std::uint8_t>(sign | (((exponent + 6) << 3) + steps));  // a carry moves on to the next exponent
}

}  // namespace ptxemu
