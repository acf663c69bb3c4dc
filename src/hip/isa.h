// The instructions that the kernels ask for by name, over clang's builtins: no ROCm header is needed. One thin function
// each, named after what it does; shapes of fragments as in docs/gfx950.md.
#pragma once

#include <cstdint>

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

using f32x2 = float __attribute__((ext_vector_type(2)));
using f32x4 = float __attribute__((ext_vector_type(4)));
using u32x2 = u32 __attribute__((ext_vector_type(2)));
using u32x4 = u32 __attribute__((ext_vector_type(4)));
using u16x2 = u16 __attribute__((ext_vector_type(2)));
using i16x2 = std::int16_t __attribute__((ext_vector_type(2)));
using f16x2 = _Float16 __attribute__((ext_vector_type(2)));
using bf16x2 = __bf16 __attribute__((ext_vector_type(2)));
// Fragments of bf16 or fp16.
template <typename Element>
using Four = Element __attribute__((ext_vector_type(4)));
template <typename Element>
using Eight = Element __attribute__((ext_vector_type(8)));

constexpr int kWave = PASA_GFX >= 0x1000 ? 32 : 64;  // PASA_GFX: the architecture, 0x950
constexpr float kMinusInf = -__builtin_inff();

template <typename T>
using Global = T __attribute__((address_space(1)));
// Global memory with the least assumptions: any alignment. (Loads through generic pointers would count as LDS accesses,
// too, and be waited for at the next barrier.)
template <typename T>
inline T load_any(const void* p) {
  T value;
  __builtin_memcpy(&value, (const Global<u8>*)p, sizeof value);
  return value;
}

// ---- lanes and waves
inline int lane_id() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()) & (kWave - 1); }
// The same, but nothing derived from it is kept in registers over a loop: where they are scarce.
inline int recomputed_lane_id() {
  int lane = lane_id();
  asm volatile("" : "+v"(lane));
  return lane;
}
inline int wave_id() {  // the same in all lanes, and the compiler may know
  return __builtin_amdgcn_readfirstlane(static_cast<int>(__builtin_amdgcn_workitem_id_x()) / kWave);
}
inline int opaque_zero() {
  int zero = 0;
  asm volatile("" : "+s"(zero));
  return zero;
}
inline u64 readlane(u64 value, int lane) {
  const auto low = static_cast<u32>(__builtin_amdgcn_readlane(static_cast<int>(value), lane));
  const auto high = static_cast<u32>(__builtin_amdgcn_readlane(static_cast<int>(value >> 32), lane));
  return low | static_cast<u64>(high) << 32;
}
// The pointer that `lane` holds; loads through it plus a 32-bit offset use a scalar base.
inline const Global<u8>* pointer_of_lane(const u8* pointer, int lane) {
  return reinterpret_cast<const Global<u8>*>(readlane(reinterpret_cast<u64>(pointer), lane));
}
// A lane's offset that the compiler is not to merge into 64-bit addresses: it stays the load's own 32-bit operand.
inline u32 lane_offset(u32 bytes) {
  asm("" : "+v"(bytes));
  return bytes;
}
// Over the 16 lanes of a row; every lane gets the result.
template <int Rotation>
inline float rotated(float x) {
  return __builtin_bit_cast(float,
                            __builtin_amdgcn_update_dpp(0, __builtin_bit_cast(int, x), 0x120 + Rotation, 15, 15, true));
}
template <typename Op>
inline float reduce_row(float x, Op op) {
  x = op(x, rotated<8>(x));
  x = op(x, rotated<4>(x));
  x = op(x, rotated<2>(x));
  return op(x, rotated<1>(x));
}
// Over the four lanes that share a column of a 16 x 16 fragment; every lane gets the result.
template <typename Op>
inline float reduce_groups(float x, Op op) {
  const auto both = [&](auto pair) {
    const u32 first = pair[0], second = pair[1];  // copies: clang casts the bits of a vector's first element
    return op(__builtin_bit_cast(float, first), __builtin_bit_cast(float, second));
  };
  const auto word = [](float y) { return __builtin_bit_cast(u32, y); };
  x = both(__builtin_amdgcn_permlane32_swap(word(x), word(x), false, false));
  return both(__builtin_amdgcn_permlane16_swap(word(x), word(x), false, false));
}
inline float maximum(float a, float b) { return __builtin_fmaxf(a, b); }
inline float plus(float a, float b) { return a + b; }
inline bool any(bool condition) { return __builtin_amdgcn_ballot_w64(condition) != 0; }

