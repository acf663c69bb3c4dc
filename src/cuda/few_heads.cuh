// The consumer of a block that serves up to 16 or 32 heads: one warpgroup, with the operands swapped. Tokens and value dims
// stand in the rows of the products and heads in the columns, so that nothing is padded to 64 heads:
//
//   S^T[64 tokens, heads] = K[64, D] Q^T[D, heads]               D / 16 products m64nHk16
//   O^T[512 dims, heads] += V^T[512, 64 tokens] P^T[64, heads]   8 blocks of 64 dims, 4 products each
//
// A thread serves heads / 4 heads in both: its maxima, sums and factors need no exchange with other threads while a row lasts.
// What P is relative to is common to all tokens of a head and moves only when some score exceeds it by kSlack; the warpgroup
// learns that from the barrier that it needs anyway (bar.red). Most tiles are then two barriers and no shuffle.
//
// Budget of a 64-token tile in cycles of shared memory, 16 heads: K 512 + Q 128, V 512 + P 128, converters' stores 512; the
// tile's share of device memory is 2600. So one warpgroup may do its three steps one after the other.
#pragma once

#include "cuda/decode.cuh"

namespace pasa::cuda {

// The running softmax of a thread's heads: head 8j + 2 (lane % 4) + c is number 2j + c. Its scores are a fragment of S^T.
template <int kHeads>
struct ColumnSoftmax {
  static constexpr int kMine = kHeads / 4;
  float ref[kMine], top[kMine], sum[kMine];  // ref is the same in every thread that serves the head

  __device__ void start() {
#pragma unroll
    for (int h = 0; h < kMine; ++h) ref[h] = top[h] = -kInfinity, sum[h] = 0;
  }

  // A tile's P = 2^(S - ref) in place of S. valid: of the fragment's two tokens. Calls rescale(head number, factor) for what
  // has been summed up to here.
  template <typename S, typename Rescale>
  __device__ void tile(float (&s)[kHeads / 2], float scale_log2, const bool (&valid)[2], S& smem, Rescale&& rescale) {
    float most[kMine];
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      float* x = s + h / 2 * 4 + h % 2;  // x[2r]: token r
#pragma unroll
      for (int r = 0; r < 2; ++r) x[2 * r] = valid[r] ? x[2 * r] * scale_log2 : -kInfinity;
      most[h] = fmaxf(x[0], x[2]);
    }
    bool exceeds = false;
#pragma unroll
    for (int h = 0; h < kMine; ++h) exceeds |= most[h] > ref[h] + kSlack;
    if (__any_sync(~0u, ptx::bar_red_or<2, kWarpgroup>(exceeds))) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
      for (int h = 0; h < kMine; ++h) {
        float all = most[h];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) all = fmaxf(all, __shfl_xor_sync(~0u, all, lanes));
        if (lane < 4) smem.exchange[warp][head_of(h)].m = all;
      }
      ptx::bar_sync<2, kWarpgroup>();
#pragma unroll
      for (int h = 0; h < kMine; ++h) {
        float all = -kInfinity;
        for (int w = 0; w < 4; ++w) all = fmaxf(all, smem.exchange[w][head_of(h)].m);
        if (!(all > ref[h] + kSlack)) continue;
        const float by = ptx::ex2(ref[h] - all);
        ref[h] = all;
        sum[h] *= by;
        rescale(h, by);
      }
    }
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      float* x = s + h / 2 * 4 + h % 2;
      top[h] = fmaxf(top[h], most[h]);
      const float base = ref[h] == -kInfinity ? 0 : ref[h];
      x[0] = ptx::ex2(x[0] - base);
      x[2] = ptx::ex2(x[2] - base);
      sum[h] += x[0] + x[2];
    }
  }

  static __device__ int head_of(int h) { return h / 2 * 8 + threadIdx.x % 4 * 2 + h % 2; }
};

