// The operations on CUDA devices, each one launch on the caller's stream.
//
// Caches: a warp per token, 8 components per lane and step, so that codes move as 8 bytes and 16-bit numbers as 16 where the
// addresses allow it; a group's amax is a few shuffles. Lists: a block takes a few rows and adds up the lengths of all rows
// before its own by itself (they follow from a few integers each), so nothing passes between blocks. Only the builder that
// drops entries (kCompact) has lengths that must be counted first: for more than one row it is launched cooperatively and waits
// for the whole grid between counting and writing. Compiled without fused multiply-adds, as the CPU's loops are.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "core/error.h"
#include "cuda/device.h"
#include "ops/cache.h"
#include "ops/lists.h"
#include "ops/merge.h"
#include "ops/run.h"

namespace pasa::ops {
namespace {

constexpr int kThreads = 256, kLanes = 32, kWarps = kThreads / kLanes;
constexpr int kUnit = 8;               // components that a lane handles at a time
constexpr int kStep = kUnit * kLanes;  // and a warp
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
__device__ int warp() { return static_cast<int>(threadIdx.x) / kLanes; }

// ---- N 32-bit words at an address that is a multiple of `alignment`, which is the same for all threads

template <int N>
struct Words {
  std::uint32_t word[N];
};

template <typename Part, int N>
__device__ void move(Words<N>& to, const void* from) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof to / sizeof(Part)); ++i) {
    const Part part = static_cast<const Part*>(from)[i];
    memcpy(reinterpret_cast<char*>(&to) + i * sizeof part, &part, sizeof part);
  }
}
template <typename Part, int N>
__device__ void move(void* to, const Words<N>& from) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof from / sizeof(Part)); ++i) {
    Part part;
    memcpy(&part, reinterpret_cast<const char*>(&from) + i * sizeof part, sizeof part);
    static_cast<Part*>(to)[i] = part;
  }
}

template <int N, typename To, typename From>
__device__ void move_aligned(To& to, From& from, int alignment) {
  if (N % 4 == 0 && alignment >= 16) {
    move<uint4>(to, from);
  } else if (alignment >= 8) {
    move<uint2>(to, from);
  } else if (alignment >= 4) {
    move<std::uint32_t>(to, from);
  } else if (alignment >= 2) {
    move<std::uint16_t>(to, from);
  } else {
    move<std::uint8_t>(to, from);
  }
}
template <int N>
__device__ Words<N> load(const void* from, int alignment) {
  Words<N> words;
  move_aligned<N>(words, from, alignment);
  return words;
}
template <int N>
__device__ void store(void* to, const Words<N>& words, int alignment) {
  move_aligned<N>(to, words, alignment);
}

__device__ std::uint16_t half_of(const Words<4>& words, int i) {
  return static_cast<std::uint16_t>(words.word[i / 2] >> (16 * (i % 2)));
}

// ---- caches

// encode() and dequantize() of two neighbours. The hardware's conversions round and saturate as the definitions do; the NaN
// that they give is 0x7fff, which no number rounds to.
template <typename Format>
__device__ std::uint32_t encode_pair(float x, float y, GroupScale scale) {
  if constexpr (Format::kFlavour == Fp8::kE4m3fnuz) {
    return encode<Format>(x, scale) | std::uint32_t{encode<Format>(y, scale)} << 8;
  } else {
    return __nv_cvt_float2_to_fp8x2({rescale<Format>(x, scale), rescale<Format>(y, scale)}, __NV_SATFINITE, __NV_E4M3);
  }
}

template <typename Format, Word16 Out>
__device__ std::uint32_t dequantize_pair(std::uint16_t codes, float scale, bool nan_to_zero) {
  float2 x;
  if constexpr (Format::kFlavour == Fp8::kE4m3fnuz) {
    x = {decode_fp8<Fp8::kE4m3fnuz>(static_cast<std::uint8_t>(codes)),
         decode_fp8<Fp8::kE4m3fnuz>(static_cast<std::uint8_t>(codes >> 8))};
  } else {
    x = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
  }
  x = {x.x * scale, x.y * scale};
  std::uint32_t words;
  if constexpr (Out == Word16::kBf16) {
    const __nv_bfloat162 pair = __float22bfloat162_rn(x);
    memcpy(&words, &pair, sizeof words);
  } else {
    const __half2 pair = __float22half2_rn(x);
    memcpy(&words, &pair, sizeof words);
  }
  const std::uint32_t is_nan = __vcmpeq2(words, 0x7fff7fffu), nan = nan_to_zero ? 0 : encode_word<Out>(kNan) * 0x10001u;
  return (words & ~is_nan) | (nan & is_nan);
}

