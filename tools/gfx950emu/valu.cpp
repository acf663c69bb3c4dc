// Vector ALU instructions. Each is a function of one lane's operands, lifted to 64 lanes by one of the templates below,
// which also apply what an encoding can add: DPP (operand 1 comes from another lane), SDWA (parts of a dword), negation,
// absolute value, output scaling.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/number.h"
#include "machine.h"

namespace gfx950emu {

using pasa::bf16_to_float;
using pasa::f16_to_float;
using pasa::float_to_bf16;
using pasa::float_to_f16;

u32 scalar32(const Wave& w, const Operand& o) {
  switch (o.kind) {
    case Operand::kScalar:
      return w.s[o.index];
    case Operand::kLiteral:
      return o.literal32;
    case Operand::kVector:
      return w.v[o.index][0];
    case Operand::kScc:
      return w.scc;
    case Operand::kNone:
      break;
  }
  return 0;
}

u64 scalar64(const Wave& w, const Operand& o) {
  if (o.kind == Operand::kScalar) return o.count > 1 ? w.s64(o.index) : w.s[o.index];
  return o.kind == Operand::kLiteral ? o.literal : 0;
}

u32 lane32(const Wave& w, const Operand& o, int lane) {
  return o.kind == Operand::kVector ? w.v[o.index][lane] : scalar32(w, o);
}

u64 lane64(const Wave& w, const Operand& o, int lane) {
  if (o.kind != Operand::kVector) return scalar64(w, o);
  return o.count > 1 ? w.v[o.index][lane] | static_cast<u64>(w.v[o.index + 1][lane]) << 32 : w.v[o.index][lane];
}

void write_vector(Wave& w, int index, const u32* values, u64 mask) {
  if (mask == ~u64{0}) {
    std::memcpy(w.v[index], values, sizeof w.v[index]);
    return;
  }
  for (int l = 0; l < kLanes; ++l) {
    if (mask >> l & 1) w.v[index][l] = values[l];
  }
}

namespace {

// ---- DPP -------------------------------------------------------------------------------------------------------------

constexpr u8 kNoSource = 254, kMasked = 255;

// The source lane of each lane; kNoSource where it is out of range or switched off, kMasked where a mask says no.
void dpp_sources(const Wave& w, const Inst& inst, u8* from) {
  const int control = inst.dpp;
  for (int l = 0; l < kLanes; ++l) {
    const int row = l & ~15, k = l & 15, n = control & 15;
    int s = l;
    bool valid = true;
    if (control < 0x100) {
      s = (l & ~3) + (control >> (2 * (l & 3)) & 3);
    } else if (control < 0x110) {
      s = l + n;
      valid = k + n < 16;
    } else if (control < 0x120) {
      s = l - n;
      valid = k >= n;
    } else if (control < 0x130) {
      s = row + ((k - n) & 15);
    } else if (control == 0x130) {
      s = l + 1;
      valid = l < 63;
    } else if (control == 0x134) {
      s = (l + 1) & 63;
    } else if (control == 0x138) {
      s = l - 1;
      valid = l > 0;
    } else if (control == 0x13c) {
      s = (l - 1) & 63;
    } else if (control == 0x140) {
      s = row + 15 - k;
    } else if (control == 0x141) {
      s = row + (k & 8) + 7 - (k & 7);
    } else if (control == 0x142) {
      s = row - 1;
      valid = l >= 16;
    } else if (control == 0x143) {
      s = 31;
      valid = l >= 32;
    } else if (control >= 0x150 && control < 0x160) {
      s = row + n;
    } else {
      finding(inst, "DPP control not implemented");
    }
    if (!(inst.row_mask >> (l >> 4) & 1) || !(inst.bank_mask >> (l >> 2 & 3) & 1)) {
      from[l] = kMasked;
    } else {
      from[l] = valid && w.active(s) ? static_cast<u8>(s) : kNoSource;
    }
  }
}

// Lanes that an instruction writes.
u64 write_mask(const Wave& w, const Inst& inst) {
  u64 mask = w.exec();
  if (inst.dpp < 0) return mask;
  u8 from[kLanes];
  dpp_sources(w, inst, from);
  for (int l = 0; l < kLanes; ++l) {
    if (from[l] == kMasked || (from[l] == kNoSource && !inst.bound_control)) mask &= ~(u64{1} << l);
  }
  return mask;
}

// ---- operands and results --------------------------------------------------------------------------------------------

u32 select(u32 x, int which, bool sign) {
  if (which < 4) return sign ? static_cast<u32>(static_cast<i8>(x >> (8 * which))) : x >> (8 * which) & 0xff;
  if (which < 6) {
    const u32 word = x >> (16 * (which - 4)) & 0xffff;
    return sign ? static_cast<u32>(static_cast<i16>(word)) : word;
  }
  return x;
}

// 64 values of operand k; `space` is where they go if they are not simply a register's.
struct Lanes {
  u32 space[kLanes];
  const u32* values;
  u32 operator[](int l) const { return values[l]; }
};

void load(const Wave& w, const Inst& inst, std::size_t k, bool is_float, Lanes& lanes) {
  const Operand& o = inst.op[k];
  if (o.kind == Operand::kVector) {
    lanes.values = w.v[o.index];
  } else {
    std::fill_n(lanes.space, kLanes, scalar32(w, o));
    lanes.values = lanes.space;
  }
  if (inst.dpp >= 0 && k == 1) {
    u8 from[kLanes];
    u32 moved[kLanes];
    dpp_sources(w, inst, from);
    for (int l = 0; l < kLanes; ++l) moved[l] = from[l] < kLanes ? lanes[from[l]] : 0;
    std::copy_n(moved, kLanes, lanes.space);
    lanes.values = lanes.space;
  }
  if (inst.sdwa && k >= 1) {
    const int which = k == 1 ? inst.select0 : inst.select1;
    const bool sign = k == 1 ? inst.sign0 : inst.sign1;
    for (int l = 0; l < kLanes; ++l) lanes.space[l] = select(lanes[l], which, sign);
    lanes.values = lanes.space;
  }
  if (is_float && (o.negate || o.absolute)) {
    const u32 keep = o.absolute ? 0x7fffffff : ~0u, flip = o.negate ? 0x80000000 : 0;
    for (int l = 0; l < kLanes; ++l) lanes.space[l] = (lanes[l] & keep) ^ flip;
    lanes.values = lanes.space;
  }
}

void store(Wave& w, const Inst& inst, u32* r) {
  if (inst.sdwa && inst.select_out != 6) {
    const int shift = inst.select_out < 4 ? 8 * inst.select_out : 16 * (inst.select_out - 4);
    const u32 mask = (inst.select_out < 4 ? 0xffu : 0xffffu) << shift;
    for (int l = 0; l < kLanes; ++l) {
      r[l] = (r[l] << shift & mask) | (inst.preserve ? w.v[inst.op[0].index][l] & ~mask : 0);
    }
  }
  write_vector(w, inst.op[0].index, r, write_mask(w, inst));
}

void store_float(Wave& w, const Inst& inst, u32* r) {
  if (inst.output_modifier) {
    const float factor = inst.output_modifier == 3 ? 0.5f : static_cast<float>(1 << inst.output_modifier);
    for (int l = 0; l < kLanes; ++l) r[l] = as_bits(as_float(r[l]) * factor);
  }
  if (inst.clamp) {
    for (int l = 0; l < kLanes; ++l) r[l] = as_bits(as_float(r[l]) > 0 ? std::min(as_float(r[l]), 1.0f) : 0.0f);
  }
  store(w, inst, r);
}

// Operands 1..N as u32 (or float) -> u32 (or float).
template <auto F, bool Float, std::size_t... K>
void lift(Wave& w, const Inst& inst, std::index_sequence<K...>) {
  Lanes in[sizeof...(K)];
  u32 r[kLanes];
  (load(w, inst, K + 1, Float, in[K]), ...);
  for (int l = 0; l < kLanes; ++l) {
    if constexpr (Float) {
      r[l] = as_bits(F(as_float(in[K][l])...));
    } else {
      r[l] = F(in[K][l]...);
    }
  }
  Float ? store_float(w, inst, r) : store(w, inst, r);
}
template <auto F>
void int1(Wave& w, const Inst& inst) {
  lift<F, false>(w, inst, std::make_index_sequence<1>{});
}
template <auto F>
void int2(Wave& w, const Inst& inst) {
  lift<F, false>(w, inst, std::make_index_sequence<2>{});
}
template <auto F>
void int3(Wave& w, const Inst& inst) {
  lift<F, false>(w, inst, std::make_index_sequence<3>{});
}
template <auto F>
void float1(Wave& w, const Inst& inst) {
  lift<F, true>(w, inst, std::make_index_sequence<1>{});
}
template <auto F>
void float2(Wave& w, const Inst& inst) {
  lift<F, true>(w, inst, std::make_index_sequence<2>{});
}
template <auto F>
void float3(Wave& w, const Inst& inst) {
  lift<F, true>(w, inst, std::make_index_sequence<3>{});
}

// Float operands, an integer result: F(inst, old destination, operands...).
template <auto F, std::size_t N>
void from_floats(Wave& w, const Inst& inst) {
  Lanes in[N];
  u32 r[kLanes];
  for (std::size_t k = 0; k < N; ++k) load(w, inst, k + 1, true, in[k]);
  for (int l = 0; l < kLanes; ++l) {
    const u32 old = w.v[inst.op[0].index][l];
    if constexpr (N == 1) {
      r[l] = F(inst, old, as_float(in[0][l]));
    } else {
      r[l] = F(inst, old, as_float(in[0][l]), as_float(in[1][l]));
    }
  }
  store(w, inst, r);
}

// 64-bit results, F(operands as u64...); operand `First` is the first.
template <auto F, std::size_t First, std::size_t... K>
void lift64(Wave& w, const Inst& inst, std::index_sequence<K...>) {
  u32 low[kLanes], high[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const u64 x = F(lane64(w, inst.op[First + K], l)...);
    low[l] = static_cast<u32>(x);
    high[l] = static_cast<u32>(x >> 32);
  }
  const u64 mask = write_mask(w, inst);
  write_vector(w, inst.op[0].index, low, mask);
  write_vector(w, inst.op[0].index + 1, high, mask);
}
template <auto F, std::size_t N, std::size_t First = 1>
void wide(Wave& w, const Inst& inst) {
  lift64<F, First>(w, inst, std::make_index_sequence<N>{});
}

// Packed pairs of f32 in two registers: F(float[N]) for each half.
template <auto F, std::size_t N>
void packed_float(Wave& w, const Inst& inst) {
  u32 half[2][kLanes];
  for (int l = 0; l < kLanes; ++l) {
    float x[2][N];
    for (std::size_t k = 0; k < N; ++k) {
      const Operand& o = inst.op[k + 1];
      u32 pair[2];
      for (int h = 0; h < 2; ++h) {
        const int at = o.index + (h && o.count > 1);
        pair[h] = o.kind == Operand::kVector ? w.v[at][l] : o.kind == Operand::kScalar ? w.s[at] : scalar32(w, o);
      }
      x[0][k] = as_float(pair[inst.op_sel >> k & 1] ^ (inst.neg_lo >> k & 1) << 31);
      x[1][k] = as_float(pair[inst.op_sel_hi >> k & 1] ^ (inst.neg_hi >> k & 1) << 31);
    }
    for (int h = 0; h < 2; ++h) half[h][l] = as_bits(F(x[h]));
  }
  write_vector(w, inst.op[0].index, half[0], w.exec());
  write_vector(w, inst.op[0].index + 1, half[1], w.exec());
}

void packed_move(Wave& w, const Inst& inst) {  // low from operand 1, high from operand 2, by op_sel
  u32 half[2][kLanes];
  for (std::size_t h = 0; h < 2; ++h) {
    const Operand& o = inst.op[h + 1];
    const int at = o.index + static_cast<int>(inst.op_sel >> h & 1 && o.count > 1);
    for (int l = 0; l < kLanes; ++l) {
      half[h][l] = o.kind == Operand::kVector ? w.v[at][l] : o.kind == Operand::kScalar ? w.s[at] : scalar32(w, o);
    }
  }
  write_vector(w, inst.op[0].index, half[0], w.exec());
  write_vector(w, inst.op[0].index + 1, half[1], w.exec());
}

// One half of each of two registers, by op_sel.
void pack_halves(Wave& w, const Inst& inst) {
  Lanes a, b;
  load(w, inst, 1, false, a);
  load(w, inst, 2, false, b);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const u32 low = a[l] >> (inst.op_sel & 1 ? 16 : 0), high = b[l] >> (inst.op_sel & 2 ? 16 : 0);
    r[l] = (low & 0xffff) | high << 16;
  }
  store(w, inst, r);
}

// Packed pairs of 16 bits in one register.
template <auto F>
void packed_word(Wave& w, const Inst& inst) {
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const u32 a = lane32(w, inst.op[1], l), b = lane32(w, inst.op[2], l);
    const auto word = [](u32 x, u32 high) { return static_cast<u16>(x >> (16 * high)); };
    const u16 low = F(word(a, inst.op_sel & 1), word(b, inst.op_sel >> 1 & 1));
    const u16 high = F(word(a, inst.op_sel_hi & 1), word(b, inst.op_sel_hi >> 1 & 1));
    r[l] = low | static_cast<u32>(high) << 16;
  }
  write_vector(w, inst.op[0].index, r, w.exec());
}

