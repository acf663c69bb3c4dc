// The emulator, one instruction at a time: every kernel of instructions.s on random data against a plain formula, and the
// kernels with a mistake, which must be reported. The formulas are written from the ISA, not from the emulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "core/number.h"
#include "tools/gfx950emu/gfx950emu.h"

namespace {

using pasa::bf16_to_float;
using pasa::f16_to_float;
using pasa::float_to_bf16;
using pasa::float_to_f16;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;

float f(u32 x) { return std::bit_cast<float>(x); }
u32 u(float x) { return std::bit_cast<u32>(x); }
float fp8(u32 x) { return pasa::fp8_to_float(pasa::Fp8::kE4m3fn, static_cast<std::uint8_t>(x)); }

// Dwords of a wave: [lane][k].
struct Matrix {
  Matrix(int lanes, int per_lane) : per(per_lane), data(static_cast<std::size_t>(lanes * per_lane)) {}
  int per;
  std::vector<u32> data;
  u32& operator()(int lane, int k = 0) { return data[static_cast<std::size_t>(lane * per + k)]; }
  u32 operator()(int lane, int k = 0) const { return data[static_cast<std::size_t>(lane * per + k)]; }
  // The wave's memory as bytes or halfwords.
  u32 byte(int at) const { return data[static_cast<std::size_t>(at / 4)] >> (8 * (at % 4)) & 0xff; }
  u32 half(int at) const { return data[static_cast<std::size_t>(at / 2)] >> (16 * (at % 2)) & 0xffff; }
};

// kBf16, kF16, kFp8: every 16 or 8 bits are a number of ordinary size, and so is the dword as a float. kSmall: 0..31.
enum class Data { kBits, kFloats, kBf16, kF16, kFp8, kSmall };

Matrix make_input(int lanes, int per, Data kind, u32 seed) {
  std::mt19937 random(seed);
  Matrix m(lanes, per);
  for (u32& x : m.data) {
    x = static_cast<u32>(random());
    if (kind == Data::kFloats) x = (x & 0x807fffff) | static_cast<u32>(120 + random() % 14) << 23;
    const auto exponent = static_cast<u32>(random() % 8);
    if (kind == Data::kBf16) x = (x & 0x807f807f) | (122 + exponent) * 0x800080;
    if (kind == Data::kF16) x = (x & 0x83ff83ff) | (11 + exponent) * 0x4000400;
    if (kind == Data::kFp8) x &= 0xb7b7b7b7;  // no NaN code
    if (kind == Data::kSmall) x &= 0x1f;
  }
  return m;
}

gfx950emu::Program& program() {
  static gfx950emu::Program p = gfx950emu::Program::from_file(PASA_INSTRUCTIONS);
  return p;
}

gfx950emu::Stats run(const std::string& kernel, const Matrix& in, Matrix& out, u32 lanes = 64,
                     gfx950emu::Options options = {}) {
  const u32* pointers[] = {in.data.data(), out.data.data()};
  const auto range = [](const Matrix& m) {
    const auto begin = reinterpret_cast<u64>(m.data.data());
    return gfx950emu::Range{begin, begin + 4 * m.data.size()};
  };
  const gfx950emu::Range ranges[] = {range(in), range(out)};
  return program().launch(kernel, std::as_bytes(std::span(pointers)), {}, {lanes}, ranges, options);
}

// Formula: the whole wave's inputs -> lane l's outputs.
struct Unit {
  const char* kernel;
  int in, out;
  Data data;
  std::function<void(const Matrix&, int, u32*)> formula;
  double tolerance = 0;  // relative, on floats; 0: the same bits
};

u64 pair(const Matrix& m, int l, int k) { return m(l, k) | u64{m(l, k + 1)} << 32; }
void put64(u32* r, u64 x) {
  r[0] = static_cast<u32>(x);
  r[1] = static_cast<u32>(x >> 32);
}
u32 pack(float a, float b) { return float_to_bf16(a) | u32{float_to_bf16(b)} << 16; }
float scale_of(u32 x) { return pasa::ue8m0_to_float(static_cast<std::uint8_t>(x >> 23)); }

// D = A B + C by the layouts of the ISA; element(first dword, lane, e) reads a fragment's element.
using Element = float (*)(const Matrix&, int, int, int);
float bf16_element(const Matrix& m, int lane, int first, int e) {
  return bf16_to_float(static_cast<u16>(m(lane, first + e / 2) >> (16 * (e % 2))));
}
float f16_element(const Matrix& m, int lane, int first, int e) {
  return f16_to_float(static_cast<u16>(m(lane, first + e / 2) >> (16 * (e % 2))));
}
float fp8_element(const Matrix& m, int lane, int first, int e) { return fp8(m(lane, first + e / 4) >> (8 * (e % 4))); }
auto matrix_formula(int rows, int depth, int dwords, Element element) {
  return [=](const Matrix& m, int l, u32* r) {
    const int in_lane = depth * rows / 64, results = rows * rows / 64;
    for (int q = 0; q < results; ++q) {
      const int row = rows == 16 ? 4 * (l / 16) + q : 8 * (q / 4) + 4 * (l / 32) + q % 4, column = l % rows;
      double sum = static_cast<double>(f(m(l, 2 * dwords + q)));
      for (int k = 0; k < depth; ++k) {
        const int group = k / in_lane * rows, e = k % in_lane;
        sum += static_cast<double>(element(m, row + group, 0, e)) *
               static_cast<double>(element(m, column + group, dwords, e));
      }
      r[q] = u(static_cast<float>(sum));
    }
  };
}

template <typename F>
auto lanewise(F formula) {  // r[0] = formula(inputs of the lane)
  return [formula](const Matrix& m, int l, u32* r) { r[0] = formula(m, l); };
}

template <typename F>
auto mask(F holds) {  // of a comparison, over the wave
  return [holds](const Matrix& m, int, u32* r) {
    u64 bits = 0;
    for (int l = 0; l < 64; ++l) bits |= static_cast<u64>(holds(m, l)) << l;
    put64(r, bits);
  };
}
i32 i24(u32 x) { return static_cast<i32>(x << 8) >> 8; }

const std::vector<Unit>& units() {
  static const std::vector<Unit> all = {
      {"mov", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l); })},
      {"bitop3", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return (m(l, 0) & m(l, 1)) ^ m(l, 2); })},
      {"perm", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         u32 r = 0;
         for (int k = 0; k < 4; ++k) {
           const u32 s = m(l, 2) >> (8 * k) & 0xff;
           const u64 bytes = u64{m(l, 0)} << 32 | m(l, 1);
           u32 byte = s > 12 ? 0xff : 0;
           if (s < 8) byte = static_cast<u32>(bytes >> (8 * s)) & 0xff;
           if (s >= 8 && s < 12) byte = bytes >> (16 * (s - 8) + 15) & 1 ? 0xff : 0;
           r |= byte << (8 * k);
         }
         return r;
       })},
      {"pack_f16", 2, 1, Data::kBits,
       lanewise([](const Matrix& m, int l) { return m(l, 0) >> 16 | m(l, 1) << 16; })},
      {"bfrev", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         u32 r = 0;
         for (int k = 0; k < 32; ++k) r = r << 1 | (m(l) >> k & 1);
         return r;
       })},
      {"bfi", 3, 1, Data::kBits,
       lanewise([](const Matrix& m, int l) { return (m(l, 0) & m(l, 1)) | (~m(l, 0) & m(l, 2)); })},
      {"and_or", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return (m(l, 0) & m(l, 1)) | m(l, 2); })},
      {"bfe_u32", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l) >> 5 & 127; })},
      {"bfe_i32", 1, 1, Data::kBits,
       lanewise([](const Matrix& m, int l) { return static_cast<u32>(static_cast<i32>(m(l) << 20) >> 25); })},
      {"ashr", 2, 1, Data::kBits,
       lanewise([](const Matrix& m, int l) { return static_cast<u32>(static_cast<i32>(m(l, 1)) >> (m(l, 0) & 31)); })},
      {"mul_hi", 2, 1, Data::kBits,
       lanewise([](const Matrix& m, int l) { return static_cast<u32>(u64{m(l, 0)} * m(l, 1) >> 32); })},
      {"lshl_add", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return 8 * m(l, 0) + m(l, 2); })},
      {"mad_u64", 4, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) { put64(r, u64{m(l, 0)} * m(l, 1) + pair(m, l, 2)); }},
      {"lshr_b64", 3, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { put64(r, pair(m, l, 0) >> (m(l, 2) & 63)); }},
      {"prng", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l) << 1 ^ (m(l) >> 31 ? 197u : 0); })},
      {"pk_ashr_i16", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         const auto shift = [](u32 x) { return static_cast<u16>(static_cast<std::int16_t>(x) >> 4); };
         return shift(m(l)) | u32{shift(m(l) >> 16)} << 16;
       })},
      {"pk_min_u16", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         const u32 a = m(l, 0), b = m(l, 1);
         return std::min(a & 0xffff, b & 0xffff) | std::min(a >> 16, b >> 16) << 16;
       })},
      {"pk_min_i16", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         const auto least = [](u32 a, u32 b) { return static_cast<std::int16_t>(a) < static_cast<std::int16_t>(b) ? a : b; };
         return (least(m(l, 0), m(l, 1)) & 0xffff) | least(m(l, 0) >> 16, m(l, 1) >> 16) << 16;
       })},
      {"fma", 3, 1, Data::kFloats,
       lanewise([](const Matrix& m, int l) { return u(std::fma(-f(m(l, 0)), std::fabs(f(m(l, 1))), f(m(l, 2)))); })},
      {"med3", 3, 1, Data::kFloats, lanewise([](const Matrix& m, int l) {
         float x[] = {f(m(l, 0)), f(m(l, 1)), f(m(l, 2))};
         std::sort(x, x + 3);
         return u(x[1]);
       })},
      {"max3", 3, 1, Data::kFloats,
       lanewise([](const Matrix& m, int l) { return u(std::max({f(m(l, 0)), f(m(l, 1)), f(m(l, 2))})); })},
      {"maximum3", 3, 1, Data::kFloats,
       lanewise([](const Matrix& m, int l) { return u(std::max({f(m(l, 0)), f(m(l, 1)), f(m(l, 2))})); })},
      {"pk_fma", 6, 2, Data::kFloats,
       [](const Matrix& m, int l, u32* r) {  // both halves take the low half of -operand 2
         for (int k = 0; k < 2; ++k) r[k] = u(std::fma(f(m(l, k)), -f(m(l, 2)), f(m(l, 4 + k))));
       }},
      {"pk_mul", 4, 2, Data::kFloats,
       [](const Matrix& m, int l, u32* r) {
         for (int k = 0; k < 2; ++k) r[k] = u(f(m(l, k)) * f(m(l, 3)));
       }},
      {"exp", 1, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(std::exp2(f(m(l)))); }), 1e-6},
      {"log", 1, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(std::log2(std::fabs(f(m(l))))); }),
       1e-6},
      {"rcp", 1, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(1.0f / f(m(l))); }), 1e-6},
      {"ldexp", 1, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(f(m(l)) / 128); })},
      {"fma_mix", 3, 1, Data::kFloats, lanewise([](const Matrix& m, int l) {
         return u(std::fma(f16_to_float(static_cast<u16>(m(l, 0) >> 16)), f(m(l, 1)), f(m(l, 2))));
       })},
      {"cvt_pk_bf16", 2, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return pack(f(m(l, 0)), f(m(l, 1))); })},
      {"cvt_f32_f16", 1, 1, Data::kFloats,
       lanewise([](const Matrix& m, int l) { return u(f16_to_float(static_cast<u16>(m(l)))); })},
      {"cvt_f32_fp8", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return u(fp8(m(l) >> 16)); })},
      {"cvt_pk_f32_fp8", 1, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) {
         r[0] = u(fp8(m(l) >> 16));
         r[1] = u(fp8(m(l) >> 24));
       }},
      {"scaled_bf16_fp8", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         const float s = scale_of(m(l, 1));
         return pack(fp8(m(l, 0) >> 16) * s, fp8(m(l, 0) >> 24) * s);
       })},
      {"scaled_f32_fp8", 2, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) {
         r[0] = u(fp8(m(l, 0)) * scale_of(m(l, 1)));
         r[1] = u(fp8(m(l, 0) >> 8) * scale_of(m(l, 1)));
       }},
      {"and", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 0) & m(l, 1); })},
      {"or", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 0) | m(l, 1); })},
      {"or3", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 0) | m(l, 1) | m(l, 2); })},
      {"not", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return ~m(l); })},
      {"lshl_or", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 0) << 5 | m(l, 2); })},
      {"xad", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return (m(l, 0) ^ m(l, 1)) + m(l, 2); })},
      {"add3", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 0) + m(l, 1) + m(l, 2); })},
      {"add_lshl", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return (m(l, 0) + m(l, 1)) << 3; })},
      {"subrev", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 1) - m(l, 0); })},
      {"sub_u16", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return (m(l, 0) - m(l, 1)) & 0xffff; })},
      {"mul_lo", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 0) * m(l, 1); })},
      {"mul_lo_u16", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l, 0) * m(l, 1) & 0xffff; })},
      {"mul_i24", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return u32(i24(m(l, 0)) * i24(m(l, 1))); })},
      {"mad_i24", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return u32(i24(m(l, 0)) * i24(m(l, 1)) + m(l, 2)); })},
      {"mad_u24", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return (m(l, 0) & 0xffffff) * (m(l, 1) & 0xffffff) + m(l, 2); })},
      {"mad_i64", 4, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { put64(r, static_cast<u64>(std::int64_t{i32(m(l, 0))} * i32(m(l, 1))) + pair(m, l, 2)); }},
      {"min_i32", 2, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return u32(std::min(i32(m(l, 0)), i32(m(l, 1)))); })},
      {"lshl_b64", 3, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { put64(r, pair(m, l, 0) << (m(l, 2) & 63)); }},
      {"lshl_add_u64", 4, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { put64(r, (pair(m, l, 0) << 3) + pair(m, l, 2)); }},
      {"mov_b64", 2, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { put64(r, pair(m, l, 0)); }},
      {"pk_mov", 4, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { r[0] = m(l, 1), r[1] = m(l, 2); }},
      {"add", 2, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(f(m(l, 0)) - f(m(l, 1))); })},
      {"sub", 2, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(std::fabs(f(m(l, 0))) - f(m(l, 1))); })},
      {"mul", 2, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(f(m(l, 0)) * f(m(l, 1)) * 2); })},
      {"max", 2, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(std::max(f(m(l, 0)), f(m(l, 1)))); })},
      {"pk_add", 4, 2, Data::kFloats, [](const Matrix& m, int l, u32* r) { r[0] = u(f(m(l, 0)) - f(m(l, 2))), r[1] = u(f(m(l, 1)) + f(m(l, 3))); }},
      {"cvt_f16", 1, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u32{float_to_f16(f(m(l)))}; })},
      {"cvt_pk_f16", 2, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return float_to_f16(f(m(l, 0))) | u32{float_to_f16(f(m(l, 1)))} << 16; })},
      {"mfma_16x16x16_bf16", 8, 4, Data::kBf16, matrix_formula(16, 16, 2, bf16_element), 1e-5},
      {"mfma_16x16x16_f16", 8, 4, Data::kF16, matrix_formula(16, 16, 2, f16_element), 1e-5},
      {"fmac", 3, 1, Data::kFloats, lanewise([](const Matrix& m, int l) { return u(std::fma(f(m(l, 0)), f(m(l, 1)), f(m(l, 2)))); })},
      {"agpr", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l); })},
      {"readfirstlane", 1, 1, Data::kBits, lanewise([](const Matrix& m, int) { return m(6); })},
      {"cmp_eq_f32", 2, 2, Data::kBits, mask([](const Matrix& m, int l) { return f(m(l, 0)) == f(m(l, 1)); })},
      {"cmp_neq_f32", 2, 2, Data::kBits, mask([](const Matrix& m, int l) { return f(m(l, 0)) != f(m(l, 1)); })},
      {"cmp_lt_f32", 2, 2, Data::kBits, mask([](const Matrix& m, int l) { return f(m(l, 0)) < f(m(l, 1)); })},
      {"cmp_gt_f32", 2, 2, Data::kBits, mask([](const Matrix& m, int l) { return f(m(l, 0)) > f(m(l, 1)); })},
      {"cmp_u_f32", 2, 2, Data::kBits, mask([](const Matrix& m, int l) { return std::isnan(f(m(l, 0))) || std::isnan(f(m(l, 1))); })},
      {"cmp_eq_u32", 2, 2, Data::kSmall, mask([](const Matrix& m, int l) { return m(l, 0) == m(l, 1); })},
      {"cmp_ne_u32", 2, 2, Data::kSmall, mask([](const Matrix& m, int l) { return m(l, 0) != m(l, 1); })},
      {"cmp_lt_u32", 2, 2, Data::kSmall, mask([](const Matrix& m, int l) { return m(l, 0) < m(l, 1); })},
      {"cmp_gt_u32", 2, 2, Data::kSmall, mask([](const Matrix& m, int l) { return m(l, 0) > m(l, 1); })},
      {"cmp_le_i32", 2, 2, Data::kBits, mask([](const Matrix& m, int l) { return i32(m(l, 0)) <= i32(m(l, 1)); })},
      {"cmp_gt_i32", 2, 2, Data::kBits, mask([](const Matrix& m, int l) { return i32(m(l, 0)) > i32(m(l, 1)); })},
      {"cmp_ne_u16", 2, 2, Data::kSmall, mask([](const Matrix& m, int l) { return (m(l, 0) & 0xffff) != (m(l, 1) & 0xffff); })},
      {"cmp_gt_i64", 4, 2, Data::kBits, mask([](const Matrix& m, int l) { return static_cast<std::int64_t>(pair(m, l, 0)) > static_cast<std::int64_t>(pair(m, l, 2)); })},
      {"cmp_lt_i64", 4, 2, Data::kBits, mask([](const Matrix& m, int l) { return static_cast<std::int64_t>(pair(m, l, 0)) < static_cast<std::int64_t>(pair(m, l, 2)); })},
      {"s_add", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) + m(0, 1)); })},
      {"s_sub", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) - m(0, 1)); })},
      {"s_mul", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) * m(0, 1)); })},
      {"s_mul_hi_u", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(u64{m(0, 0)} * m(0, 1) >> 32); })},
      {"s_mul_hi_i", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(std::int64_t{i32(m(0, 0))} * i32(m(0, 1)) >> 32); })},
      {"s_and", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) & m(0, 1)); })},
      {"s_or", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) | m(0, 1)); })},
      {"s_xor", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) ^ m(0, 1)); })},
      {"s_andn2", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) & ~m(0, 1)); })},
      {"s_not", 1, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(~m(0, 0)); })},
      {"s_lshl", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) << (m(0, 1) & 31)); })},
      {"s_lshr", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) >> (m(0, 1) & 31)); })},
      {"s_ashr", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(i32(m(0, 0)) >> (m(0, 1) & 31)); })},
      {"s_bfe", 1, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) >> 5 & 127); })},
      {"s_min_i", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(std::min(i32(m(0, 0)), i32(m(0, 1)))); })},
      {"s_max_i", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(std::max(i32(m(0, 0)), i32(m(0, 1)))); })},
      {"s_min_u", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(std::min(m(0, 0), m(0, 1))); })},
      {"s_lshl4_add", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32((m(0, 0) << 4) + m(0, 1)); })},
      {"s_brev", 1, 1, Data::kBits, lanewise([](const Matrix& m, int) {
         u32 r = 0;
         for (int k = 0; k < 32; ++k) r = r << 1 | (m(0) >> k & 1);
         return r;
       })},
      {"s_lshl_b64", 3, 2, Data::kBits,
       [](const Matrix& m, int, u32* r) { put64(r, pair(m, 0, 0) << (m(0, 2) & 63)); }},
      {"s_carry", 4, 2, Data::kBits, [](const Matrix& m, int, u32* r) { put64(r, pair(m, 0, 0) + pair(m, 0, 2)); }},
      {"s_lt_i", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(i32(m(0, 0)) < i32(m(0, 1))); })},
      {"s_ge_i", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(i32(m(0, 0)) >= i32(m(0, 1))); })},
      {"s_gt_i", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(i32(m(0, 0)) > i32(m(0, 1))); })},
      {"s_lt_u", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) < m(0, 1)); })},
      {"s_ge_u", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) >= m(0, 1)); })},
      {"s_eq_u", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) == m(0, 1)); })},
      {"s_lg_u", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) != m(0, 1)); })},
      {"s_eq_u64", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(true || m(0)); })},
      {"s_bit0", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(!(m(0, 0) >> (m(0, 1) & 31) & 1)); })},
      {"s_bit1", 2, 1, Data::kBits, lanewise([](const Matrix& m, int) { return u32(m(0, 0) >> (m(0, 1) & 31) & 1); })},
      {"lds_pairs", 2, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { r[0] = m(l, 1), r[1] = m(l, 0); }},
      {"lds_pairs_back", 2, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { r[0] = m(l, 1), r[1] = m(l, 0); }},
      {"lds_write2_b64", 4, 4, Data::kBits,
       [](const Matrix& m, int l, u32* r) {
         for (int k = 0; k < 4; ++k) r[k] = m(l, k ^ 2);
       }},
      {"lds_write2st64", 2, 2, Data::kBits, [](const Matrix& m, int l, u32* r) { put64(r, pair(m, l, 0)); }},
      {"lds_halves", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l) >> 16 | m(l) << 16; })},
      {"narrow_memory", 1, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) { r[0] = m(l) >> 24, r[1] = m(l) >> 8 & 0xffff; }},
      {"wide_memory", 4, 4, Data::kBits,
       [](const Matrix& m, int l, u32* r) {
         for (int k = 0; k < 4; ++k) r[k] = m(l, k ^ 2);
       }},
      {"cmp_class", 1, 2, Data::kBits,
       [](const Matrix& m, int, u32* r) {
         u64 mask = 0;
         for (int l = 0; l < 64; ++l) mask |= static_cast<u64>(std::isnan(f(m(l)))) << l;
         put64(r, mask);
       }},
      {"cndmask", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         return m(l, static_cast<i32>(m(l, 0)) < static_cast<i32>(m(l, 1)) ? 2 : 1);
       })},
      {"sdwa", 3, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         const auto byte = static_cast<u32>(static_cast<std::int8_t>(m(l, 0) >> 8));
         return (m(l, 1) & 0xffff) | byte << (m(l, 2) & 31) << 16;
       })},
      {"row_ror", 1, 1, Data::kBits,
       lanewise([](const Matrix& m, int l) { return m((l & ~15) + ((l - 5) & 15)); })},
      {"quad_perm", 2, 1, Data::kBits,  // rows 0 and 2 only
       lanewise([](const Matrix& m, int l) { return l / 16 % 2 ? m(l, 1) : m(l ^ 1, 0); })},
      {"row_bcast", 1, 1, Data::kBits,  // rows 1 and 3 take lane 15 of the row before
       lanewise([](const Matrix& m, int l) { return l / 16 % 2 ? m(l) + m((l & ~15) - 1) : m(l); })},
      {"permlane32", 2, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) {
         r[0] = l < 32 ? m(l, 0) : m(l - 32, 1);
         r[1] = l < 32 ? m(l + 32, 0) : m(l, 1);
       }},
      {"permlane16", 2, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) {
         r[0] = l & 16 ? m(l - 16, 1) : m(l, 0);
         r[1] = l & 16 ? m(l, 1) : m(l + 16, 0);
       }},
      {"readlane", 1, 1, Data::kBits, lanewise([](const Matrix& m, int) { return m(37); })},
      {"mbcnt", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) {
         u32 n = 0;
         for (int k = 0; k < l; ++k) n += static_cast<i32>(m(k)) > 0;
         return n;
       })},
      {"bpermute", 2, 1, Data::kBits,
       lanewise([](const Matrix& m, int l) { return m(static_cast<int>(m(l, 0) / 4 % 64), 1); })},
      {"swizzle", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return m(l ^ 16); })},
      {"mfma_16x16x32_bf16", 12, 4, Data::kBf16, matrix_formula(16, 32, 4, bf16_element), 1e-5},
      {"mfma_32x32x16_bf16", 24, 16, Data::kBf16, matrix_formula(32, 16, 4, bf16_element), 1e-5},
      {"mfma_16x16x32_f16", 12, 4, Data::kF16, matrix_formula(16, 32, 4, f16_element), 1e-5},
      {"mfma_16x16x32_fp8", 8, 4, Data::kFp8, matrix_formula(16, 32, 2, fp8_element), 1e-5},
      {"lds_read2", 4, 4, Data::kBits,
       [](const Matrix& m, int l, u32* r) {  // 16-byte blocks are exchanged by pairs of lanes, their halves swapped
         for (int k = 0; k < 4; ++k) r[k] = m(l ^ 1, k ^ 2);
       }},
      {"lds_tr_b16", 2, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) {  // 16 lanes hold 4 rows of 16 halfwords
         for (int j = 0; j < 4; ++j) {
           const u32 x = m.half((l & ~15) * 4 + 16 * j + l % 16);
           r[j / 2] = j % 2 ? r[j / 2] | x << 16 : x;
         }
       }},
      {"lds_tr_b8", 2, 2, Data::kBits,
       [](const Matrix& m, int l, u32* r) {  // 16 lanes hold 8 rows of 16 bytes
         for (int j = 0; j < 8; ++j) {
           const u32 x = m.byte((l & ~15) * 8 + 16 * j + l % 16);
           r[j / 4] = j % 4 ? r[j / 4] | x << (8 * (j % 4)) : x;
         }
       }},
      {"load_to_lds", 4, 4, Data::kBits,
       [](const Matrix& m, int l, u32* r) {
         for (int k = 0; k < 4; ++k) r[k] = m(63 - l, k);
       }},
      {"buffer_load", 1, 1, Data::kBits, lanewise([](const Matrix& m, int l) { return l < 50 ? m(l) : 0; })},
  };
  return all;
}