template <typename Format>
__global__ void __launch_bounds__(kThreads, 8) write_tokens(const __grid_constant__ CacheWrite call) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + warp();
  if (token >= call.tokens) return;
  const std::uint16_t* k = call.k + token * call.k_stride;
  constexpr int kSteps = (Format::kDim + kStep - 1) / kStep;
  Words<4> words[kSteps];  // all loads before the first use, the slot's too
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int d = step * kStep + lane() * kUnit;
    words[step] = d < Format::kDim ? load<4>(k + d, call.k_alignment) : Words<4>{};
  }
  const std::int64_t slot = call.slot_mapping[token];
  if (slot < 0 || slot >= call.cache.slots) return;
  const Spot spot = locate<Format>(call.cache, slot);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int d = step * kStep + lane() * kUnit;
    if (step * kStep < Format::kNope) {
      constexpr int kGroupLanes = Format::kScaleTile > kUnit ? Format::kScaleTile / kUnit : 1;
      float x[kUnit];
      std::uint32_t amax = 0;
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        x[i] = bf16_to_float(half_of(words[step], i));
        amax = raise_amax_bits(amax, x[i]);
      }
#pragma unroll
      for (int mask = kGroupLanes / 2; mask > 0; mask /= 2) {
        amax = max(amax, __shfl_xor_sync(kAllLanes, amax, mask));
      }
      if (d < Format::kNope) {
        const GroupScale scale = group_scale<Format>(amax, call.v32_scale);
        if (lane() % kGroupLanes == 0) store_scale<Format>(spot, d / (kGroupLanes * kUnit), scale);
        Words<2> codes{};
#pragma unroll
        for (int i = 0; i < kUnit; i += 2) {
          codes.word[i / 4] |= encode_pair<Format>(x[i], x[i + 1], scale) << (8 * (i % 4));
        }
        store(spot.record + d, codes, call.cache.alignment);
      }
    }
    if (d >= Format::kNope && d < Format::kDim) {
      store(spot.record + Format::kRopeOffset + 2 * (d - Format::kNope), words[step], call.cache.alignment);
    }
  }
}

// A warp dequantises one token.
template <typename Format, Word16 Out>
__device__ void read_token(const CacheGather& call, Spot spot, std::uint16_t* out) {
  constexpr int kSteps = (Format::kDim + kStep - 1) / kStep;
  Words<2> codes[kSteps];
  Words<4> words[kSteps];
  float scales[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int d = step * kStep + lane() * kUnit;
    if (d < Format::kNope) {
      codes[step] = load<2>(spot.record + d, call.cache.alignment);
      if constexpr (Format::kNope > 0) scales[step] = load_scale<Format>(spot, d / Format::kScaleTile);
    } else if (d < Format::kDim) {
      words[step] = load<4>(spot.record + Format::kRopeOffset + 2 * (d - Format::kNope), call.cache.alignment);
    }
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int d = step * kStep + lane() * kUnit;
    Words<4> result{};
    if (d >= Format::kDim) break;
#pragma unroll
    for (int i = 0; i < kUnit; i += 2) {
      if (d < Format::kNope) {
        const auto pair = static_cast<std::uint16_t>(codes[step].word[i / 4] >> (8 * (i % 4)));
        result.word[i / 2] = dequantize_pair<Format, Out>(pair, scales[step], call.nan_to_zero);
      } else {
        result.word[i / 2] = convert<Format, Out>(half_of(words[step], i), call.nan_to_zero) |
                             std::uint32_t{convert<Format, Out>(half_of(words[step], i + 1), call.nan_to_zero)} << 16;
      }
    }
    store(out + d, result, call.out_alignment);
  }
}

template <typename Format, Word16 Out>
__global__ void __launch_bounds__(kThreads, 6) gather_slots(const __grid_constant__ CacheGather call) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp();
  if (row >= call.max_tokens) return;
  const std::int64_t slot = call.slots[row];
  if (slot < 0 || slot >= call.cache.slots) return;
  read_token<Format, Out>(call, locate<Format>(call.cache, slot), call.out + row * call.out_stride[1]);
}