// ---- comparisons -----------------------------------------------------------------------------------------------------

template <typename T, auto F>
void compare(Wave& w, const Inst& inst) {
  u64 result = 0;
  const u64 exec = w.exec();
  if constexpr (sizeof(T) == 8) {
    for (int l = 0; l < kLanes; ++l) {
      const bool yes = F(static_cast<T>(lane64(w, inst.op[1], l)), static_cast<T>(lane64(w, inst.op[2], l)));
      result |= static_cast<u64>(yes) << l;
    }
  } else {
    constexpr bool kFloat = std::is_same_v<T, float>;
    Lanes a, b;
    load(w, inst, 1, kFloat, a);
    load(w, inst, 2, kFloat, b);
    for (int l = 0; l < kLanes; ++l) {
      bool yes;
      if constexpr (kFloat) {
        yes = F(as_float(a[l]), as_float(b[l]));
      } else {
        yes = F(static_cast<T>(a[l]), static_cast<T>(b[l]));
      }
      result |= static_cast<u64>(yes) << l;
    }
  }
  result &= exec;
  if (inst.name.starts_with("v_cmpx")) w.set_exec(result);
  w.set_s64(inst.op[0].index, result);
}

void compare_class(Wave& w, const Inst& inst) {
  u64 result = 0;
  Lanes a, b;
  load(w, inst, 1, true, a);
  load(w, inst, 2, false, b);
  for (int l = 0; l < kLanes; ++l) {
    const float x = as_float(a[l]);
    const bool negative = std::signbit(x);
    int bit = 0;
    switch (std::fpclassify(x)) {
      case FP_NAN:
        bit = a[l] & 0x400000 ? 1 : 0;
        break;
      case FP_INFINITE:
        bit = negative ? 2 : 9;
        break;
      case FP_NORMAL:
        bit = negative ? 3 : 8;
        break;
      case FP_SUBNORMAL:
        bit = negative ? 4 : 7;
        break;
      default:
        bit = negative ? 5 : 6;
    }
    result |= static_cast<u64>(b[l] >> bit & 1) << l;
  }
  w.set_s64(inst.op[0].index, result & w.exec());
}

