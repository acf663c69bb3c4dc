// One block per row and eight heads, a warp per head: the block dequantises a key into shared memory, each warp takes its
// score and adds its value, all in double.
#include "harness/cuda_reference.h"

#include <cuda_runtime.h>

#include "core/problem.h"
#include "cuda/device.h"

namespace pasa {
namespace {

constexpr int kHeads = 8, kLanes = 32;

// A component of a key, from docs/formats.md.
template <typename Format>
__device__ float element(const Source& source, std::int64_t page_tokens, std::int64_t slot, int d) {
  const std::uint8_t* page = source.kv + slot / page_tokens * source.page_stride;
  const std::uint8_t* record = page + slot % page_tokens * Format::kRecordBytes;
  const Row row{record, nullptr, source.pe + slot * source.pe_stride};
  if (d >= Format::kNope) {
    const std::uint8_t* at = Format::component(row, d);
    const auto word = static_cast<std::uint16_t>(at[0] | at[1] << 8);
    return Format::kWord == Word16::kBf16 ? bf16_to_float(word) : f16_to_float(word);
  }
  if constexpr (Format::kNope > 0) {
    const int tile = d / Format::kScaleTile;
    float scale = 1.0f;
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      scale = ue8m0_to_float(page[page_tokens * Format::kRecordBytes + slot % page_tokens * Format::kTailBytes + tile]);
    } else if constexpr (Format::kScaling != Scaling::kNone) {
      const std::uint8_t* at = Format::kScaling == Scaling::kSideFloat
                                   ? source.scales + slot * source.scale_stride + 4 * tile
                                   : record + Format::kNope + 4 * tile;
      scale = *reinterpret_cast<const float*>(at);
    }
    return fp8_to_float(Format::kFlavour, *Format::component(row, d)) * scale;
  }
  return 0;
}

__device__ float component(const Source& source, const SourceShape& shape, int dim, std::int64_t slot, int d) {
  const std::int64_t page = shape.page_tokens;
  switch (shape.format) {
    case PASA_KV_BF16:
    case PASA_KV_PACKED_BF16:
      return dim == 512 ? element<Bf16<512>>(source, page, slot, d) : element<Bf16<576>>(source, page, slot, d);
    case PASA_KV_F16:
      return dim == 512 ? element<F16<512>>(source, page, slot, d) : element<F16<576>>(source, page, slot, d);
    case PASA_KV_FP8_E4M3FN:
      return dim == 512 ? element<UniformFp8<Fp8::kE4m3fn>>(source, page, slot, d)
                        : element<DenseFp8<Fp8::kE4m3fn>>(source, page, slot, d);
    case PASA_KV_FP8_E4M3FNUZ:
      return dim == 512 ? element<UniformFp8<Fp8::kE4m3fnuz>>(source, page, slot, d)
                        : element<DenseFp8<Fp8::kE4m3fnuz>>(source, page, slot, d);
    case PASA_KV_FP8_DS_MLA:
      return element<Fp8DsMla>(source, page, slot, d);
    case PASA_KV_FP8_V32:
      return element<Fp8V32>(source, page, slot, d);
    default:
      return kNan;
  }
}

// What the kernel needs of a Problem, which itself holds a std::string.
struct View {
  Shape shape;
  Source sources[2];
  const std::uint16_t* q;
  std::int64_t q_stride[2];
  double scale_log2, value_scale;
  const float* sink;
};

__global__ void __launch_bounds__(kHeads* kLanes) attend(const __grid_constant__ View p, const DeviceReference result) {
  __shared__ double key[kMaxDim];
  const std::int64_t t = blockIdx.x;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes,
            head = static_cast<int>(blockIdx.y) * kHeads + warp;
  const bool live = head < p.shape.heads;
  double q[kMaxDim / kLanes] = {}, acc[kValueDim / kLanes] = {};
  if (live) {
    for (int i = 0; i < p.shape.dim / kLanes; ++i) {
      const std::uint16_t word = p.q[t * p.q_stride[0] + head * p.q_stride[1] + i * kLanes + lane];
      q[i] = p.shape.word == Word16::kBf16 ? bf16_to_float(word) : f16_to_float(word);
    }
  }
  double m = -INFINITY, l = 0;
  for (int s = 0; s < p.shape.source_count; ++s) {
    const Source& source = p.sources[s];
    const std::int64_t list = t / source.queries_per_list;
    std::int64_t begin = list * source.index_stride, count = source.width;
    if (source.indptr) {
      begin = min(max(static_cast<std::int64_t>(source.indptr[list]), std::int64_t{0}), source.nnz);
      count = min(max(static_cast<std::int64_t>(source.indptr[list + 1]), begin), source.nnz) - begin;
    } else if (source.lengths) {
      count = min(max(static_cast<std::int64_t>(source.lengths[list]), std::int64_t{0}), source.width);
    }
    count -= source.queries_per_list - 1 - t % source.queries_per_list;  // of tokens behind this row's
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t slot = source.indices[begin + i];
      if (slot < 0 || slot >= source.slots) continue;  // the whole block agrees
      __syncthreads();
      for (int d = static_cast<int>(threadIdx.x); d < p.shape.dim; d += kHeads * kLanes) {
        const float x = component(source, p.shape.source[s], p.shape.dim, slot, d);
        key[d] = p.shape.nan_to_zero && is_nan(x) ? 0.0f : x;
      }
      __syncthreads();
      double dot = 0;
      for (int j = 0; j < p.shape.dim / kLanes; ++j) dot += q[j] * key[j * kLanes + lane];
      for (int offset = kLanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(~0u, dot, offset);
      const double s2 = dot * p.scale_log2;
      if (s2 > m) {
        const double shrink = exp2(m - s2);
        l *= shrink;
        for (double& a : acc) a *= shrink;
        m = s2;
      }
      const double weight = s2 == -INFINITY ? 0 : exp2(s2 - m);
      l += weight;
      for (int j = 0; j < kValueDim / kLanes; ++j) acc[j] += weight * key[j * kLanes + lane];
    }
  }
  if (!live) return;
  const double ln2 = 0.69314718055994530942, sink = p.sink ? p.sink[head] : -INFINITY;
  double scale = 0, lse = -INFINITY;
  if (l != 0) {
    lse = m * ln2 + log(l);
    const double top = fmax(sink, m * ln2), weight = exp(m * ln2 - top);
    scale = sink == INFINITY ? 0 : p.value_scale * weight / (l * weight + exp(sink - top));
    if (isnan(sink)) scale = NAN;
  }
  const std::int64_t at = t * p.shape.heads + head;
  for (int j = 0; j < kValueDim / kLanes; ++j) {
    result.out[at * kValueDim + j * kLanes + lane] = static_cast<float>(scale == 0 ? 0 : acc[j] * scale);
  }
  if (lane == 0 && result.lse) result.lse[at] = static_cast<float>(lse);
  if (lane == 0 && result.max_logits) result.max_logits[at] = static_cast<float>(l == 0 ? -INFINITY : m * ln2);
}

__device__ float difference(float got, float want) {
  if (isnan(want)) return isnan(got) ? 0.0f : INFINITY;
  if (got == want) return 0;
  const float error = fabsf(got - want);
  return isnan(error) ? INFINITY : error;
}

// Floats that are not negative order like their bits.
__device__ void raise(float* largest, float value) {
  atomicMax(reinterpret_cast<unsigned*>(largest), __float_as_uint(value));
}

__global__ void add_errors(const __grid_constant__ View p, const std::uint16_t* out, std::int64_t stride_t,
                           std::int64_t stride_h, const float* lse, std::int64_t lse_t, std::int64_t lse_h,
                           const DeviceReference want, ErrorSums* sums) {
  const std::int64_t t = blockIdx.x;
  double squared_error = 0, squared_reference = 0;
  float largest = 0, largest_lse = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.shape.heads * kValueDim; i += static_cast<int>(blockDim.x)) {
    const int head = i / kValueDim, d = i % kValueDim;
    const std::uint16_t word = out[t * stride_t + head * stride_h + d];
    const float got = p.shape.word == Word16::kBf16 ? bf16_to_float(word) : f16_to_float(word);
    const float wanted = want.out[(t * p.shape.heads + head) * kValueDim + d];
    const float error = difference(got, wanted);
    largest = fmaxf(largest, error);
    squared_error += static_cast<double>(error) * error;
    squared_reference += static_cast<double>(wanted) * wanted;
    if (d == 0 && lse) {
      largest_lse = fmaxf(largest_lse, difference(lse[t * lse_t + head * lse_h], want.lse[t * p.shape.heads + head]));
    }
  }
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    squared_error += __shfl_xor_sync(~0u, squared_error, offset);
    squared_reference += __shfl_xor_sync(~0u, squared_reference, offset);
  }
  if (threadIdx.x % kLanes == 0) {
    atomicAdd(&sums->squared_error, squared_error);
    atomicAdd(&sums->squared_reference, squared_reference);
  }
  raise(&sums->largest_error, largest);
  raise(&sums->largest_lse_error, largest_lse);
}