// Behind a row's last tile: a head's threads come together in one.
template <typename S>
__device__ void finish_columns(const Role& role, const Role::Item& item, S& smem,
                               const ColumnSoftmax<S::kHeads>& softmax) {
  using Softmax = ColumnSoftmax<S::kHeads>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int h = 0; h < Softmax::kMine; ++h) {
    float top = softmax.top[h], sum = softmax.sum[h];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
      sum += __shfl_xor_sync(~0u, sum, lanes);
    }
    if (lane < 4) {
      smem.exchange[warp][Softmax::head_of(h)] = {top, sum};
      if (warp == 0) smem.rescale[Softmax::head_of(h)] = softmax.ref[h];
    }
  }
  ptx::bar_sync<2, kWarpgroup>();
  const int row = threadIdx.x;
  if (row < S::kHeads) {
    float top = -kInfinity, sum = 0;
    for (int w = 0; w < 4; ++w) {
      top = fmaxf(top, smem.exchange[w][row].m);
      sum += smem.exchange[w][row].l;
    }
    finish_head(role, item, smem, row, smem.rescale[row], top, sum);
  }
  ptx::bar_sync<2, kWarpgroup>();
}

// The output of the block's heads from shared memory, as bf16 or as partial sums.
template <typename S>
__device__ void write_staged(const Role& role, const Role::Item& item, std::uint32_t staged) {
  const Args& args = role.params.args;
  constexpr int kQuads = kValueDim / 4;
  for (int quad = threadIdx.x; quad < item.heads * kQuads; quad += kWarpgroup) {
    const int row = quad / kQuads, column = quad % kQuads, head = item.head + row;
    const uint4 bits = ptx::ld_shared(staged + staged_offset<S::kHeads>(row, column));
    const float4 x = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                      __uint_as_float(bits.w)};
    if (args.partial) {
      float* acc = args.partials.acc + partial_at(args, item.token, item.split, head) * kValueDim;
      *reinterpret_cast<float4*>(acc + 4 * column) = x;
    } else {
      std::uint16_t* out = args.out + at(args.out_stride, item.token, head) + 4 * column;
      *reinterpret_cast<uint2*>(out) = {ptx::cvt_bf16x2(x.x, x.y), ptx::cvt_bf16x2(x.z, x.w)};
    }
  }
}

template <typename S>
__device__ void attend_few(const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map) {
  constexpr int kHeads = S::kHeads, kSteps = S::kDim / 16, kLeftSteps = kValueDim / 2 / 16;
  constexpr int kBlocks = kValueDim / kPanelColumns;
  using Softmax = ColumnSoftmax<kHeads>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  ptx::barrier_cluster_wait();
  if (threadIdx.x == 0 && role.first() < role.count()) load_q(role, role.first(), q_map, at);

  float o[kBlocks][kHeads / 2];  // fragments of O^T: block b's rows are value dims 64b...
  std::uint32_t use = 0, q_parity = 0;
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step()) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& x : o[b]) x = 0;
    }
    ptx::mbarrier_wait(at.q_full(), q_parity);
    q_parity ^= 1;
    std::uint32_t tile = 0;
    for (bool last = false; !last; ++use) {
      tile = use % 2;
      const std::uint32_t parity = use / 2 % 2, keys = ptx::uniform(at.keys(tile));
      float s[kHeads / 2];
      const auto score_step = [&](int step) {
        ptx::wgmma_m64k16<kHeads, 0>(s, along_rows(keys) + column_step(step),
                                     along_rows(at.q()) + column_step(step, sizeof(smem.q[0])), step > 0);
      };
      wait_full(at.full(tile, 0), parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kLeftSteps; ++step) score_step(step);
      wait_full(at.full(tile, 1), parity);
#pragma unroll
      for (int step = kLeftSteps; step < kSteps; ++step) score_step(step);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(s);

      // The fragment's tokens are lane / 4 and that plus 8 of the warp's 16, two converters' units.
      const std::uint32_t info[2] = {smem.info[tile][2 * warp], smem.info[tile][2 * warp + 1]};
      last = __any_sync(~0u, (info[0] & kLast) != 0);
      const bool valid[2] = {(info[0] >> lane / 4 & 1) != 0, (info[1] >> lane / 4 & 1) != 0};
      softmax.tile(s, role.params.args.scale_log2, valid, smem, [&](int h, float by) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          o[b][h / 2 * 4 + h % 2] *= by;
          o[b][h / 2 * 4 + h % 2 + 2] *= by;
        }
      });
      // The softmax's barrier lies behind every warp's scores, and behind its output of the tile before.
      if (last && threadIdx.x == 0 && i + role.step() < role.count()) load_q(role, i + role.step(), q_map, at);