// ---- single instructions ---------------------------------------------------------------------------------------------

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
float smaller(float a, float b) { return std::isnan(a) ? b : std::isnan(b) ? a : std::min(a, b); }
float larger(float a, float b) { return std::isnan(a) ? b : std::isnan(b) ? a : std::max(a, b); }
float median(float a, float b, float c) { return larger(smaller(a, b), smaller(larger(a, b), c)); }
bool any_nan(float a, float b, float c) { return std::isnan(a) || std::isnan(b) || std::isnan(c); }
float power_of_two(u32 float_bits) { return pasa::ue8m0_to_float(static_cast<u8>(float_bits >> 23)); }
float fp8(const Inst& inst, u32 code) { return pasa::fp8_to_float(inst.fp8, static_cast<u8>(code)); }
float bf8(u32 code) { return f16_to_float(static_cast<u16>(code << 8)); }
u32 to_fp8(const Inst& inst, float x) { return pasa::float_to_fp8(inst.fp8, x); }
u32 pair(u32 low, u32 high) { return (low & 0xffff) | high << 16; }
i32 signed24(u32 x) { return static_cast<i32>(x << 8) >> 8; }
// A 16-bit result written into the half that op_sel bit 3 names.
u32 into_half(const Inst& inst, u32 old, u32 x) { return inst.op_sel & 8 ? pair(old, x) : pair(x, old >> 16); }

