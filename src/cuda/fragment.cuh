// What the Hopper kernels do with a warpgroup's fragment of 64 heads: the softmax of a tile's scores, the output's rescaling
// and its way to memory. Thread (warp w, lane l) holds rows 16w + l/4 and + 8, of every 8 columns two (ptx.cuh, wgmma).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/format.h"
#include "core/softmax.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"

namespace pasa::cuda {

constexpr int kWarpgroup = 128;

// The softmax reference follows the maximum only when that has grown by this much (base 2): most tiles then need no
// rescaling of the output, and P stays far below what bf16 and f16 hold.
constexpr float kSlack = 8.0f;

// This thread's two rows of a fragment: heads row, row + 8 of the block.
struct Rows {
  int at[2];
  explicit __device__ Rows(int thread)
      : at{thread / 32 * 16 + thread % 32 / 4, thread / 32 * 16 + thread % 32 / 4 + 8} {}
};

// ---- between the warpgroups ----------------------------------------------------------------------------------------------

// A tile is there. The fence between the ordinary stores that made it and the tensor cores' reads stands here, not behind the
// stores: there it would wait for the loads that the storing warp has on their way.
__device__ inline void wait_full(std::uint32_t barrier, std::uint32_t parity) {
  ptx::mbarrier_wait(barrier, parity);
  ptx::fence_proxy_async_shared();
}

// One arrival a warp, behind what all its lanes read and wrote: __syncwarp orders that, electing a lane does not.
// `mine`: does this warp arrive? A branch around the call would be a divergent one to the compiler.
__device__ inline void release(std::uint32_t barrier, bool mine = true) {
  __syncwarp();
  if (ptx::elect_sync() && mine) ptx::mbarrier_arrive(barrier);
}

// ---- softmax -------------------------------------------------------------------------------------------------------------

// A tile's P = 2^(S - ref) in place of S, and the row's running reference and this lane's maximum and sum; returns in `rescale` what the
// sums so far are to be multiplied by. ref follows the maximum at a distance: see kSlack.
struct Softmax {
  float ref[2], top[2], sum[2];

  __device__ void start() {
    for (int r = 0; r < 2; ++r) ref[r] = top[r] = -kInfinity, sum[r] = 0;
  }

  // valid: a bit per token of the tile.
  __device__ void tile(float (&s)[32], float scale_log2, std::uint32_t valid_low, std::uint32_t valid_high,
                       float (&rescale)[2]) {
    // The largest is looked for before scores are scaled, unless the scale would turn their order.
    float scale = scale_log2;
    if (!(scale > 0)) {
#pragma unroll
      for (int k = 0; k < 32; ++k) s[k] *= scale_log2;
      scale = 1;
    }
    if ((valid_low & valid_high) != ~0u) {
      const int column = threadIdx.x % 4 * 2;
      const std::uint32_t mine[2] = {valid_low >> column, valid_high >> column};
#pragma unroll
      for (int k = 0; k < 32; ++k) {
        if ((mine[k / 16] >> (k / 4 % 4 * 8 + k % 2) & 1) == 0) s[k] = -kInfinity;
      }
    }
    float most[4] = {s[0], s[2], s[1], s[3]};  // two chains a row
#pragma unroll
    for (int k = 4; k < 32; ++k) most[k / 2 % 2 + k % 2 * 2] = fmaxf(most[k / 2 % 2 + k % 2 * 2], s[k]);
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], most[r + 2]) * scale;
    // The maximum of a row is four lanes' business only when one of them moves the reference: a shuffle waits behind the
    // stores of the warps that make the tiles.
    rescale[0] = rescale[1] = 1;
    if (__any_sync(~0u, most[0] > ref[0] + kSlack || most[1] > ref[1] + kSlack)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float all = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        all = fmaxf(all, __shfl_xor_sync(~0u, all, 2));
        if (all > ref[r] + kSlack) {
          rescale[r] = ptx::ex2(ref[r] - all);
          ref[r] = all;
          sum[r] *= rescale[r];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], most[r]);
      const float base = ref[r] == -kInfinity ? 0 : ref[r];
#pragma unroll
      for (int k = 2 * r; k < 32; k += 4) {
        s[k] = ptx::ex2(fmaf(s[k], scale, -base));
        s[k + 1] = ptx::ex2(fmaf(s[k + 1], scale, -base));
        sum[r] += s[k] + s[k + 1];
      }
    }
  }

  // The four lanes' sum and maximum of row r, in each of them.
  __device__ float row_sum(int r) const {
    const float pair = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
    return pair + __shfl_xor_sync(~0u, pair, 2);
  }
  __device__ float row_top(int r) const {
    const float pair = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
    return fmaxf(pair, __shfl_xor_sync(~0u, pair, 2));
  }
};