// Block row y takes requests y, y + gridDim.y, ...; its warps share the tokens of each.
template <typename Format, Word16 Out>
__global__ void __launch_bounds__(kThreads, 6) gather_sequences(const __grid_constant__ CacheGather call) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t r = blockIdx.y; r < call.requests; r += gridDim.y) {
    const GatherRange range = gather_range(call, r);
    std::uint16_t* out = call.out + r * call.out_stride[0] + call.offset * call.out_stride[1];
    for (std::int64_t i = range.begin + std::int64_t{blockIdx.x} * kWarps + warp(); i < range.end; i += stride) {
      const auto position = static_cast<std::uint32_t>(range.first + i);
      const std::int64_t page = page_of(call, r, position);
      if (page < 0) continue;
      const Spot spot = locate<Format>(call.cache, static_cast<std::uint32_t>(page), position % call.cache.block_size);
      read_token<Format, Out>(call, spot, out + i * call.out_stride[1]);
    }
  }
}

// ---- element by element

template <typename Call>
__global__ void __launch_bounds__(kThreads) each(const __grid_constant__ Call call) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < call.count) call(i);
}

// ---- lists

// The sum over the block of the threads before this one, and of all.
struct Scan {
  int before, total;
};
__device__ Scan scan(int x) {
  __shared__ int sums[kWarps];
  int inclusive = x;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, inclusive, distance);
    if (lane() >= distance) inclusive += other;
  }
  __syncthreads();  // the previous scan's readers are done
  if (lane() == kLanes - 1) sums[warp()] = inclusive;
  __syncthreads();
  Scan result{inclusive - x, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp()) result.before += sums[w];
    result.total += sums[w];
  }
  return result;
}

constexpr int kEntries = 4;  // of a row, per thread and step
constexpr int kRowStep = kThreads * kEntries;

// One step of a compact row: the entries of this thread and how many the threads before it keep.
struct Kept {
  std::int32_t index[kEntries];
  Scan place;
};
template <typename Row>
__device__ Kept keep(const Row& row, std::int64_t start) {
  Kept kept;
  int count = 0;
#pragma unroll
  for (int e = 0; e < kEntries; ++e) {
    const std::int64_t j = start + static_cast<int>(threadIdx.x) * kEntries + e;
    kept.index[e] = j < row.count ? row[j] : -1;
    count += kept.index[e] >= 0;
  }
  kept.place = scan(count);
  return kept;
}
__device__ void put(const Kept& kept, std::int32_t* out) {
  out += kept.place.before;
#pragma unroll
  for (int e = 0; e < kEntries; ++e) {
    if (kept.index[e] >= 0) *out++ = kept.index[e];
  }
}

template <typename Builder>
__device__ int write_row(const Builder& builder, std::int64_t t, std::int32_t* out) {
  const auto row = builder.row(t);
  int written = 0;
  for (std::int64_t start = 0; start < row.count; start += kRowStep) {
    if constexpr (Builder::kCompact) {
      const Kept kept = keep(row, start);
      put(kept, out + written);
      written += kept.place.total;
    } else {
      std::int32_t index[kEntries];  // all loads before the first store
#pragma unroll
      for (int e = 0; e < kEntries; ++e) {
        const std::int64_t j = start + e * kThreads + threadIdx.x;
        if (j < row.count) index[e] = row[j];
      }
#pragma unroll
      for (int e = 0; e < kEntries; ++e) {
        const std::int64_t j = start + e * kThreads + threadIdx.x;
        if (j < row.count) out[j] = index[e];
      }
    }
  }
  return Builder::kCompact ? written : static_cast<int>(row.count);
}

// The builder, with what it searches where a search is quick: for one wait for memory, not one a step.
constexpr std::int64_t kCachedStarts = 1024;
template <typename Builder>
__device__ decltype(auto) cached(const Builder& builder) {
  if constexpr (requires { builder.query_start_loc; }) {
    __shared__ std::int32_t starts[kCachedStarts];
    Builder its = builder;
    if (its.requests == 0 || its.requests >= kCachedStarts) return its;
    for (std::int64_t i = threadIdx.x; i <= its.requests; i += kThreads) starts[i] = builder.query_start_loc[i];
    __syncthreads();
    its.query_start_loc = starts;
    return its;
  } else {
    return (builder);
  }
}