u32 truth_table(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (u32 k = 0; k < 8; ++k) {
    if (table >> k & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  }
  return r;
}

u32 permute_bytes(u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(a) << 32 | b;
  u32 r = 0;
  for (int k = 0; k < 4; ++k) {
    const u32 n = selector >> (8 * k) & 0xff;
    u32 byte = 0xff;
    if (n < 8) {
      byte = static_cast<u32>(bytes >> (8 * n)) & 0xff;
    } else if (n < 12) {
      byte = bytes >> (16 * (n - 8) + 15) & 1 ? 0xff : 0;
    } else if (n == 12) {
      byte = 0;
    }
    r |= byte << (8 * k);
  }
  return r;
}

u32 to_i32(float x) {
  if (std::isnan(x)) return 0;
  return x >= 0x1p31f ? 0x7fffffff : x <= -0x1p31f ? 0x80000000 : static_cast<u32>(static_cast<i32>(x));
}
u32 to_u32(float x) { return !(x > 0) ? 0 : x >= 0x1p32f ? ~0u : static_cast<u32>(x); }

// Division in three steps: scale keeps the Newton iterations away from denormals and overflow, fixup restores the special
// cases.
float div_scale(float a, float denominator, float numerator, bool& flag) {
  const auto exponent = [](float x) { return static_cast<int>(as_bits(x) >> 23 & 255); };
  const auto tiny = [](double x) { return std::fpclassify(static_cast<float>(x)) == FP_SUBNORMAL; };
  flag = false;
  if (numerator == 0 || denominator == 0) return pasa::kNan;
  if (exponent(numerator) - exponent(denominator) >= 96) {
    flag = true;
    return a == denominator ? std::ldexp(a, 64) : a;
  }
  if (tiny(denominator)) return std::ldexp(a, 64);
  const bool reciprocal = tiny(1.0 / denominator), quotient = tiny(static_cast<double>(numerator) / denominator);
  flag = quotient;
  if (reciprocal && quotient) return a == denominator ? std::ldexp(a, 64) : a;
  if (reciprocal) return std::ldexp(a, -64);
  if (quotient) return a == numerator ? std::ldexp(a, 64) : a;
  return exponent(numerator) <= 23 ? std::ldexp(a, 64) : a;
}

float div_fixup(float quotient, float denominator, float numerator) {
  const float sign = std::signbit(denominator) != std::signbit(numerator) ? -1.0f : 1.0f;
  if (std::isnan(numerator)) return numerator;
  if (std::isnan(denominator)) return denominator;
  if (denominator == 0 && numerator == 0) return pasa::kNan;
  if (std::isinf(denominator) && std::isinf(numerator)) return pasa::kNan;
  if (denominator == 0 || std::isinf(numerator)) return sign * pasa::kInfinity;
  if (std::isinf(denominator) || numerator == 0) return sign * 0.0f;
  return sign * std::fabs(quotient);
}

void v_div_scale(Wave& w, const Inst& inst) {
  Lanes a, b, c;
  load(w, inst, 2, true, a);
  load(w, inst, 3, true, b);
  load(w, inst, 4, true, c);
  u32 r[kLanes];
  u64 flags = 0;
  for (int l = 0; l < kLanes; ++l) {
    bool flag;
    r[l] = as_bits(div_scale(as_float(a[l]), as_float(b[l]), as_float(c[l]), flag));
    flags |= static_cast<u64>(flag) << l;
  }
  write_vector(w, inst.op[0].index, r, w.exec());
  w.set_s64(inst.op[1].index, flags & w.exec());
}

void v_div_fmas(Wave& w, const Inst& inst) {
  Lanes a, b, c;
  load(w, inst, 1, true, a);
  load(w, inst, 2, true, b);
  load(w, inst, 3, true, c);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const float x = std::fma(as_float(a[l]), as_float(b[l]), as_float(c[l]));
    const int power = (c[l] >> 23 & 255) > 127 ? 64 : -64;
    r[l] = as_bits(w.s64(kVccLo) >> l & 1 ? std::ldexp(x, power) : x);
  }
  store_float(w, inst, r);
}

void v_fmac(Wave& w, const Inst& inst) {
  Lanes a, b;
  load(w, inst, 1, true, a);
  load(w, inst, 2, true, b);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    r[l] = as_bits(std::fma(as_float(a[l]), as_float(b[l]), as_float(w.v[inst.op[0].index][l])));
  }
  store_float(w, inst, r);
}

void v_ldexp(Wave& w, const Inst& inst) {
  Lanes a, b;
  load(w, inst, 1, true, a);
  load(w, inst, 2, false, b);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) r[l] = as_bits(std::ldexp(as_float(a[l]), static_cast<i32>(b[l])));
  store_float(w, inst, r);
}

// f16 or f32 operands, by op_sel and op_sel_hi: fma in f32. neg_lo is sign, neg_hi absolute value.
void v_fma_mix(Wave& w, const Inst& inst) {
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    float x[3];
    for (std::size_t k = 0; k < 3; ++k) {
      const u32 bits = lane32(w, inst.op[k + 1], l);
      const auto word = static_cast<u16>(inst.op_sel >> k & 1 ? bits >> 16 : bits);
      x[k] = inst.op_sel_hi >> k & 1 ? f16_to_float(word) : as_float(bits);
      if (inst.op[k + 1].absolute) x[k] = std::fabs(x[k]);
      if (inst.op[k + 1].negate) x[k] = -x[k];
    }
    r[l] = as_bits(std::fma(x[0], x[1], x[2]));
  }
  store_float(w, inst, r);
}

void v_cndmask(Wave& w, const Inst& inst) {
  Lanes a, b;
  load(w, inst, 1, true, a);
  load(w, inst, 2, true, b);
  const u64 chosen = w.s64(inst.op[3].index);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) r[l] = chosen >> l & 1 ? b[l] : a[l];
  store(w, inst, r);
}

template <bool Subtract, bool Reverse, bool CarryIn>
void carry(Wave& w, const Inst& inst) {
  Lanes a, b;
  load(w, inst, 2, false, a);
  load(w, inst, 3, false, b);
  const u64 in = CarryIn ? w.s64(inst.op[4].index) : 0;
  u64 out = 0;
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const u64 x = Reverse ? b[l] : a[l], y = Reverse ? a[l] : b[l], c = in >> l & 1;
    const u64 z = Subtract ? x - y - c : x + y + c;
    r[l] = static_cast<u32>(z);
    out |= (z >> 32 & 1) << l;
  }
  write_vector(w, inst.op[0].index, r, w.exec());
  w.set_s64(inst.op[1].index, out & w.exec());
}

