// Merges the partial results of a split row: the last launch of a split problem, and pasa_reduce.
//
// One block per (row, head). Its threads first agree on the weights of the parts, core/softmax.h's merge, then each adds up
// four value components over the parts. The order of every sum is fixed, so equal inputs give equal bits. A part with l = 0
// is skipped whatever its acc holds.
#include <cuda_runtime.h>

#include <nv/target>

#include "core/softmax.h"
#include "cuda/device.h"
#include "cuda/launch.h"

namespace pasa::cuda {
namespace {

constexpr int kThreads = kValueDim / 4, kWarps = kThreads / 32, kBatch = 8;

// Every thread gets combine() over all threads' values; combine is associative up to rounding, the order is fixed.
template <typename Combine>
__device__ float over_block(float value, float (&scratch)[kWarps], Combine combine) {
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, scratch[warp]);
  __syncthreads();
  return value;
}

__device__ void write4(void* out, pasa_dtype dtype, std::int64_t at, const float (&x)[4]) {
  if (dtype == PASA_F32) {
    auto* to = static_cast<float*>(out) + at;
    for (int i = 0; i < 4; ++i) to[i] = x[i];
    return;
  }
  std::uint16_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = dtype == PASA_BF16 ? float_to_bf16(x[i]) : float_to_f16(x[i]);
  auto* to = static_cast<std::uint16_t*>(out) + at;
  if (reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
    *reinterpret_cast<uint2*>(to) = {words[0] | static_cast<std::uint32_t>(words[1]) << 16,
                                     words[2] | static_cast<std::uint32_t>(words[3]) << 16};
  } else {
    for (int i = 0; i < 4; ++i) to[i] = words[i];
  }
}

__global__ void __launch_bounds__(kThreads) merge(const __grid_constant__ MergeArgs args) {
  __shared__ float scratch[kWarps];
  __shared__ float weight[kThreads];
  __shared__ bool live[kThreads];
  // Launched while the kernel that makes the partials still runs: this waits for its end.
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.wait;" ::: "memory");))

  const std::int64_t token = blockIdx.x / static_cast<unsigned>(args.heads);
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(args.heads));
  const std::int64_t first = token * args.splits * args.heads + head;  // in m and l; parts are `heads` apart

  float top = -kInfinity;
  for (int part = threadIdx.x; part < args.splits; part += kThreads) {
    const std::int64_t i = first + static_cast<std::int64_t>(part) * args.heads;
    if (args.partials.l[i] != 0) top = fmaxf(top, args.partials.m[i]);
  }
  top = over_block(top, scratch, [](float a, float b) { return fmaxf(a, b); });

  float sum = 0, acc[4] = {};
  for (int base = 0; base < args.splits; base += kThreads) {
    const int part = base + static_cast<int>(threadIdx.x);
    float l = 0, mine = 0;
    if (part < args.splits) {
      const std::int64_t i = first + static_cast<std::int64_t>(part) * args.heads;
      l = args.partials.l[i];
      if (l != 0) mine = merge_weight(args.partials.m[i], top);
    }
    sum += mine * l;
    weight[threadIdx.x] = mine;
    live[threadIdx.x] = l != 0;
    __syncthreads();
    const int count = min(kThreads, args.splits - base);
    for (int j = 0; j < count; j += kBatch) {  // a batch's loads are in flight together: no branch between them
      float4 x[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::int64_t from = first + static_cast<std::int64_t>(base + min(j + i, count - 1)) * args.heads;
        x[i] = *reinterpret_cast<const float4*>(args.partials.acc + from * kValueDim + 4 * threadIdx.x);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (j + i < count && live[j + i]) {
          acc[0] += weight[j + i] * x[i].x;
          acc[1] += weight[j + i] * x[i].y;
          acc[2] += weight[j + i] * x[i].z;
          acc[3] += weight[j + i] * x[i].w;
        }
      }
    }
    __syncthreads();
  }
  sum = over_block(sum, scratch, [](float a, float b) { return a + b; });

  const Finish end = finish(top, sum, args.sink ? args.sink[head] : -kInfinity);
  for (float& x : acc) x = end.scale == 0 ? 0.0f : x * end.scale;
  write4(args.out, args.out_dtype, at(args.out_stride, token, head) + 4 * threadIdx.x, acc);
  if (threadIdx.x == 0) {
    if (args.lse) args.lse[at(args.lse_stride, token, head)] = end.lse;
    if (args.max_logits) args.max_logits[at(args.max_logits_stride, token, head)] = top * kLn2;
  }
}

}  // namespace

void launch_merge(const MergeArgs& args, bool overlap, void* stream) {
  const std::int64_t blocks = args.tokens * args.heads;
  if (blocks == 0) return;
  require(PASA_ERROR_OVERFLOW, blocks <= INT32_MAX, "acc has ", args.tokens, " tokens, expected at most ",
          INT32_MAX / args.heads);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {.gridDim = dim3(static_cast<unsigned>(blocks)),
                                     .blockDim = dim3(kThreads),
                                     .dynamicSmemBytes = 0,
                                     .stream = static_cast<cudaStream_t>(stream),
                                     .attrs = &attribute,
                                     .numAttrs = overlap ? 1u : 0u};
  check(cudaLaunchKernelEx(&config, merge, args), "merge");
}

}  // namespace pasa::cuda