template <typename Builder>
__global__ void __launch_bounds__(kThreads) build(const __grid_constant__ List<Builder> list) {
  const Lists& lists = list.lists;
  const auto& builder = cached(list.builder);
  const std::int64_t each = (lists.rows + gridDim.x - 1) / gridDim.x;
  const std::int64_t first = smaller(each * blockIdx.x, lists.rows), last = smaller(first + each, lists.rows);
  const bool leader = threadIdx.x == 0;
  if (!lists.indptr) {
    for (std::int64_t t = first; t < last; ++t) {
      std::int32_t* out = lists.indices + t * lists.stride;
      const int count = write_row(builder, t, out);
      for (std::int64_t j = count + static_cast<int>(threadIdx.x); j < lists.width; j += kThreads) out[j] = -1;
      if (leader && lists.lengths) lists.lengths[t] = count;
    }
    return;
  }
  Kept only;  // of a block with one row of one step, which need not be looked up again
  bool is_only = false;
  if constexpr (Builder::kCompact) {
    for (std::int64_t t = first; t < last; ++t) {
      const auto row = builder.row(t);
      int count = 0;
      for (std::int64_t start = 0; start < row.count; start += kRowStep) {
        only = keep(row, start);
        count += only.place.total;
      }
      is_only = each == 1 && row.count > 0 && row.count <= kRowStep;
      if (leader) lists.lengths[t] = count;
    }
    if (gridDim.x > 1) cooperative_groups::this_grid().sync();
  }
  int before = 0;
  for (std::int64_t t = threadIdx.x; t < first; t += kThreads) {
    if constexpr (Builder::kCompact) {
      before += lists.lengths[t];
    } else {
      before += static_cast<int>(builder.row(t).count);
    }
  }
  int begin = scan(before).total;
  if (leader && blockIdx.x == 0) lists.indptr[0] = 0;
  for (std::int64_t t = first; t < last; ++t) {
    int count;
    if (is_only) {
      put(only, lists.indices + begin);
      count = only.place.total;
    } else {
      count = write_row(builder, t, lists.indices + begin);
    }
    begin += count;
    if (leader) {
      lists.indptr[t + 1] = begin;
      if (!Builder::kCompact && lists.lengths) lists.lengths[t] = count;
    }
  }
}

// ---- results: a thread per row and head for its weights, then a warp for its components

constexpr int kMergeRows = kLanes;  // of a block

// kUnit components from element i on.
__device__ void load_unit(float (&x)[kUnit], const void* data, pasa_dtype dtype, std::int64_t i, int alignment) {
  if (dtype == PASA_F32) {
    const auto words = load<kUnit>(static_cast<const float*>(data) + i, alignment);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) x[e] = __uint_as_float(words.word[e]);
  } else {
    const auto words = load<kUnit / 2>(static_cast<const std::uint16_t*>(data) + i, alignment);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) {
      x[e] = dtype == PASA_BF16 ? bf16_to_float(half_of(words, e)) : f16_to_float(half_of(words, e));
    }
  }
}
__device__ void store_unit(void* data, pasa_dtype dtype, std::int64_t i, const float (&x)[kUnit], int alignment) {
  if (dtype == PASA_F32) {
    Words<kUnit> words;
#pragma unroll
    for (int e = 0; e < kUnit; ++e) words.word[e] = __float_as_uint(x[e]);
    store(static_cast<float*>(data) + i, words, alignment);
  } else {
    Words<kUnit / 2> words{};
#pragma unroll
    for (int e = 0; e < kUnit; ++e) {
      words.word[e / 2] |= std::uint32_t{dtype == PASA_BF16 ? float_to_bf16(x[e]) : float_to_f16(x[e])}
                           << (16 * (e % 2));
    }
    store(static_cast<std::uint16_t*>(data) + i, words, alignment);
  }
}

__global__ void __launch_bounds__(kThreads) merge(const __grid_constant__ Merge call) {
  __shared__ MergeWeights weights[kMergeRows];
  const std::int64_t first = std::int64_t{blockIdx.x} * kMergeRows, rows = call.tokens * call.heads;
  if (const std::int64_t i = first + lane(); warp() == 0 && i < rows) {
    const std::int64_t t = i / call.heads, h = i % call.heads;
    weights[lane()] = call.weights(t, h);
    if (call.lse.data) call.lse.data[call.lse.at(t, h)] = canonical(weights[lane()].lse);
  }
  __syncthreads();
  for (int row = warp(); row < kMergeRows && first + row < rows; row += kWarps) {
    const std::int64_t t = (first + row) / call.heads, h = (first + row) % call.heads;
    const MergeWeights w = weights[row];
#pragma unroll
    for (int d = lane() * kUnit; d < kValueDim; d += kStep) {
      float x[kUnit] = {}, y[kUnit] = {};
      if (w.use_a) load_unit(x, call.out_a.data, call.dtype_a, call.out_a.at(t, h) + d, call.alignment);
      if (w.use_b) load_unit(y, call.out_b.data, call.dtype_b, call.out_b.at(t, h) + d, call.alignment);
#pragma unroll
      for (int e = 0; e < kUnit; ++e) x[e] = merged(w, x[e], y[e]);
      store_unit(call.out.data, call.dtype, call.out.at(t, h) + d, x, call.alignment);
    }
  }
}