// Lanes below this one that are set in a mask of 32.
template <int Half>
void count_below(Wave& w, const Inst& inst) {
  Lanes a, b;
  load(w, inst, 1, false, a);
  load(w, inst, 2, false, b);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const int bits = std::clamp(l - 32 * Half, 0, 32);
    r[l] = b[l] + static_cast<u32>(std::popcount(a[l] & static_cast<u32>((u64{1} << bits) - 1)));
  }
  store(w, inst, r);
}

template <int Rows>
void swap_rows(Wave& w, const Inst& inst) {
  u32 *d = w.v[inst.op[0].index], *s = w.v[inst.op[1].index];
  for (int base = 0; base < kLanes; base += 2 * Rows) std::swap_ranges(s + base, s + base + Rows, d + base + Rows);
}

void v_swap(Wave& w, const Inst& inst) {
  for (int l = 0; l < kLanes; ++l) {
    if (w.active(l)) std::swap(w.v[inst.op[0].index][l], w.v[inst.op[1].index][l]);
  }
}

void v_readfirstlane(Wave& w, const Inst& inst) {
  const u64 exec = w.exec();
  w.s[inst.op[0].index] = lane32(w, inst.op[1], exec ? std::countr_zero(exec) : 0);
}

void v_readlane(Wave& w, const Inst& inst) {
  w.s[inst.op[0].index] = lane32(w, inst.op[1], static_cast<int>(scalar32(w, inst.op[2]) & 63));
}

void v_writelane(Wave& w, const Inst& inst) {
  w.v[inst.op[0].index][scalar32(w, inst.op[2]) & 63] = scalar32(w, inst.op[1]);
}

// Scaled conversions: operand 2 is a float whose exponent is the scale, 2^(exponent - 127).
template <auto F>
void scaled_from_fp8(Wave& w, const Inst& inst) {  // two codes of one word -> one dword
  Lanes a, s;
  load(w, inst, 1, false, a);
  load(w, inst, 2, false, s);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const u32 codes = a[l] >> (inst.op_sel & 1 ? 16 : 0);
    r[l] = pair(F(fp8(inst, codes) * power_of_two(s[l])), F(fp8(inst, codes >> 8) * power_of_two(s[l])));
  }
  store(w, inst, r);
}

void fp8_to_float(Wave& w, const Inst& inst) {
  Lanes a;
  load(w, inst, 1, false, a);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) r[l] = as_bits(fp8(inst, a[l]));
  store(w, inst, r);
}

template <bool Scaled>
void fp8_to_floats(Wave& w, const Inst& inst) {  // two codes of one word -> two registers
  Lanes a, s;
  load(w, inst, 1, false, a);
  if (Scaled) load(w, inst, 2, false, s);
  u32 low[kLanes], high[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const u32 codes = a[l] >> (inst.op_sel & 1 ? 16 : 0);
    const float scale = Scaled ? power_of_two(s[l]) : 1.0f;
    low[l] = as_bits(fp8(inst, codes) * scale);
    high[l] = as_bits(fp8(inst, codes >> 8) * scale);
  }
  const u64 mask = write_mask(w, inst);
  write_vector(w, inst.op[0].index, low, mask);
  write_vector(w, inst.op[0].index + 1, high, mask);
}

void scaled_bf16_to_fp8(Wave& w, const Inst& inst) {
  Lanes a, s;
  load(w, inst, 1, false, a);
  load(w, inst, 2, false, s);
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const float scale = power_of_two(s[l]);
    const auto code = [&](u32 word) { return to_fp8(inst, bf16_to_float(static_cast<u16>(word)) / scale); };
    r[l] = into_half(inst, w.v[inst.op[0].index][l], code(a[l]) | code(a[l] >> 16) << 8);
  }
  store(w, inst, r);
}

constexpr auto kAdd = [](const float* x) { return x[0] + x[1]; };
constexpr auto kMultiply = [](const float* x) { return x[0] * x[1]; };
constexpr auto kFma = [](const float* x) { return std::fma(x[0], x[1], x[2]); };
constexpr auto kPackBf16 = [](const Inst&, u32, float a, float b) -> u32 {
  return pair(float_to_bf16(a), float_to_bf16(b));
};
constexpr auto kPackF16 = [](const Inst&, u32, float a, float b) -> u32 {
  return pair(float_to_f16(a), float_to_f16(b));
};
constexpr auto kPackFp8 = [](const Inst& i, u32 old, float a, float b) -> u32 {
  return into_half(i, old, to_fp8(i, a) | to_fp8(i, b) << 8);
};