template <Word16 kWord>
__device__ std::uint32_t pack(float low, float high) {
  return kWord == Word16::kBf16 ? ptx::cvt_bf16x2(low, high) : ptx::cvt_f16x2(low, high);
}

// P of a tile, [64 heads, 64 tokens], as A fragments of 16 tokens.
template <Word16 kWord>
__device__ void pack_p(const float (&s)[32], std::uint32_t (&p)[4][4]) {
#pragma unroll
  for (int k = 0; k < 16; ++k) p[k / 4][k % 4] = pack<kWord>(s[2 * k], s[2 * k + 1]);
}

// This warp's 16 rows of it to the panel at `to`. Two chunks on are an exclusive or away.
__device__ inline void store_p(std::uint32_t to, const std::uint32_t (&p)[4][4], std::uint32_t thread) {
  const std::uint32_t place = to + chunk_offset(thread / 32 % 4 * 16 + thread % 16, thread / 16 % 2);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    ptx::stmatrix_x4(place ^ chunk_offset(0, 2 * k), p[k][0], p[k][1], p[k][2], p[k][3]);
  }
}

// ---- output --------------------------------------------------------------------------------------------------------------

// O += P V: 64 heads by 256 value dims, from the panels at `v` on. p_of(step): P of 16 tokens, registers or a descriptor.
template <Word16 kWord, typename P>
__device__ void start_product(float (&o)[128], std::uint32_t v, P&& p_of) {
  const std::uint32_t b = ptx::uniform(down_columns(v));
#pragma unroll
  for (int step = 0; step < kPanelRows / 16; ++step) {
    ptx::wgmma_m64n128k16<1, 0, kWord>(o, p_of(step), b + row_step(step), true);
    ptx::wgmma_m64n128k16<1, 64, kWord>(o, p_of(step), b + row_step(step) + (2 * kPanelBytes >> 4), true);
  }
  ptx::wgmma_commit_group();
}

__device__ inline void rescale_rows(float (&o)[128], const float (&by)[2]) {
  if (!__any_sync(~0u, by[0] != 1 || by[1] != 1)) return;
#pragma unroll
  for (int k = 0; k < 128; ++k) o[k] *= by[k / 2 % 2];
}

// A warpgroup's 64 heads by 256 columns, times the heads' factors, as 16-bit words to the four panels at `stage`.
template <Word16 kWord>
__device__ void stage_half(std::uint32_t stage, const float (&o)[128], const float (&factor)[2]) {
  const std::uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
  const bool zero[2] = {factor[0] == 0, factor[1] == 0};  // of whatever the sums hold
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    std::uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = o + 8 * k + 2 * i;
      x[i] = zero[i % 2] ? 0 : pack<kWord>(from[0] * factor[i % 2], from[1] * factor[i % 2]);
    }
    ptx::stmatrix_x4(stage + k / 4 * kPanelBytes + chunk_offset(row, k % 4 * 2 + lane / 16), x[0], x[1], x[2], x[3]);
  }
}