// ---- synchronisation
// All waves' LDS accesses before it are visible after it. Global loads may stay in flight.
inline void sync_lds() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
// Loads of this wave have arrived, direct ones in LDS (vmcnt 0; the other counters are left alone).
inline void wait_loads() { __builtin_amdgcn_s_waitcnt(0x0f70); }

// ---- LDS
template <typename T>
using Lds = T __attribute__((address_space(3)));
// Lane l copies 16 bytes from its offset behind `from` to lds + 16 l; both pointers are the same in all lanes.
inline void copy_to_lds(const Global<u8>* from, u32 offset, Lds<u8>* lds) {
  __builtin_amdgcn_global_load_lds(const_cast<Global<u8>*>(from + offset), lds, 16, 0, 0);
}
// The same, to lds + displacement, behind the compiler's back, which would wait for the copy before the next read of any
// LDS. It is up to the caller to wait_loads(), and to leave five instructions between a v_readlane of `from` and its use,
// which the compiler does not see here. Nothing else of gfx950 code uses m0.
inline void copy_to_lds_unwatched(const Global<u8>* from, u32 offset, Lds<u8>* lds, int displacement) {
  asm volatile("s_add_u32 m0, %0, %1\n\ts_nop 0\n\tglobal_load_lds_dwordx4 %2, %3"
               :
               : "s"(reinterpret_cast<u32>(lds)), "is"(displacement), "v"(offset), "s"(from)
               : "memory", "scc");
}
// 16 lanes read a 4 x 16 matrix of 16-bit elements, lane i naming elements 4 (i % 4).. of row i / 4; lane i gets column i.
template <typename Element>
inline Four<Element> read_transposed(const Lds<u8>* p) {
  using i16x4 = Four<std::int16_t>;
  const i16x4 column = __builtin_amdgcn_ds_read_tr16_b64_v4i16(reinterpret_cast<Lds<i16x4>*>(const_cast<Lds<u8>*>(p)));
  return __builtin_bit_cast(Four<Element>, column);
}

// ---- arithmetic
inline f32x4 mfma(Eight<__bf16> a, Eight<__bf16> b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
}
inline f32x4 mfma(Eight<_Float16> a, Eight<_Float16> b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
}
inline float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }  // 1 ulp; results below 2^-126 are 0
inline float log2_fast(float x) { return __builtin_amdgcn_logf(x); }
inline float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
inline bf16x2 to_bf16(f32x2 x) { return __builtin_convertvector(x, bf16x2); }
inline u32 bits(bf16x2 x) { return __builtin_bit_cast(u32, x); }
// Two OCP e4m3 codes of a word, times the power of two in the exponent of `scale` (all ones: NaN).
template <bool High>
inline u32 fp8_to_bf16(u32 codes, float scale) {
  return bits(__builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(codes, scale, High));
}
// One fp16 of a pair, times a float: exact product, rounded once.
template <bool High>
inline float multiply_f16(u32 pair, float factor) {
  float product;
  if constexpr (High) {
    asm("v_fma_mix_f32 %0, %1, %2, 0 op_sel:[1,0,0] op_sel_hi:[1,0,0]" : "=v"(product) : "v"(pair), "v"(factor));
  } else {
    asm("v_fma_mix_f32 %0, %1, %2, 0 op_sel_hi:[1,0,0]" : "=v"(product) : "v"(pair), "v"(factor));
  }
  return product;
}
template <bool High>
inline f32x2 fp8_to_float(u32 codes) {
  return __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(codes), High);
}

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end