const Entry kEntries[] = {
    // moves and bits
    {"v_mov_b32", int1<[](u32 a) { return a; }>},
    {"v_accvgpr_read_b32", int1<[](u32 a) { return a; }>},
    {"v_accvgpr_write_b32", int1<[](u32 a) { return a; }>},
    {"v_accvgpr_mov_b32", int1<[](u32 a) { return a; }>},
    {"v_not_b32", int1<[](u32 a) { return ~a; }>},
    {"v_bfrev_b32", int1<reverse_bits>},
    {"v_prng_b32", int1<[](u32 a) { return (a << 1 ^ (a >> 31 ? 197u : 0)); }>},
    {"v_ffbh_u32", int1<[](u32 a) { return a ? static_cast<u32>(std::countl_zero(a)) : ~0u; }>},
    {"v_ffbl_b32", int1<[](u32 a) { return a ? static_cast<u32>(std::countr_zero(a)) : ~0u; }>},
    {"v_and_b32", int2<[](u32 a, u32 b) { return a & b; }>},
    {"v_or_b32", int2<[](u32 a, u32 b) { return a | b; }>},
    {"v_xor_b32", int2<[](u32 a, u32 b) { return a ^ b; }>},
    {"v_lshlrev_b32", int2<[](u32 a, u32 b) { return b << (a & 31); }>},
    {"v_lshrrev_b32", int2<[](u32 a, u32 b) { return (b >> (a & 31)); }>},
    {"v_ashrrev_i32", int2<[](u32 a, u32 b) { return (static_cast<u32>(static_cast<i32>(b) >> (a & 31))); }>},
    {"v_lshlrev_b16", int2<[](u32 a, u32 b) { return b << (a & 15) & 0xffff; }>},
    {"v_lshrrev_b16", int2<[](u32 a, u32 b) { return ((b & 0xffff) >> (a & 15)); }>},
    {"v_bcnt_u32_b32", int2<[](u32 a, u32 b) { return static_cast<u32>(std::popcount(a)) + b; }>},
    {"v_bfm_b32", int2<[](u32 a, u32 b) { return ((1u << (a & 31)) - 1) << (b & 31); }>},
    {"v_and_or_b32", int3<[](u32 a, u32 b, u32 c) { return (a & b) | c; }>},
    {"v_or3_b32", int3<[](u32 a, u32 b, u32 c) { return a | b | c; }>},
    {"v_lshl_or_b32", int3<[](u32 a, u32 b, u32 c) { return a << (b & 31) | c; }>},
    {"v_bfi_b32", int3<[](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); }>},
    {"v_bfe_u32", int3<[](u32 a, u32 b, u32 c) { return (a >> (b & 31) & ((1u << (c & 31)) - 1)); }>},
    {"v_bfe_i32", int3<[](u32 a, u32 b, u32 c) {
       const u32 n = c & 31;
       return (n ? static_cast<u32>(static_cast<i32>(a >> (b & 31) << (32 - n)) >> (32 - n)) : 0);
     }>},
    {"v_perm_b32", int3<permute_bytes>},
    {"v_pack_b32_f16", pack_halves},
    {"v_alignbit_b32", int3<[](u32 a, u32 b, u32 c) { return (static_cast<u32>((u64{a} << 32 | b) >> (c & 31))); }>},
    {"v_alignbyte_b32",
     int3<[](u32 a, u32 b, u32 c) { return (static_cast<u32>((u64{a} << 32 | b) >> (8 * (c & 3)))); }>},
    {"v_bitop3_b32",
     [](Wave& w, const Inst& inst) {
       Lanes a, b, c;
       load(w, inst, 1, false, a);
       load(w, inst, 2, false, b);
       load(w, inst, 3, false, c);
       u32 r[kLanes];
       for (int l = 0; l < kLanes; ++l) r[l] = truth_table(a[l], b[l], c[l], inst.immediate);
       store(w, inst, r);
     }},
    {"v_bitop3_b16",
     [](Wave& w, const Inst& inst) {
       if (inst.op_sel) finding(inst, "op_sel not implemented here");
       u32 r[kLanes];
       for (int l = 0; l < kLanes; ++l) {
         const u32 x =
             truth_table(lane32(w, inst.op[1], l), lane32(w, inst.op[2], l), lane32(w, inst.op[3], l), inst.immediate);
         r[l] = pair(x, w.v[inst.op[0].index][l] >> 16);
       }
       store(w, inst, r);
     }},
    // integers
    {"v_add_u32", int2<[](u32 a, u32 b) { return a + b; }>},
    {"v_sub_u32", int2<[](u32 a, u32 b) { return a - b; }>},
    {"v_subrev_u32", int2<[](u32 a, u32 b) { return b - a; }>},
    {"v_add_u16", int2<[](u32 a, u32 b) { return (a + b) & 0xffff; }>},
    {"v_mul_lo_u16", int2<[](u32 a, u32 b) { return a * b & 0xffff; }>},
    {"v_sub_u16", int2<[](u32 a, u32 b) { return (a - b) & 0xffff; }>},
    {"v_mul_lo_u32", int2<[](u32 a, u32 b) { return a * b; }>},
    {"v_mul_hi_u32", int2<[](u32 a, u32 b) { return (static_cast<u32>(u64{a} * b >> 32)); }>},
    {"v_mul_hi_i32",
     int2<[](u32 a, u32 b) { return (static_cast<u32>(i64{static_cast<i32>(a)} * static_cast<i32>(b) >> 32)); }>},
    {"v_mul_u32_u24", int2<[](u32 a, u32 b) { return (a & 0xffffff) * (b & 0xffffff); }>},
    {"v_mul_i32_i24", int2<[](u32 a, u32 b) { return static_cast<u32>(signed24(a) * signed24(b)); }>},
    {"v_max_i32", int2<[](u32 a, u32 b) { return (static_cast<i32>(a) > static_cast<i32>(b) ? a : b); }>},
    {"v_min_i32", int2<[](u32 a, u32 b) { return static_cast<i32>(a) < static_cast<i32>(b) ? a : b; }>},
    {"v_max_u32", int2<[](u32 a, u32 b) { return std::max(a, b); }>},
    {"v_min_u32", int2<[](u32 a, u32 b) { return std::min(a, b); }>},
    {"v_lshl_add_u32", int3<[](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; }>},
    {"v_add_lshl_u32", int3<[](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); }>},
    {"v_add3_u32", int3<[](u32 a, u32 b, u32 c) { return a + b + c; }>},
    {"v_xad_u32", int3<[](u32 a, u32 b, u32 c) { return (a ^ b) + c; }>},
    {"v_mad_u32_u24", int3<[](u32 a, u32 b, u32 c) { return (a & 0xffffff) * (b & 0xffffff) + c; }>},
    {"v_mad_i32_i24", int3<[](u32 a, u32 b, u32 c) { return static_cast<u32>(signed24(a) * signed24(b)) + c; }>},
    {"v_max3_i32", int3<[](u32 a, u32 b, u32 c) {
       return static_cast<u32>(std::max({static_cast<i32>(a), static_cast<i32>(b), static_cast<i32>(c)}));
     }>},
    {"v_min3_i32", int3<[](u32 a, u32 b, u32 c) {
       return static_cast<u32>(std::min({static_cast<i32>(a), static_cast<i32>(b), static_cast<i32>(c)}));
     }>},
    {"v_med3_i32", int3<[](u32 a, u32 b, u32 c) {
       const auto x = static_cast<i32>(a), y = static_cast<i32>(b), z = static_cast<i32>(c);
       return static_cast<u32>(std::max(std::min(x, y), std::min(std::max(x, y), z)));
     }>},
    {"v_max3_u32", int3<[](u32 a, u32 b, u32 c) {
       return std::max({a, b, c});
     }>},
    {"v_min3_u32", int3<[](u32 a, u32 b, u32 c) {
       return std::min({a, b, c});
     }>},
    {"v_add_co_u32", carry<false, false, false>},
    {"v_addc_co_u32", carry<false, false, true>},
    {"v_sub_co_u32", carry<true, false, false>},
    {"v_subb_co_u32", carry<true, false, true>},
    {"v_subrev_co_u32", carry<true, true, false>},
    {"v_subbrev_co_u32", carry<true, true, true>},
    {"v_pk_lshlrev_b16", packed_word<[](u16 a, u16 b) { return static_cast<u16>(b << (a & 15)); }>},
    {"v_pk_lshrrev_b16", packed_word<[](u16 a, u16 b) { return (static_cast<u16>(b >> (a & 15))); }>},
    {"v_pk_ashrrev_i16", packed_word<[](u16 a, u16 b) { return (static_cast<u16>(static_cast<i16>(b) >> (a & 15))); }>},
    {"v_pk_add_u16", packed_word<[](u16 a, u16 b) { return static_cast<u16>(a + b); }>},
    {"v_pk_sub_i16", packed_word<[](u16 a, u16 b) { return static_cast<u16>(a - b); }>},
    {"v_pk_min_u16", packed_word<[](u16 a, u16 b) { return std::min(a, b); }>},
    {"v_pk_min_i16", packed_word<[](u16 a, u16 b) { return static_cast<i16>(a) < static_cast<i16>(b) ? a : b; }>},
    {"v_pk_max_u16", packed_word<[](u16 a, u16 b) { return std::max(a, b); }>},
    // 64 bits
    {"v_mov_b64", wide<[](u64 a) { return a; }, 1>},
    {"v_lshl_add_u64", wide<[](u64 a, u64 b, u64 c) { return (a << (b & 7)) + c; }, 3>},
    {"v_lshlrev_b64", wide<[](u64 a, u64 b) { return b << (a & 63); }, 2>},
    {"v_lshrrev_b64", wide<[](u64 a, u64 b) { return (b >> (a & 63)); }, 2>},
    {"v_ashrrev_i64", wide<[](u64 a, u64 b) { return (static_cast<u64>(static_cast<i64>(b) >> (a & 63))); }, 2>},
    {"v_mad_u64_u32",
     wide<[](u64 a, u64 b, u64 c) { return u64{static_cast<u32>(a)} * static_cast<u32>(b) + c; }, 3, 2>},
    {"v_mad_i64_i32",
     wide<[](u64 a, u64 b, u64 c) { return static_cast<u64>(i64{static_cast<i32>(a)} * static_cast<i32>(b)) + c; }, 3,
          2>},
    {"v_pk_mov_b32", packed_move},
    // floats
    {"v_add_f32", float2<[](float a, float b) { return a + b; }>},
    {"v_sub_f32", float2<[](float a, float b) { return a - b; }>},
    {"v_subrev_f32", float2<[](float a, float b) { return b - a; }>},
    {"v_mul_f32", float2<[](float a, float b) { return a * b; }>},
    {"v_max_f32", float2<larger>},
    {"v_min_f32", float2<smaller>},
    {"v_fma_f32", float3<[](float a, float b, float c) { return std::fma(a, b, c); }>},
    {"v_fmaak_f32", float3<[](float a, float b, float c) { return std::fma(a, b, c); }>},
    {"v_fmamk_f32", float3<[](float a, float b, float c) { return std::fma(a, b, c); }>},
    {"v_fmac_f32", v_fmac},
    {"v_fma_mix_f32", v_fma_mix},
    {"v_max3_f32", float3<[](float a, float b, float c) { return larger(larger(a, b), c); }>},
    {"v_min3_f32", float3<[](float a, float b, float c) { return smaller(smaller(a, b), c); }>},
    {"v_med3_f32", float3<median>},
    {"v_maximum3_f32", float3<[](float a, float b, float c) {
       return any_nan(a, b, c) ? pasa::kNan : std::max({a, b, c});
     }>},
    {"v_minimum3_f32", float3<[](float a, float b, float c) {
       return any_nan(a, b, c) ? pasa::kNan : std::min({a, b, c});
     }>},
    {"v_exp_f32", float1<[](float a) { return flush(std::exp2(flush(a))); }>},
    {"v_log_f32", float1<[](float a) { return std::log2(flush(a)); }>},
    {"v_rcp_f32", float1<[](float a) { return 1.0f / a; }>},
    {"v_rcp_iflag_f32", float1<[](float a) { return 1.0f / a; }>},
    {"v_rsq_f32", float1<[](float a) { return 1.0f / std::sqrt(a); }>},
    {"v_sqrt_f32", float1<[](float a) { return std::sqrt(a); }>},
    {"v_floor_f32", float1<[](float a) { return std::floor(a); }>},
    {"v_ceil_f32", float1<[](float a) { return std::ceil(a); }>},
    {"v_trunc_f32", float1<[](float a) { return std::trunc(a); }>},
    {"v_rndne_f32", float1<[](float a) { return std::nearbyint(a); }>},
    {"v_fract_f32", float1<[](float a) { return a - std::floor(a); }>},
    {"v_ldexp_f32", v_ldexp},
    {"v_div_scale_f32", v_div_scale},
    {"v_div_fmas_f32", v_div_fmas},
    {"v_div_fixup_f32", float3<div_fixup>},
    {"v_pk_fma_f32", packed_float<kFma, 3>},
    {"v_pk_mul_f32", packed_float<kMultiply, 2>},
    {"v_pk_add_f32", packed_float<kAdd, 2>},
    // conversions
    {"v_cvt_f32_i32", int1<[](u32 a) { return as_bits(static_cast<float>(static_cast<i32>(a))); }>},
    {"v_cvt_f32_u32", int1<[](u32 a) { return as_bits(static_cast<float>(a)); }>},
    {"v_cvt_f32_ubyte0", int1<[](u32 a) { return as_bits(static_cast<float>(a & 255)); }>},
    {"v_cvt_f32_f16", int1<[](u32 a) { return as_bits(f16_to_float(static_cast<u16>(a))); }>},
    {"v_cvt_f32_bf16", int1<[](u32 a) { return as_bits(bf16_to_float(static_cast<u16>(a))); }>},
    {"v_cvt_f32_fp8", fp8_to_float},
    {"v_cvt_f32_bf8", int1<[](u32 a) { return as_bits(bf8(a)); }>},
    {"v_cvt_i32_f32", from_floats<[](const Inst&, u32, float a) { return to_i32(a); }, 1>},
    {"v_cvt_u32_f32", from_floats<[](const Inst&, u32, float a) { return to_u32(a); }, 1>},
    {"v_cvt_f16_f32", from_floats<[](const Inst&, u32, float a) -> u32 { return float_to_f16(a); }, 1>},
    {"v_cvt_pk_bf16_f32", from_floats<kPackBf16, 2>},
    {"v_cvt_pk_f16_f32", from_floats<kPackF16, 2>},
    {"v_cvt_pk_fp8_f32", from_floats<kPackFp8, 2>},
    {"v_cvt_pk_f32_fp8", fp8_to_floats<false>},
    {"v_cvt_scalef32_pk_f32_fp8", fp8_to_floats<true>},
    {"v_cvt_scalef32_pk_bf16_fp8", scaled_from_fp8<float_to_bf16>},
    {"v_cvt_scalef32_pk_f16_fp8", scaled_from_fp8<float_to_f16>},
    {"v_cvt_scalef32_pk_fp8_bf16", scaled_bf16_to_fp8},
    // lanes
    {"v_cndmask_b32", v_cndmask},
    {"v_readfirstlane_b32", v_readfirstlane},
    {"v_readlane_b32", v_readlane},
    {"v_writelane_b32", v_writelane},
    {"v_mbcnt_lo_u32_b32", count_below<0>},
    {"v_mbcnt_hi_u32_b32", count_below<1>},
    {"v_permlane32_swap_b32", swap_rows<32>},
    {"v_permlane16_swap_b32", swap_rows<16>},
    {"v_swap_b32", v_swap},
    {"v_cmp_class_f32", compare_class},
    {"v_cmp_lg_f32", compare<float, [](float a, float b) { return (a < b || a > b); }>},
    {"v_cmp_neq_f32", compare<float, [](float a, float b) { return !(a == b); }>},
    {"v_cmp_u_f32", compare<float, [](float a, float b) { return std::isnan(a) || std::isnan(b); }>},
    {"v_cmp_o_f32", compare<float, [](float a, float b) { return !std::isnan(a) && !std::isnan(b); }>},
    {"v_cmp_nlt_f32", compare<float, [](float a, float b) { return !(a < b); }>},
    {"v_cmp_ngt_f32", compare<float, [](float a, float b) { return (!(a > b)); }>},
    {"v_cmp_nle_f32", compare<float, [](float a, float b) { return !(a <= b); }>},
    {"v_cmp_nge_f32", compare<float, [](float a, float b) { return (!(a >= b)); }>},
    {"v_cmp_nlg_f32", compare<float, [](float a, float b) { return (!(a < b || a > b)); }>},
};