#pragma unroll
      for (int j = 0; j < kHeads / 8; j += 2) {
        const float* x = s + 4 * j;
        ptx::stmatrix_x4_trans(at.p() + chunk_offset(8 * (j + lane / 16) + lane % 8, 2 * warp + lane / 8 % 2),
                               ptx::cvt_bf16x2(x[0], x[1]), ptx::cvt_bf16x2(x[2], x[3]), ptx::cvt_bf16x2(x[4], x[5]),
                               ptx::cvt_bf16x2(x[6], x[7]));
      }
      ptx::fence_proxy_async_shared();
      ptx::bar_sync<2, kWarpgroup>();  // the product reads every warp's P

#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ptx::wgmma_touch(o[b]);
      ptx::wgmma_fence();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int step = 0; step < kTileTokens / 16; ++step) {
          ptx::wgmma_m64k16<kHeads, 1>(o[b], down_columns(keys + b * kPanelBytes) + row_step(step),
                                       along_rows(at.p()) + column_step(step), true);
        }
        if (b % (kBlocks / 2) == kBlocks / 2 - 1) ptx::wgmma_commit_group();
      }
      ptx::wgmma_wait_group<1>();
      if (!last) release(at.free(tile, 0));
      ptx::wgmma_wait_group<0>();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ptx::wgmma_touch(o[b]);
      if (!last) release(at.free(tile, 1));
    }

    // The output leaves through the last tile's memory, or, for the merge, through that of the first, where every block's is.
    const auto item = role.item(ptx::opaque(i));
    finish_columns(role, item, smem, softmax);
    const std::uint32_t staged = at.keys(role.merges() ? 0 : tile);
#pragma unroll
    for (int h = 0; h < Softmax::kMine; ++h) {
      const int row = Softmax::head_of(h), dim = 16 * warp + lane / 4;
      const float factor = smem.finish[row];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int d = kPanelColumns * b + dim + 8 * r;
          const float x = o[b][h / 2 * 4 + h % 2 + 2 * r];
          ptx::st_shared(staged + staged_offset<kHeads>(row, d / 4) + d % 4 * 4,
                         __float_as_uint(factor == 0 ? 0 : x * factor));  // 0: of whatever the sums hold
        }
      }
    }
    if (role.merges()) {
      release(at.free(tile, 0));
      release(at.free(tile, 1));
      merge<kWarpgroup>(role, i, smem, at);
    } else {
      ptx::bar_sync<2, kWarpgroup>();
      write_staged<S>(role, item, staged);
      release(at.free(tile, 0));
      release(at.free(tile, 1));
    }
  }
}

// Up to 16 or 32 heads. Registers: 3 x 168 at entry.
template <int kHeads_>
struct Few {
  static constexpr int kHeads = kHeads_, kThreads = 3 * kWarpgroup;
  static constexpr int kRegisters = kHeads == 16 ? 176 : 216, kConvertRegisters = kHeads == 16 ? 160 : 144;
  static_assert(kRegisters + 2 * kConvertRegisters <= 504);

  template <typename Format, typename S>
  static __device__ void run(int warpgroup, const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map) {
    if (warpgroup == 0) {
      ptx::setmaxnreg_inc<kRegisters>();
      attend_few(role, smem, at, q_map);
      role.leave();
    } else {
      ptx::setmaxnreg_dec<kConvertRegisters>();
      convert<Format>(role, at);
      role.leave();
    }
  }
};

}  // namespace pasa::cuda
