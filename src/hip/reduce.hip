// Merges the partial results of split rows: out = sum_i 2^(m_i - M) acc_i / (sum_i 2^(m_i - M) l_i + 2^(sink - M)).
//
// Sixteen lanes take one head of one row, so that a wave's instructions serve four heads (two where waves have 32 lanes). In the first step a lane holds m
// and l of one split, in the second 32 of the 512 value dims: eight times four, 64 apart. Splits with l = 0 are passed over
// whatever their acc holds: a record of zeros is read instead.
#include "core/gpu_args.h"
#include "hip/finish.h"

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

using namespace gpu;

constexpr int kRow = 16, kReduceHeads = 16;  // lanes a head; heads of a work-group
constexpr int kChunks = 512 / (4 * kRow);    // of four dims a lane
__attribute__((device)) const float kZeros[512] = {};

// The value that lane k of each row holds.
inline float from_row_lane(float x, int k) {
  const int lane = (lane_id() & ~(kRow - 1)) | k;
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(4 * lane, __builtin_bit_cast(int, x)));
}

template <typename Element>
inline void store(void* out, std::int64_t at, const f32x4 (&sum)[kChunks]) {
  using Four = Element __attribute__((ext_vector_type(4)));
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const Four rounded = __builtin_convertvector(sum[c], Four);
    __builtin_memcpy(static_cast<Element*>(out) + at + 4 * kRow * c, &rounded, sizeof rounded);
  }
}

inline void reduce(const MergeArgs& args) {
  const int token = static_cast<int>(__builtin_amdgcn_workgroup_id_x()), lane = lane_id(), column = lane & (kRow - 1);
  const int wanted = static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * kReduceHeads + kWave / kRow * wave_id() + lane / kRow;
  const int head = wanted < args.heads ? wanted : args.heads - 1;
  const std::int64_t row = static_cast<std::int64_t>(token) * args.splits * args.heads + head;
  const std::int64_t acc_stride = static_cast<std::int64_t>(args.heads) * 512;
  const float *acc = args.partials.acc + row * 512 + 4 * column, *zeros = kZeros + 4 * column;
  const auto max = [](float a, float b) { return __builtin_fmaxf(a, b); };
  const auto plus = [](float a, float b) { return a + b; };

  // Sixteen splits a round, rarely more than one round.
  float top = kMinusInf, total = 0;
  f32x4 sum[kChunks] = {};
  const auto round = [&](int base, bool is_first) {
    const int split = base + column;
    const bool there = split < args.splits;
    const std::int64_t at = row + static_cast<std::int64_t>(there ? split : base) * args.heads;
    const float listed = args.partials.l[at], its_m = args.partials.m[at], l = there ? listed : 0.0f,
                m = l == 0.0f ? kMinusInf : its_m;
    const float before = top;
    top = max(top, reduce_row(m, max));
    const float anchor = top == kMinusInf ? 0.0f : top;
    if (!is_first) {
      const float shrink = exp2_fast(before - anchor);
      total *= shrink;
      for (f32x4& x : sum) x *= shrink;
    }
    const float weight = exp2_fast(m - anchor);
    total += reduce_row(weight * l, plus);
    const int count = args.splits - base < kRow ? args.splits - base : kRow;
    for (int k = 0; k < count; ++k, acc += acc_stride) {
      const float w = from_row_lane(weight, k);
      const float* from = w == 0.0f ? zeros : acc;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) sum[c] += load_any<f32x4>(from + 4 * kRow * c) * w;
    }
  };
  if (args.splits > 0) round(0, true);
  for (int base = kRow; base < args.splits; base += kRow) round(base, false);

  const Finish result = finish(top, total, args.sink ? args.sink[head] : kMinusInf);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) sum[c] = result.scale == 0 ? f32x4{} : sum[c] * result.scale;
  if (wanted >= args.heads) return;
  const std::int64_t at = token * args.out_stride[0] + head * args.out_stride[1] + 4 * column;
  if (args.out_dtype == PASA_F32) {
    store<float>(args.out, at, sum);
  } else if (args.out_dtype == PASA_F16) {
    store<_Float16>(args.out, at, sum);
  } else {
    store<__bf16>(args.out, at, sum);
  }
  if (column != 0) return;
  if (args.lse) args.lse[token * args.lse_stride[0] + head * args.lse_stride[1]] = result.lse;
  if (args.max_logits)
    args.max_logits[token * args.max_logits_stride[0] + head * args.max_logits_stride[1]] = top * kLn2;
}

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end

extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void reduce(pasa::gpu::MergeArgs args) {
  pasa::hip::reduce(args);
}
