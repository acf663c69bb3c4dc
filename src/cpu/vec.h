// The words of the fp32 kernel: one vector of kLanes floats, as wide as the including file's flags allow, and the few
// operations on it. They are compiler vectors, so the same lines become AVX-512, AVX2, SSE2 or NEON instructions.
// Everything is in an unnamed namespace: each instruction set has a copy of its own.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace pasa::cpu {
namespace {

#if defined(__AVX512BW__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;

using F32 __attribute__((vector_size(kVectorBytes))) = float;
using U32 __attribute__((vector_size(kVectorBytes))) = std::uint32_t;
using I32 __attribute__((vector_size(kVectorBytes))) = std::int32_t;
using U8 __attribute__((vector_size(kVectorBytes))) = std::uint8_t;
using I8 __attribute__((vector_size(kVectorBytes))) = std::int8_t;
using U16 __attribute__((vector_size(kVectorBytes / 2))) = std::uint16_t;

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
inline F32 splat(float x) { return x - F32{}; }  // x + 0 would be an addition: it turns -0 into +0
inline U32 splat(std::uint32_t x) { return U32{} + x; }

// Four words that compilers do not find by themselves:
//   max(a, b)        the larger; b if either is NaN
//   any(mask)        some lane is not 0
//   widen(words)     kLanes 16-bit words, zero-extended
//   widen_codes(p)   kLanes bytes at p, sign-extended
#if defined(__AVX512BW__)
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline bool any(I32 mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
inline U32 widen(U16 words) { return (U32)_mm512_cvtepu16_epi32((__m256i)words); }
inline I32 widen_codes(const std::uint8_t* p) { return (I32)_mm512_cvtepi8_epi32(load<__m128i>(p)); }
#elif defined(__AVX2__)
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline bool any(I32 mask) { return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0; }
inline U32 widen(U16 words) { return (U32)_mm256_cvtepu16_epi32((__m128i)words); }
inline I32 widen_codes(const std::uint8_t* p) { return (I32)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
#else
inline F32 max(F32 a, F32 b) { return a > b ? a : b; }
inline bool any(I32 mask) {
  std::uint64_t halves[2];
  std::memcpy(halves, &mask, sizeof halves);
  return (halves[0] | halves[1]) != 0;
}
inline U32 widen(U16 words) { return __builtin_convertvector(words, U32); }
inline I32 widen_codes(const std::uint8_t* p) {
  const I8 codes = (I8)(U32{} + load<std::uint32_t>(p));
  return (I32)__builtin_shufflevector(codes, codes, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3) >> 24;
}
#endif

// 2^x for x up to about 100, relative error 2e-7. NaN stays NaN, x <= -127 gives exactly 0: there the exponent's integer
// addition ends at a zero bit pattern.
inline F32 exp2(F32 x) {
  const F32 magic = splat(0x1.8p23f);
  x = max(splat(-127.0f), x);
  const F32 shifted = x + magic;  // the integer nearest to x, in the low bits
  const F32 f = x - (shifted - magic);
  F32 p = splat(1.32647202e-3f);
  p = p * f + splat(9.67151314e-3f);
  p = p * f + splat(5.55073377e-2f);
  p = p * f + splat(2.40222421e-1f);
  p = p * f + splat(6.93146978e-1f);
  p = p * f + splat(1.0f);
  return (F32)((U32)(p) + ((U32)(shifted) << 23));
}

// kLanes bf16 or fp16 words to floats.
inline F32 bf16_to_f32(U16 words) { return (F32)(widen(words) << 16); }
inline F32 f16_to_f32(U16 words) {
  const U32 w = widen(words);
  const U32 sign = (w & 0x8000u) << 16, magnitude = (w & 0x7fffu) << 13;
  // Subnormals come out right by themselves: the float 2^112 too small is a float subnormal, and the product is exact.
  const F32 value = (F32)(magnitude) * 0x1p112f;
  const U32 bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : (U32)(value);
  return (F32)(bits | sign);
}

// Back, rounding to nearest even; as in core/number.h.
inline U16 f32_to_bf16(F32 x) {
  const U32 bits = (U32)(x);
  const U32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return __builtin_convertvector(x == x ? rounded : (bits >> 16) | 0x40u, U16);
}
inline U16 f32_to_f16(F32 x) {
  const U32 bits = (U32)(x);
  const U32 sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const U32 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Adding 0.5 puts the last fp16 bit on the last float bit, so the adder itself rounds.
  const U32 small = (U32)((F32)(magnitude) + 0.5f) - 0x3f000000u;
  U32 half = magnitude >= 0x38800000u ? normal : small;
  half = magnitude >= 0x477ff000u ? splat(0x7c00u) : half;
  half = magnitude > 0x7f800000u ? splat(0x7e00u) : half;
  return __builtin_convertvector(half | sign, U16);
}

}  // namespace
}  // namespace pasa::cpu
