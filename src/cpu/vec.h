// Vectors of any width and the few operations on them. They are compiler vectors, so the same lines become AVX-512, AVX2,
// SSE2 or NEON instructions, and a 64-byte vector works (slowly) where no register is that wide. Where g++ 12 does not find
// the right instruction by itself, the intrinsic stands beside an equal generic line.
// Everything is in an unnamed namespace: each instruction set has a copy of its own.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace pasa::cpu {
namespace {

template <int Bytes>
struct Vec {
  using F32 __attribute__((vector_size(Bytes))) = float;
  using U64 __attribute__((vector_size(Bytes))) = std::uint64_t;
  using U32 __attribute__((vector_size(Bytes))) = std::uint32_t;
  using I32 __attribute__((vector_size(Bytes))) = std::int32_t;
  using U16 __attribute__((vector_size(Bytes))) = std::uint16_t;
  using I16 __attribute__((vector_size(Bytes))) = std::int16_t;
  using U8 __attribute__((vector_size(Bytes))) = std::uint8_t;
  using I8 __attribute__((vector_size(Bytes))) = std::int8_t;
  using Half __attribute__((vector_size(Bytes / 2))) = std::uint16_t;  // as many 16-bit words as F32 has floats
};
template <typename F>
using Bits = typename Vec<sizeof(F)>::U32;

template <typename V, typename T>
inline V load(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <typename V, typename T>
inline void store(T* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

// x - 0 is x; x + 0 would be an addition, since it turns -0 into +0.
template <typename F>
inline F splat(float x) {
  return x - F{};
}

// The larger; b if either is NaN.
template <typename F>
inline F max(F a, F b) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(F) == 64) return _mm512_max_ps(a, b);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(F) == 32) return _mm256_max_ps(a, b);
#endif
  return a > b ? a : b;
}

// Some bit of some lane is set.
template <typename V>
inline bool any(V v) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64) return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) return _mm256_testz_si256((__m256i)v, (__m256i)v) == 0;
#endif
  std::uint64_t parts[sizeof(V) / 8], all = 0;
  std::memcpy(parts, &v, sizeof v);
  for (std::uint64_t part : parts) all |= part;
  return all != 0;
}

// 16-bit words to 32 bits, filled with zeros.
template <typename U>
inline U widen(typename Vec<sizeof(U)>::Half words) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(U) == 64) return (U)_mm512_cvtepu16_epi32((__m256i)words);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(U) == 32) return (U)_mm256_cvtepu16_epi32((__m128i)words);
#endif
  return __builtin_convertvector(words, U);
}

// Bytes to 32 bits, filled with their sign.
template <typename I>
inline I widen_codes(const std::uint8_t* p) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(I) == 64) return (I)_mm512_cvtepi8_epi32(load<__m128i>(p));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(I) == 32) return (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#endif
  if constexpr (sizeof(I) == 16) {
    const auto codes = (Vec<16>::I8)(Bits<I>{} + load<std::uint32_t>(p));
    return (I)__builtin_shufflevector(codes, codes, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3) >> 24;
  }
}

// 2^x for x up to about 100, relative error 2e-7. NaN stays NaN, x <= -127 gives exactly 0: there the exponent's integer
// addition ends at a zero bit pattern.
template <typename F>
inline F exp2(F x) {
  const F magic = splat<F>(0x1.8p23f);
  x = max(splat<F>(-127.0f), x);
  const F shifted = x + magic;  // the integer nearest to x, in the low bits
  const F f = x - (shifted - magic);
  F p = splat<F>(1.32647202e-3f);
  p = p * f + splat<F>(9.67151314e-3f);
  p = p * f + splat<F>(5.55073377e-2f);
  p = p * f + splat<F>(2.40222421e-1f);
  p = p * f + splat<F>(6.93146978e-1f);
  p = p * f + splat<F>(1.0f);
  return (F)((Bits<F>)p + ((Bits<F>)shifted << 23));
}

// m = -inf (nothing seen, or scores of -inf only) must not meet itself in a subtraction: 0 stands in for it.
template <typename F>
inline F finite(F m) {
  return m == splat<F>(-__builtin_inff()) ? F{} : m;
}

// bf16 or fp16 words to floats.
template <typename F>
inline F bf16_to_f32(typename Vec<sizeof(F)>::Half words) {
  return (F)(widen<Bits<F>>(words) << 16);
}
template <typename F>
inline F f16_to_f32(typename Vec<sizeof(F)>::Half words) {
  using U = Bits<F>;
  const U w = widen<U>(words);
  const U sign = (w & 0x8000u) << 16, magnitude = (w & 0x7fffu) << 13;
  // Subnormals come out right by themselves: the float 2^112 too small is a float subnormal, and the product is exact.
  const F value = (F)magnitude * 0x1p112f;
  return (F)((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : (U)value) | sign);
}

// Back, rounding to nearest even; as in core/number.h. The word is in the low half of each lane.
template <typename F>
inline Bits<F> f32_to_bf16(F x) {
  using U = Bits<F>;
  const U bits = (U)x;
  return x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u;
}
template <typename F>
inline Bits<F> f32_to_f16(F x) {
  using U = Bits<F>;
  const U bits = (U)x;
  const U sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const U normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Adding 0.5 puts the last fp16 bit on the last float bit, so the adder itself rounds.
  const U small = (U)((F)magnitude + 0.5f) - 0x3f000000u;
  U half = magnitude >= 0x38800000u ? normal : small;
  half = magnitude >= 0x477ff000u ? U{} + 0x7c00u : half;
  half = magnitude > 0x7f800000u ? U{} + 0x7e00u : half;
  return half | sign;
}

}  // namespace
}  // namespace pasa::cpu