// ---- launches

struct Launch {
  int device;
  void* stream;
  bool cooperative = false;
};

template <typename Call>
void launch(const Launch& how, void (*kernel)(Call), dim3 grid, const Call& call) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = kThreads;
  config.stream = static_cast<cudaStream_t>(how.stream);
  config.attrs = &attribute;
  config.numAttrs = how.cooperative ? 1 : 0;
  cuda::check(cudaLaunchKernelEx(&config, kernel, call), "cudaLaunchKernelEx");
}

unsigned blocks(std::int64_t count, int per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

void start(const CacheWrite& call, const Launch& how) {
  if (call.tokens == 0) return;
  with_format(call.cache.format, call.cache.dim,
              [&]<typename Format>() { launch(how, write_tokens<Format>, blocks(call.tokens, kWarps), call); });
}

template <typename Format, Word16 Out>
void start_gather(const CacheGather& call, const Launch& how) {
  if (call.slots.given()) return launch(how, gather_slots<Format, Out>, blocks(call.max_tokens, kWarps), call);
  // Lengths are on the device: enough blocks to fill it, never more than the output has room for.
  const auto rows = static_cast<unsigned>(std::min<std::int64_t>(call.requests, 65535));
  const unsigned fill = static_cast<unsigned>(cuda::device(how.device).sms) * 16;
  launch(how, gather_sequences<Format, Out>,
         dim3(std::min(blocks(call.max_tokens - call.offset, kWarps), std::max(fill / rows, 1u)), rows), call);
}

void start(const CacheGather& call, const Launch& how) {
  if (call.max_tokens - call.offset <= 0 || (!call.slots.given() && call.requests == 0)) return;
  with_format(call.cache.format, call.cache.dim, [&]<typename Format>() {
    if (call.word == Word16::kBf16) {
      start_gather<Format, Word16::kBf16>(call, how);
    } else {
      start_gather<Format, Word16::kF16>(call, how);
    }
  });
}

template <typename Call>
requires requires(const Call& call) { call.count; }
void start(const Call& call, const Launch& how) {
  if (call.count > 0) launch(how, each<Call>, blocks(call.count, kThreads), call);
}

template <typename Builder>
void start(const List<Builder>& list, Launch how) {
  const Lists& lists = list.lists;
  if (lists.rows == 0 && !lists.indptr) return;
  int blocks_per_sm = 8;  // few enough that adding up the lengths of earlier rows stays cheap
  how.cooperative = Builder::kCompact && lists.indptr && lists.rows > 1;
  if (how.cooperative) {
    cuda::check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, build<Builder>, kThreads, 0),
                "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  }
  const std::int64_t most = std::int64_t{blocks_per_sm} * cuda::device(how.device).sms;
  launch(how, build<Builder>, static_cast<unsigned>(std::clamp<std::int64_t>(lists.rows, 1, most)), list);
}

void start(const Merge& call, const Launch& how) {
  if (call.tokens * call.heads > 0) launch(how, merge, blocks(call.tokens * call.heads, kMergeRows), call);
}

}  // namespace

template <typename Call>
void run_cuda(const Call& call, int device, void* stream) {
  const std::string reason = cuda::unavailable_on(device, 80);
  require(PASA_ERROR_UNSUPPORTED, reason.empty(), "device is cuda:", device, ": ", reason);
  const cuda::DeviceScope scope(device);
  start(call, Launch{device, stream});
}

template void run_cuda(const CacheWrite&, int, void*);
template void run_cuda(const CacheGather&, int, void*);
template void run_cuda(const Slots&, int, void*);
template void run_cuda(const TokenCounts&, int, void*);
template void run_cuda(const List<FromDense>&, int, void*);
template void run_cuda(const List<FromTopk>&, int, void*);
template void run_cuda(const List<Combine>&, int, void*);
template void run_cuda(const List<Consecutive>&, int, void*);
template void run_cuda(const Merge&, int, void*);

}  // namespace pasa::ops