// A warpgroup's half of an item's output by way of the four panels at `stage`, which it alone uses now and the copy engine reads until
// cp_async_bulk_wait_read() of the warpgroup's first thread. The map's boxes hold kBoxPanels. What else the warpgroup has to
// do does not wait for that.
template <Word16 kWord, int kBoxPanels, typename Item>
__device__ void store_half(int half, const Item& item, const CUtensorMap* map, const float (&o)[128],
                           const float (&factor)[2], std::uint32_t stage) {
  ptx::bar_sync(3 + half, kWarpgroup);  // no warp's product reads the panels any more
  stage_half<kWord>(stage, o, factor);
  ptx::fence_proxy_async_shared();
  ptx::bar_sync(3 + half, kWarpgroup);
  if (threadIdx.x % kWarpgroup != 0) return;
#pragma unroll
  for (int panel = 0; panel < 4; panel += kBoxPanels) {
    ptx::cp_async_bulk_tensor_4d_store(map, 0, item.head, half * 4 + panel, static_cast<int>(item.token),
                                       stage + panel * kPanelBytes);
  }
  ptx::cp_async_bulk_commit_group();
}

// Row r of this thread's two, of a part, as floats; `to` is the place of this thread's first two columns.
__device__ inline void store_partial_row(float* to, const float (&o)[128], int r, float factor) {
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    *reinterpret_cast<float2*>(to + 8 * j) = {o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor};
  }
}

// finish() of core/softmax.h with the machine's approximations: at a block's end, instructions that wait for each other are what
// is left to count.
__device__ inline Finish fast_finish(float m, float l, float sink) {
  const float sink2 = sink * kLog2e, top = sink2 > m ? sink2 : m;
  const float weight = ptx::ex2(m - top);
  const float scale = __fdividef(weight, l * weight + ptx::ex2(sink2 - top));
  if (l == 0) return {0, -kInfinity};
  return {sink2 == kInfinity ? 0 : scale, kLn2 * (m + __log2f(l))};
}

// What a (token, head) row leaves beside its output; `top` in base 2.
__device__ inline void write_row(const Args& args, std::int64_t token, int head, float lse, float top) {
  if (args.lse) args.lse[at(args.lse_stride, token, head)] = lse;
  if (args.max_logits) args.max_logits[at(args.max_logits_stride, token, head)] = top * kLn2;
}

// The end of this thread's two rows behind their last tile: the factor of the output, and what else they leave.
struct RowsEnd {
  float factor[2], lse[2], top[2];

  // whole: neither merged nor split. If not, the output is to be relative to the row's largest score, and lse is its sum.
  __device__ RowsEnd(const Softmax& softmax, const float (&sink)[2], bool whole) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = softmax.row_sum(r);
      top[r] = softmax.row_top(r);
      if (whole) {
        const Finish end = fast_finish(softmax.ref[r], sum, sink[r]);
        factor[r] = end.scale, lse[r] = end.lse;
      } else {
        factor[r] = top[r] == -kInfinity ? 1 : ptx::ex2(softmax.ref[r] - top[r]);
        lse[r] = sum * factor[r];
      }
    }
  }

  // Item: token, split, first head, heads.
  template <typename Item>
  __device__ void write(const Args& args, const Item& item) const {
    const Rows rows(threadIdx.x);
    if (threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (rows.at[r] >= item.heads) continue;
      const int head = item.head + rows.at[r];
      if (args.partial) {
        const std::int64_t to = partial_at(args, item.token, item.split, head);
        args.partials.m[to] = top[r], args.partials.l[to] = lse[r];
      } else {
        write_row(args, item.token, head, lse[r], top[r]);
      }
    }
  }
};

// The sinks of an item's rows of this thread; asked for long before they are needed.
template <typename Item>
__device__ void load_sinks(const Args& args, const Item& item, float (&sink)[2]) {
  const Rows rows(threadIdx.x);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sink[r] = args.sink && rows.at[r] < item.heads ? args.sink[item.head + rows.at[r]] : -kInfinity;
  }
}

}  // namespace pasa::cuda
