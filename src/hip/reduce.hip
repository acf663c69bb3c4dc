// Merges the partial results of split rows: out = sum_i 2^(m_i - M) acc_i / (sum_i 2^(m_i - M) l_i + 2^(sink - M)).
// One wave takes one head of one row, 8 value dims a lane; splits with l = 0 are passed over whatever their acc holds.
#include "hip/args.h"
#include "hip/finish.h"
#include "pasa/pasa.h"

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

constexpr int kReduceWaves = 4;  // heads of a work-group
constexpr int kRound = 16;

inline void reduce(const ReduceArgs& args) {
  const int token = static_cast<int>(__builtin_amdgcn_workgroup_id_x());
  const int head = static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * kReduceWaves + wave_id();
  if (head >= args.heads) return;
  const std::int64_t first = static_cast<std::int64_t>(token) * args.splits * args.heads + head;
  const int lane = lane_id(), dim = 8 * lane;
  const auto max = [](float a, float b) { return __builtin_fmaxf(a, b); };
  const auto plus = [](float a, float b) { return a + b; };

  // Sixteen splits a round, rarely more than one round. A lane holds m and l of one split; the four rows of lanes alike.
  float top = kMinusInf, total = 0;
  f32x4 sum[2] = {};
  const auto* acc = reinterpret_cast<const Global<u8>*>(reinterpret_cast<u64>(args.acc + first * 512));
  const auto acc_stride = static_cast<std::int64_t>(args.heads) * 512 * static_cast<std::int64_t>(sizeof(float));
  const u32 mine = lane_offset(static_cast<u32>(dim) * 4);
  for (int base = 0; base < args.splits; base += kRound) {
    const int split = base + (lane & (kRound - 1));
    const bool there = split < args.splits;
    const auto at = static_cast<u32>((there ? split : base) * args.heads);
    const float l = there ? (args.l + first)[at] : 0.0f;
    const float m = there && l != 0.0f ? (args.m + first)[at] : kMinusInf;
    const float before = top;
    top = max(top, reduce_row(m, max));
    const float anchor = top == kMinusInf ? 0.0f : top;
    if (base > 0) {
      const float shrink = exp2_fast(before - anchor);
      total *= shrink;
      for (f32x4& x : sum) x *= shrink;
    }
    const float weight = exp2_fast(m - anchor);
    total += reduce_row(weight * l, plus);
    const int count = args.splits - base < kRound ? args.splits - base : kRound;
    for (int k = 0; k < count; ++k, acc += acc_stride) {
      const float w = readlane(weight, k);
      if (__builtin_bit_cast(u32, w) == 0) continue;
      f32x4 part[2];
      __builtin_memcpy(part, acc + mine, sizeof part);
      sum[0] += part[0] * w;
      sum[1] += part[1] * w;
    }
  }
  const Finish result = finish(top, total, args.sink ? args.sink[head] : kMinusInf);
#pragma unroll
  for (int k = 0; k < 2; ++k) sum[k] = result.scale == 0 ? f32x4{} : sum[k] * result.scale;

  const std::int64_t at = token * args.out_stride[0] + head * args.out_stride[1] + dim;
  if (args.out_dtype == PASA_F32) {
    __builtin_memcpy(static_cast<float*>(args.out) + at, sum, sizeof sum);
  } else if (args.out_dtype == PASA_F16) {
    using f16x4 = _Float16 __attribute__((ext_vector_type(4)));
    const f16x4 rounded[2] = {__builtin_convertvector(sum[0], f16x4), __builtin_convertvector(sum[1], f16x4)};
    __builtin_memcpy(static_cast<u16*>(args.out) + at, rounded, sizeof rounded);
  } else {
    const bf16x4 rounded[2] = {__builtin_convertvector(sum[0], bf16x4), __builtin_convertvector(sum[1], bf16x4)};
    __builtin_memcpy(static_cast<u16*>(args.out) + at, rounded, sizeof rounded);
  }
  if (lane_id() != 0) return;
  if (args.lse) args.lse[token * args.lse_stride[0] + head * args.lse_stride[1]] = result.lse;
  if (args.max_logits) args.max_logits[token * args.max_logits_stride[0] + head * args.max_logits_stride[1]] = top * kLn2;
}

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end

extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void reduce(pasa::hip::ReduceArgs args) {
  pasa::hip::reduce(args);
}