// v_cmp_<relation>_<type> for every relation and type, and v_cmpx_ likewise.
template <typename T>
void add_comparisons(std::vector<Entry>& entries, std::deque<std::string>& names, const char* type) {
  const std::pair<const char*, Handler> relations[] = {
      {"lt", compare<T, [](T a, T b) { return a < b; }>},   {"le", compare<T, [](T a, T b) { return a <= b; }>},
      {"gt", compare<T, [](T a, T b) { return (a > b); }>}, {"ge", compare<T, [](T a, T b) { return (a >= b); }>},
      {"eq", compare<T, [](T a, T b) { return a == b; }>},  {"ne", compare<T, [](T a, T b) { return a != b; }>},
  };
  for (const auto& [relation, handler] : relations) {
    for (const char* prefix : {"v_cmp_", "v_cmpx_"}) {
      names.push_back(std::string(prefix) + relation + "_" + type);
      entries.push_back({names.back(), handler});
    }
  }
}

}  // namespace

std::span<const Entry> vector_entries() {
  static std::deque<std::string> names;
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all(std::begin(kEntries), std::end(kEntries));
    add_comparisons<i16>(all, names, "i16");
    add_comparisons<u16>(all, names, "u16");
    add_comparisons<i32>(all, names, "i32");
    add_comparisons<u32>(all, names, "u32");
    add_comparisons<i64>(all, names, "i64");
    add_comparisons<u64>(all, names, "u64");
    add_comparisons<float>(all, names, "f32");
    return all;
  }();
  return entries;
}

}  // namespace gfx950emu