TEST(Emulator, Instructions) {
  for (const Unit& unit : units()) {
    SCOPED_TRACE(unit.kernel);
    for (u32 seed = 1; seed <= 3; ++seed) {
      const Matrix in = make_input(64, unit.in, unit.data, seed);
      Matrix out(64, unit.out);
      ASSERT_NO_THROW(run(unit.kernel, in, out));
      for (int l = 0; l < 64; ++l) {
        u32 want[16] = {};
        unit.formula(in, l, want);
        for (int k = 0; k < unit.out; ++k) {
          const float got_float = f(out(l, k)), want_float = f(want[k]);
          if (unit.tolerance > 0) {
            ASSERT_NEAR(got_float, want_float, unit.tolerance * std::max(1.0f, std::fabs(want_float))) << "lane " << l;
          } else if (!(std::isnan(got_float) && std::isnan(want_float))) {
            ASSERT_EQ(out(l, k), want[k]) << "lane " << l << ", output " << k;
          }
        }
      }
    }
  }
}

std::string failure(const std::string& kernel, int in, int out, u32 lanes = 64) {
  const Matrix input = make_input(static_cast<int>(lanes), in, Data::kSmall, 5);
  Matrix output(static_cast<int>(lanes), out);
  try {
    run(kernel, input, output, lanes);
  } catch (const gfx950emu::Error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulator, FindsMissingWaits) {
  EXPECT_NE(failure("bad_wait", 1, 1).find("register used while its load is in flight"), std::string::npos);
  EXPECT_NE(failure("bad_lds_wait", 1, 1).find("register used while its load is in flight"), std::string::npos);
  EXPECT_NE(failure("bad_scalar_wait", 1, 1).find("scalar register used"), std::string::npos);
  EXPECT_NE(failure("bad_direct_load", 4, 1).find("direct load into it is in flight"), std::string::npos);
}

TEST(Emulator, FindsBadAddresses) {
  EXPECT_NE(failure("bad_address", 1, 1).find("outside all buffers"), std::string::npos);
  EXPECT_NE(failure("bad_lds_address", 1, 1).find("LDS access past the end"), std::string::npos);
}

TEST(Emulator, FindsRaces) {
  EXPECT_NE(failure("bad_race", 1, 1, 128).find("LDS write/write race"), std::string::npos);
  const std::string read = failure("bad_race_read", 1, 1, 128);
  EXPECT_TRUE(read.find("race") != std::string::npos) << read;
  EXPECT_EQ(failure("good_exchange", 1, 1, 128), "");
}

TEST(Emulator, FindsMatrixHazards) {
  EXPECT_NE(failure("bad_mfma_use", 12, 4).find("MFMA result used after 7 of 8 wait states"), std::string::npos);
  EXPECT_EQ(failure("good_mfma_use", 12, 4), "");
  EXPECT_EQ(failure("good_mfma_chain", 12, 4), "");
}

TEST(Emulator, FindsAddressesTooEarly) {
  EXPECT_NE(failure("bad_scalar_address", 1, 1).find("used as an address after 4 of 5 wait states"), std::string::npos);
  EXPECT_EQ(failure("good_scalar_address", 1, 1), "");
}

TEST(Emulator, PreloadsArguments) {
  for (const bool preload : {true, false}) {
    const Matrix in = make_input(64, 1, Data::kBits, 3);
    Matrix out(64, 1);
    gfx950emu::Options options;
    options.preload = preload;
    const gfx950emu::Stats stats = run("preloaded", in, out, 64, options);
    EXPECT_EQ(out.data, in.data);
    EXPECT_EQ(stats.by_name.contains("s_load_dwordx2"), !preload);
  }
}

TEST(Emulator, NamesWhatItLacks) {
  EXPECT_NE(failure("bad_unknown", 1, 1).find("instruction not implemented"), std::string::npos);
  EXPECT_EQ(program().missing(), (std::map<std::string, int>{{"v_sin_f32", 1}}));
  EXPECT_NE(failure("no_such_kernel", 1, 1).find("no kernel 'no_such_kernel'"), std::string::npos);
}

TEST(Emulator, CountsBankConflicts) {
  const Matrix in(64, 1);
  Matrix out(64, 1);
  const gfx950emu::Stats stats = run("banks", in, out);  // 64 dwords, 256 bytes apart: all in one bank
  EXPECT_EQ(stats.lds_clocks, 2u * 64);
  EXPECT_EQ(stats.lds_ideal_clocks, 2u);
  EXPECT_EQ(stats.lds_bytes, 256u);
  EXPECT_EQ(stats[gfx950emu::Class::kLds], 1u);
  EXPECT_EQ(stats[gfx950emu::Class::kMemory], 2u);
}

}  // namespace