View view_of(const Problem& p) {
  return {.shape = p,
          .sources = {p.sources[0], p.sources[1]},
          .q = p.q,
          .q_stride = {p.q_stride[0], p.q_stride[1]},
          .scale_log2 = p.scale_log2,
          .value_scale = p.value_scale,
          .sink = p.sink};
}

}  // namespace

void device_reference(const pasa_problem& problem, const DeviceReference& result, cudaStream_t stream) {
  const Problem p = check(problem, Stage::kRun);
  if (p.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(p.tokens), static_cast<unsigned>((p.heads + kHeads - 1) / kHeads));
  attend<<<grid, kHeads * kLanes, 0, stream>>>(view_of(p), result);
  cuda::check(cudaGetLastError(), "reference");
}

void sum_errors(const pasa_problem& problem, const DeviceReference& want, ErrorSums* sums, cudaStream_t stream) {
  const Problem p = check(problem, Stage::kRun);
  cuda::check(cudaMemsetAsync(sums, 0, sizeof *sums, stream), "cudaMemsetAsync");
  if (p.tokens == 0) return;
  add_errors<<<static_cast<unsigned>(p.tokens), 256, 0, stream>>>(view_of(p), p.out, p.out_stride[0], p.out_stride[1],
                                                                  want.lse ? p.lse : nullptr, p.lse_stride[0],
                                                                  p.lse_stride[1], want, sums);
  cuda::check(cudaGetLastError(), "sum_errors");
}

}  // namespace pasa
