// Scalar ALU, branches, waits and barriers.
#include <algorithm>
#include <cmath>

#include "machine.h"

namespace gfx950emu {
namespace {

constexpr auto kNonZero = [](u32 r, u32, u32) { return r != 0; };
constexpr auto kUnchanged = [](u32, u32, u32) { return -1; };

// F(a, b) -> result; Scc(result, a, b) -> the condition bit, -1: left alone.
template <auto F, auto Scc>
void op2(Wave& w, const Inst& inst) {
  const u32 a = scalar32(w, inst.op[1]), b = scalar32(w, inst.op[2]);
  const u32 r = F(a, b);
  const int scc = Scc(r, a, b);
  if (scc >= 0) w.scc = scc != 0;
  w.s[inst.op[0].index] = r;
}
template <auto F>
void bits(Wave& w, const Inst& inst) {
  op2<F, kNonZero>(w, inst);
}
template <auto F>
void bits64(Wave& w, const Inst& inst) {
  const u64 r = F(scalar64(w, inst.op[1]), scalar64(w, inst.op[2]));
  w.scc = r != 0;
  w.set_s64(inst.op[0].index, r);
}
// 32-bit sources, one operand.
template <auto F>
void op1(Wave& w, const Inst& inst) {
  w.s[inst.op[0].index] = F(scalar32(w, inst.op[1]));
}
template <u32 Shift>
void shift_add(Wave& w, const Inst& inst) {
  const u64 r = (u64{scalar32(w, inst.op[1])} << Shift) + scalar32(w, inst.op[2]);
  w.scc = r >> 32 != 0;
  w.s[inst.op[0].index] = static_cast<u32>(r);
}
template <auto F>
void save_exec(Wave& w, const Inst& inst) {
  const u64 a = scalar64(w, inst.op[1]), exec = w.exec(), r = F(a, exec);
  w.set_s64(inst.op[0].index, exec);
  w.set_exec(r);
  w.scc = r != 0;
}
u32 short_immediate(const Inst& inst, std::size_t k) {
  return static_cast<u32>(static_cast<i16>(inst.op[k].literal32));
}
template <typename T, auto F>
void compare(Wave& w, const Inst& inst) {
  w.scc = F(static_cast<T>(scalar32(w, inst.op[0])), static_cast<T>(scalar32(w, inst.op[1])));
}
template <typename T, auto F>
void compare_short(Wave& w, const Inst& inst) {
  const u32 b = std::is_signed_v<T> ? short_immediate(inst, 1) : inst.op[1].literal32 & 0xffff;
  w.scc = F(static_cast<T>(scalar32(w, inst.op[0])), static_cast<T>(b));
}
template <auto Condition>
void branch(Wave& w, const Inst& inst) {
  if (Condition(w)) w.pc += static_cast<u64>(4 * i64{static_cast<i16>(inst.op[0].literal32)});
}
void nothing(Wave&, const Inst&) {}

bool add_overflows(u32 a, u32 b) {
  i32 r;
  return __builtin_add_overflow(static_cast<i32>(a), static_cast<i32>(b), &r);
}
bool sub_overflows(u32 a, u32 b) {
  i32 r;
  return __builtin_sub_overflow(static_cast<i32>(a), static_cast<i32>(b), &r);
}
u32 extract(u32 a, u32 b) {  // b: width << 16 | offset
  const u32 width = b >> 16 & 127, x = a >> (b & 31);
  return width >= 32 ? x : x & ((1u << width) - 1);
}
u32 extract_signed(u32 a, u32 b) {
  const u32 width = std::min(b >> 16 & 127, 32u);
  return width ? static_cast<u32>(static_cast<i32>(a >> (b & 31) << (32 - width)) >> (32 - width)) : 0;
}

const Entry kEntries[] = {
    // moves
    {"s_mov_b32", op1<[](u32 a) { return a; }>},
    {"s_mov_b64", [](Wave& w, const Inst& i) { w.set_s64(i.op[0].index, scalar64(w, i.op[1])); }},
    {"s_movk_i32", [](Wave& w, const Inst& i) { w.s[i.op[0].index] = short_immediate(i, 1); }},
    {"s_cmov_b32",
     [](Wave& w, const Inst& i) {
       if (w.scc) w.s[i.op[0].index] = scalar32(w, i.op[1]);
     }},
    {"s_cmov_b64",
     [](Wave& w, const Inst& i) {
       if (w.scc) w.set_s64(i.op[0].index, scalar64(w, i.op[1]));
     }},
    {"s_cselect_b32",
     [](Wave& w, const Inst& i) { w.s[i.op[0].index] = scalar32(w, w.scc ? i.op[1] : i.op[2]); }},
    {"s_cselect_b64",
     [](Wave& w, const Inst& i) { w.set_s64(i.op[0].index, scalar64(w, w.scc ? i.op[1] : i.op[2])); }},
    // arithmetic
    {"s_add_u32", op2<[](u32 a, u32 b) { return a + b; }, [](u32 r, u32 a, u32) { return int(r < a); }>},
    {"s_add_i32", op2<[](u32 a, u32 b) { return a + b; }, [](u32, u32 a, u32 b) { return int(add_overflows(a, b)); }>},
    {"s_sub_u32", op2<[](u32 a, u32 b) { return a - b; }, [](u32, u32 a, u32 b) { return int(a < b); }>},
    {"s_sub_i32", op2<[](u32 a, u32 b) { return a - b; }, [](u32, u32 a, u32 b) { return int(sub_overflows(a, b)); }>},
    {"s_addc_u32",
     [](Wave& w, const Inst& i) {
       const u64 r = u64{scalar32(w, i.op[1])} + scalar32(w, i.op[2]) + w.scc;
       w.scc = r >> 32 != 0;
       w.s[i.op[0].index] = static_cast<u32>(r);
     }},
    {"s_subb_u32",
     [](Wave& w, const Inst& i) {
       const u64 a = scalar32(w, i.op[1]), b = u64{scalar32(w, i.op[2])} + w.scc;
       w.scc = a < b;
       w.s[i.op[0].index] = static_cast<u32>(a - b);
     }},
    {"s_addk_i32",
     [](Wave& w, const Inst& i) {
       const u32 a = w.s[i.op[0].index], k = short_immediate(i, 1);
       w.scc = add_overflows(a, k);
       w.s[i.op[0].index] = a + k;
     }},
    {"s_mulk_i32", [](Wave& w, const Inst& i) { w.s[i.op[0].index] *= short_immediate(i, 1); }},
    {"s_mul_i32", op2<[](u32 a, u32 b) { return a * b; }, kUnchanged>},
    {"s_mul_hi_u32", op2<[](u32 a, u32 b) { return (static_cast<u32>(u64{a} * b >> 32)); }, kUnchanged>},
    {"s_mul_hi_i32",
     op2<[](u32 a, u32 b) { return (static_cast<u32>(i64{static_cast<i32>(a)} * static_cast<i32>(b) >> 32)); },
         kUnchanged>},
    {"s_lshl1_add_u32", shift_add<1>},
    {"s_lshl2_add_u32", shift_add<2>},
    {"s_lshl3_add_u32", shift_add<3>},
    {"s_lshl4_add_u32", shift_add<4>},
    {"s_min_i32", op2<[](u32 a, u32 b) { return static_cast<i32>(a) < static_cast<i32>(b) ? a : b; },
                      [](u32, u32 a, u32 b) { return int(static_cast<i32>(a) < static_cast<i32>(b)); }>},
    {"s_max_i32", op2<[](u32 a, u32 b) { return (static_cast<i32>(a) > static_cast<i32>(b) ? a : b); },
                      [](u32, u32 a, u32 b) { return (int(static_cast<i32>(a) > static_cast<i32>(b))); }>},
    {"s_min_u32", op2<[](u32 a, u32 b) { return std::min(a, b); }, [](u32, u32 a, u32 b) { return int(a < b); }>},
    {"s_max_u32", op2<[](u32 a, u32 b) { return std::max(a, b); }, [](u32, u32 a, u32 b) { return (int(a > b)); }>},
    {"s_abs_i32",
     [](Wave& w, const Inst& i) {
       const u32 a = scalar32(w, i.op[1]), r = a >> 31 ? 0 - a : a;
       w.scc = r != 0;
       w.s[i.op[0].index] = r;
     }},
    {"s_sext_i32_i8", op1<[](u32 a) { return static_cast<u32>(static_cast<i8>(a)); }>},
    {"s_sext_i32_i16", op1<[](u32 a) { return static_cast<u32>(static_cast<i16>(a)); }>},
    // bits
    {"s_brev_b32", op1<reverse_bits>},
    {"s_not_b32",
     [](Wave& w, const Inst& i) {
       const u32 r = ~scalar32(w, i.op[1]);
       w.scc = r != 0;
       w.s[i.op[0].index] = r;
     }},
    {"s_not_b64",
     [](Wave& w, const Inst& i) {
       const u64 r = ~scalar64(w, i.op[1]);
       w.scc = r != 0;
       w.set_s64(i.op[0].index, r);
     }},
    {"s_and_b32", bits<[](u32 a, u32 b) { return a & b; }>},
    {"s_or_b32", bits<[](u32 a, u32 b) { return a | b; }>},
    {"s_xor_b32", bits<[](u32 a, u32 b) { return a ^ b; }>},
    {"s_andn2_b32", bits<[](u32 a, u32 b) { return a & ~b; }>},
    {"s_orn2_b32", bits<[](u32 a, u32 b) { return a | ~b; }>},
    {"s_lshl_b32", bits<[](u32 a, u32 b) { return a << (b & 31); }>},
    {"s_lshr_b32", bits<[](u32 a, u32 b) { return (a >> (b & 31)); }>},
    {"s_ashr_i32", bits<[](u32 a, u32 b) { return (static_cast<u32>(static_cast<i32>(a) >> (b & 31))); }>},
    {"s_bfe_u32", bits<extract>},
    {"s_bfe_i32", bits<extract_signed>},
    {"s_bfm_b32", op2<[](u32 a, u32 b) { return ((1u << (a & 31)) - 1) << (b & 31); }, kUnchanged>},
    {"s_pack_ll_b32_b16", op2<[](u32 a, u32 b) { return (a & 0xffff) | b << 16; }, kUnchanged>},
    {"s_pack_lh_b32_b16", op2<[](u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000); }, kUnchanged>},
    {"s_pack_hh_b32_b16", op2<[](u32 a, u32 b) { return (a >> 16 | (b & 0xffff0000)); }, kUnchanged>},
    {"s_bitset0_b32", [](Wave& w, const Inst& i) { w.s[i.op[0].index] &= ~(1u << (scalar32(w, i.op[1]) & 31)); }},
    {"s_bitset1_b32", [](Wave& w, const Inst& i) { w.s[i.op[0].index] |= 1u << (scalar32(w, i.op[1]) & 31); }},
    {"s_and_b64", bits64<[](u64 a, u64 b) { return a & b; }>},
    {"s_or_b64", bits64<[](u64 a, u64 b) { return a | b; }>},
    {"s_xor_b64", bits64<[](u64 a, u64 b) { return a ^ b; }>},
    {"s_andn2_b64", bits64<[](u64 a, u64 b) { return a & ~b; }>},
    {"s_orn2_b64", bits64<[](u64 a, u64 b) { return a | ~b; }>},
    {"s_nor_b64", bits64<[](u64 a, u64 b) { return ~(a | b); }>},
    {"s_lshl_b64", bits64<[](u64 a, u64 b) { return a << (b & 63); }>},
    {"s_lshr_b64", bits64<[](u64 a, u64 b) { return (a >> (b & 63)); }>},
    {"s_ashr_i64", bits64<[](u64 a, u64 b) { return (static_cast<u64>(static_cast<i64>(a) >> (b & 63))); }>},
    {"s_ff1_i32_b32", op1<[](u32 a) { return a ? static_cast<u32>(std::countr_zero(a)) : ~0u; }>},
    {"s_flbit_i32_b32", op1<[](u32 a) { return a ? static_cast<u32>(std::countl_zero(a)) : ~0u; }>},
    {"s_ff1_i32_b64",
     [](Wave& w, const Inst& i) {
       const u64 a = scalar64(w, i.op[1]);
       w.s[i.op[0].index] = a ? static_cast<u32>(std::countr_zero(a)) : ~0u;
     }},
    {"s_bcnt1_i32_b64",
     [](Wave& w, const Inst& i) {
       const auto r = static_cast<u32>(std::popcount(scalar64(w, i.op[1])));
       w.scc = r != 0;
       w.s[i.op[0].index] = r;
     }},
    {"s_and_saveexec_b64", save_exec<[](u64 a, u64 exec) { return a & exec; }>},
    {"s_or_saveexec_b64", save_exec<[](u64 a, u64 exec) { return a | exec; }>},
    {"s_xor_saveexec_b64", save_exec<[](u64 a, u64 exec) { return a ^ exec; }>},
    {"s_andn2_saveexec_b64", save_exec<[](u64 a, u64 exec) { return a & ~exec; }>},
    // comparisons of 64 bits; the others are added below
    {"s_cmp_eq_u64", [](Wave& w, const Inst& i) { w.scc = scalar64(w, i.op[0]) == scalar64(w, i.op[1]); }},
    {"s_cmp_lg_u64", [](Wave& w, const Inst& i) { w.scc = scalar64(w, i.op[0]) != scalar64(w, i.op[1]); }},
    {"s_bitcmp0_b32", compare<u32, [](u32 a, u32 b) { return (!(a >> (b & 31) & 1)); }>},
    {"s_bitcmp1_b32", compare<u32, [](u32 a, u32 b) { return ((a >> (b & 31) & 1) != 0); }>},
    // control
    {"s_branch", branch<[](const Wave&) { return true; }>},
    {"s_cbranch_scc0", branch<[](const Wave& w) { return !w.scc; }>},
    {"s_cbranch_scc1", branch<[](const Wave& w) { return w.scc; }>},
    {"s_cbranch_vccz", branch<[](const Wave& w) { return w.s64(kVccLo) == 0; }>},
    {"s_cbranch_vccnz", branch<[](const Wave& w) { return w.s64(kVccLo) != 0; }>},
    {"s_cbranch_execz", branch<[](const Wave& w) { return w.exec() == 0; }>},
    {"s_cbranch_execnz", branch<[](const Wave& w) { return w.exec() != 0; }>},
    {"s_getpc_b64", [](Wave& w, const Inst& i) { w.set_s64(i.op[0].index, w.pc); }},
    {"s_setpc_b64", [](Wave& w, const Inst& i) { w.pc = w.s64(i.op[0].index); }},
    {"s_swappc_b64",
     [](Wave& w, const Inst& i) {
       const u64 target = w.s64(i.op[1].index);
       w.set_s64(i.op[0].index, w.pc);
       w.pc = target;
     }},
    {"s_barrier", [](Wave& w, const Inst&) { w.at_barrier = true; }},
    {"s_endpgm",
     [](Wave& w, const Inst&) {
       w.done = true;
       drain(w, w.memory, 0);
       drain(w, w.lds, 0);
       drain(w, w.scalar_memory, 0);
     }},
    {"s_waitcnt",
     [](Wave& w, const Inst& i) {
       if (i.wait_memory >= 0) drain(w, w.memory, static_cast<std::size_t>(i.wait_memory));
       if (i.wait_lds >= 0) drain(w, w.lds, static_cast<std::size_t>(i.wait_lds));
       if (i.wait_lds == 0) drain(w, w.scalar_memory, 0);  // scalar loads return in any order: only zero tells
     }},
    {"s_nop", [](Wave& w, const Inst& i) { w.states += i.op[0].literal32; }},
    {"s_memtime", [](Wave& w, const Inst& i) { w.set_s64(i.op[0].index, 4 * w.states); }},
    {"s_memrealtime", [](Wave& w, const Inst& i) { w.set_s64(i.op[0].index, w.states); }},
    {"s_setprio", nothing},
    {"s_sleep", nothing},
    {"s_sethalt", nothing},
    {"s_setreg_imm32_b32", nothing},
    {"s_icache_inv", nothing},
    {"s_dcache_inv", nothing},
    {"s_dcache_wb", nothing},
    {"s_ttracedata", nothing},
    {"buffer_inv", nothing},
    {"buffer_wbl2", nothing},
};

template <typename T>
void add_comparisons(std::vector<Entry>& entries, std::deque<std::string>& names, const char* type) {
  struct Relation {
    const char* name;
    Handler full, immediate;
  };
  constexpr auto lt = [](T a, T b) { return a < b; };
  constexpr auto le = [](T a, T b) { return a <= b; };
  constexpr auto gt = [](T a, T b) { return (a > b); };
  constexpr auto ge = [](T a, T b) { return (a >= b); };
  constexpr auto eq = [](T a, T b) { return a == b; };
  constexpr auto lg = [](T a, T b) { return a != b; };
  const Relation relations[] = {
      {"lt", compare<T, lt>, compare_short<T, lt>}, {"le", compare<T, le>, compare_short<T, le>},
      {"gt", compare<T, gt>, compare_short<T, gt>}, {"ge", compare<T, ge>, compare_short<T, ge>},
      {"eq", compare<T, eq>, compare_short<T, eq>}, {"lg", compare<T, lg>, compare_short<T, lg>},
  };
  for (const Relation& r : relations) {
    names.push_back(std::string("s_cmp_") + r.name + "_" + type);
    entries.push_back({names.back(), r.full});
    names.push_back(std::string("s_cmpk_") + r.name + "_" + type);
    entries.push_back({names.back(), r.immediate});
  }
}

}  // namespace

std::span<const Entry> scalar_entries() {
  static std::deque<std::string> names;
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all(std::begin(kEntries), std::end(kEntries));
    add_comparisons<i32>(all, names, "i32");
    add_comparisons<u32>(all, names, "u32");
    return all;
  }();
  return entries;
}

}  // namespace gfx950emu
