// The consumer of a block that serves up to 8, 16 or 32 heads: one warpgroup, with the operands swapped. Tokens and value dims
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

  // A tile's P = 2^(S - ref) in place of S. valid: of the fragment's two tokens. Calls rescale(factors) for what has been
  // summed up to here.
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
      float all[kMine], by[kMine];
#pragma unroll
      for (int h = 0; h < kMine; ++h) all[h] = most[h];
      over_lanes(all, [](float a, float b) { return fmaxf(a, b); });
      if (threadIdx.x % 32 < 4) {
#pragma unroll
        for (int h = 0; h < kMine; ++h) smem.exchange[threadIdx.x / 32][head_of(h)].m = all[h];
      }
      ptx::bar_sync<2, kWarpgroup>();
#pragma unroll
      for (int h = 0; h < kMine; ++h) {
        for (int w = 0; w < 4; ++w) all[h] = fmaxf(all[h], smem.exchange[w][head_of(h)].m);
        const bool raised = all[h] > ref[h] + kSlack;
        by[h] = raised ? ptx::ex2(ref[h] - all[h]) : 1;
        ref[h] = raised ? all[h] : ref[h];
        sum[h] *= by[h];
      }
      rescale(by);
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

  // Combines each head's values over the lanes of a warp that serve it, step by step for all heads: no step waits for a whole
  // head's.
  template <typename Combine>
  static __device__ void over_lanes(float (&x)[kMine], Combine&& combine) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
#pragma unroll
      for (int h = 0; h < kMine; ++h) x[h] = combine(x[h], __shfl_xor_sync(~0u, x[h], lanes));
    }
  }
};

// ---- behind a row's last tile ----------------------------------------------------------------------------------------------

// What a part's sums are relative to is its largest score only where somebody asks for that: see Softmax.
__device__ inline bool tracks_top(const Args& args) { return args.partial || args.max_logits; }

// Each warp's share of every head: its largest score and its sum, and what they are relative to. A barrier must follow.
template <typename S>
__device__ void leave_columns(const Args& args, S& smem, ColumnSoftmax<S::kHeads>& softmax, float sink) {
  using Softmax = ColumnSoftmax<S::kHeads>;
  softmax.over_lanes(softmax.sum, [](float a, float b) { return a + b; });
  if (tracks_top(args)) softmax.over_lanes(softmax.top, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x % 32 < 4) {
#pragma unroll
    for (int h = 0; h < Softmax::kMine; ++h) {
      smem.exchange[threadIdx.x / 32][Softmax::head_of(h)] = {softmax.top[h], softmax.sum[h]};
      if (threadIdx.x < 4) smem.ref[Softmax::head_of(h)] = softmax.ref[h];
    }
  }
  if (threadIdx.x < S::kHeads) smem.sink[threadIdx.x] = sink;
}

// The four warps' together: relative to the head's reference, and its largest score if somebody asks for that.
template <typename S>
__device__ Partial column(const Args& args, const S& smem, int head) {
  Partial all{-kInfinity, 0};
#pragma unroll
  for (int w = 0; w < 4; ++w) all.l += smem.exchange[w][head].l;
  if (tracks_top(args)) {
#pragma unroll
    for (int w = 0; w < 4; ++w) all.m = fmaxf(all.m, smem.exchange[w][head].m);
  }
  return all;
}

// A fragment's 64 rows, 16 of a warp, as 64 columns of a panel with a row a head: pair(h, r) is the bf16 of the heads with numbers
// h and h + 1 in the warp's row lane / 4 + 8r.
template <int kHeads, typename Pair>
__device__ void store_columns(std::uint32_t panel, Pair&& pair) {
  const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 2 + lane / 8 % 2;
  if constexpr (kHeads == 8) {
    ptx::stmatrix_x2_trans(panel + chunk_offset(lane % 8, column), pair(0, 0), pair(0, 1));
  } else {
#pragma unroll
    for (int j = 0; j < kHeads / 8; j += 2) {
      ptx::stmatrix_x4_trans(panel + chunk_offset(8 * (j + lane / 16) + lane % 8, column), pair(2 * j, 0),
                             pair(2 * j, 1), pair(2 * j + 2, 0), pair(2 * j + 2, 1));
    }
  }
}

// The output of an unsplit row: lse, and bf16 by way of shared memory, where heads and value dims change places.
template <typename S>
__device__ void write_columns(const Role& role, const Role::Item& item, S& smem, Address<S> at,
                              const float (&o)[kValueDim / kPanelColumns][S::kHeads / 2]) {
  using Softmax = ColumnSoftmax<S::kHeads>;
  constexpr int kAtOnce = S::kHeads < 16 ? S::kHeads : 16;
  const Args& args = role.params.args;
  const int chunk = threadIdx.x % 64, second = threadIdx.x / 64;
  if (const int row = threadIdx.x; row < S::kHeads) {
    const Partial all = column(args, smem, row);
    const Finish end = fast_finish(smem.ref[row], all.l, smem.sink[row]);
    smem.finish[row] = end.scale;
    if (row < item.heads) write_row(args, item.token, item.head + row, end.lse, all.m);
  }
  std::uint16_t* out = args.out + pasa::cuda::at(args.out_stride, item.token, item.head + second) + 8 * chunk;
  const std::int64_t stride = 2 * args.out_stride[1];
  ptx::bar_sync<2, kWarpgroup>();
  float factor[Softmax::kMine];
  bool zero = false;  // of whatever the sums hold
#pragma unroll
  for (int h = 0; h < Softmax::kMine; ++h) {
    factor[h] = smem.finish[Softmax::head_of(h)];
    zero |= factor[h] == 0;
  }
  zero = __any_sync(~0u, zero);
#pragma unroll
  for (int b = 0; b < kValueDim / kPanelColumns; ++b) {
    const auto pair = [&](int h, int r) {
      float x = o[b][h / 2 * 4 + 2 * r] * factor[h], y = o[b][h / 2 * 4 + 2 * r + 1] * factor[h + 1];
      if (zero) x = factor[h] == 0 ? 0 : x, y = factor[h + 1] == 0 ? 0 : y;
      return ptx::cvt_bf16x2(x, y);
    };
    store_columns<S::kHeads>(at.room() + b * sizeof(smem.q[0]), pair);
  }
  ptx::bar_sync<2, kWarpgroup>();
  // A thread's 8 dims of every second head.
  const std::uint32_t from = at.room() + chunk / 8 * sizeof(smem.q[0]);
#pragma unroll
  for (int k = 0; k < S::kHeads; k += kAtOnce) {
    uint4 bits[kAtOnce / 2];
#pragma unroll
    for (int i = 0; i < kAtOnce / 2; ++i) bits[i] = ptx::ld_shared(from + chunk_offset(k + 2 * i + second, chunk % 8));
#pragma unroll
    for (int i = 0; i < kAtOnce / 2; ++i, out += stride) {
      if (k + 2 * i + second < item.heads) *reinterpret_cast<uint4*>(out) = bits[i];
    }
  }
}

// The same of a part that the caller asked for, straight to memory: eight lanes fill a sector.
template <typename S>
__device__ void write_partial_columns(const Role& role, const Role::Item& item, const S& smem,
                                      const float (&o)[kValueDim / kPanelColumns][S::kHeads / 2]) {
  using Softmax = ColumnSoftmax<S::kHeads>;
  const Args& args = role.params.args;
#pragma unroll
  for (int h = 0; h < Softmax::kMine; ++h) {
    const int row = Softmax::head_of(h);
    if (row >= item.heads) continue;
    const Partial all = column(args, smem, row);
    const float factor = all.m == -kInfinity ? 1 : ptx::ex2(smem.ref[row] - all.m);
    const std::int64_t to = partial_at(args, item.token, item.split, item.head + row);
    if (threadIdx.x < 4) args.partials.m[to] = all.m, args.partials.l[to] = all.l * factor;
    float* acc = args.partials.acc + to * kValueDim + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int b = 0; b < kValueDim / kPanelColumns; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) acc[kPanelColumns * b + 8 * r] = o[b][h / 2 * 4 + h % 2 + 2 * r] * factor;
    }
  }
}

// Sums that the blocks of a cluster push: floats [from rank][row][...]. A row is a value dim's heads in the order in which threads
// hold them: 16jj + 8j + 2q + c at 16jj + 4q + 2j + c. Of 8 heads it is those of two dims, d and d + 8: head 2q + c of d + 8r at
// 4q + 2r + c, so that a thread pushes 16 bytes as well.
template <int kHeads>
struct PushedSums {
  static constexpr bool kTwoDims = kHeads == 8;
  static constexpr int kRow = (kTwoDims ? 2 : 1) * kHeads * sizeof(float);
  static constexpr int kBytes = kHeads * kValueDim * sizeof(float);
  int log2_mergers;

  __device__ int log2_dims() const { return std::countr_zero(unsigned{kValueDim}) - log2_mergers; }
  __device__ int dims() const { return 1 << log2_dims(); }
  __device__ int rows() const { return kTwoDims ? dims() / 2 : dims(); }
  __device__ int bytes() const { return kBytes >> log2_mergers; }  // from one rank
  static __device__ int row(int dim) { return kTwoDims ? dim / 16 * 8 + dim % 8 : dim; }
  static __device__ int dim(int row) { return kTwoDims ? row / 8 * 16 + row % 8 : row; }
  static __device__ int place(int head) { return head / 16 * 16 + head % 8 / 2 * 4 + head / 8 % 2 * 2 + head % 2; }
};

// Blocks [kFrom, kTo) of 64 value dims.
template <int kFrom, int kTo, typename S>
__device__ void push_columns(const Role& role, const S&, Address<S> at,
                             const float (&o)[kValueDim / kPanelColumns][S::kHeads / 2]) {
  const PushedSums<S::kHeads> sums{role.params.shape.log2_mergers};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int b = kFrom; b < kTo; ++b) {
    const int dim = kPanelColumns * b + 16 * warp + lane / 4, rank = dim >> sums.log2_dims();  // 32 dims or more
    const std::uint32_t barrier = ptx::map_to_rank(at.sums_in(), rank);
    const std::uint32_t to = ptx::map_to_rank(
        at.q() + sums.bytes() * role.rank() + sums.row(dim & (sums.dims() - 1)) * sums.kRow + lane % 4 * 16, rank);
    if constexpr (sums.kTwoDims) {
      ptx::st_async(to, barrier, float4{o[b][0], o[b][1], o[b][2], o[b][3]});
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int j = 0; j < S::kHeads / 8; j += 2) {
          const float* x = o[b] + 4 * j + 2 * r;
          ptx::st_async(to + 8 * r * sums.kRow + j / 2 * 64, barrier, float4{x[0], x[1], x[4], x[5]});
        }
      }
    }
  }
}

// And what they are relative to, each head's sum and, if somebody asks for it, largest score.
template <typename S>
__device__ void push_parts(const Role& role, const S& smem, Address<S> at) {
  const Args& args = role.params.args;
  const int row = threadIdx.x % S::kHeads;
  const Partial all = column(args, smem, row);
  for (std::uint32_t rank = threadIdx.x / S::kHeads; rank < role.mergers(); rank += kWarpgroup / S::kHeads) {
    const std::uint32_t barrier = ptx::map_to_rank(at.sums_in(), rank);
    ptx::st_async(ptx::map_to_rank(at.part(role.rank(), row), rank), barrier, float2{smem.ref[row], all.l});
    if (args.max_logits) ptx::st_async(ptx::map_to_rank(at.top(role.rank(), row), rank), barrier, all.m);
  }
}

// This rank's share of the output. A thread sums four heads of two neighbouring value dims, or two heads of two such pairs.
template <typename S>
__device__ void merge_columns(const Role& role, const Role::Item& item, S& smem, Address<S> at, std::uint32_t parity) {
  using Sums = PushedSums<S::kHeads>;
  constexpr int kGroups = Sums::kRow / 16, kPairs = kWarpgroup / kGroups;  // pairs of rows at a time
  // What a thread's third and fourth sum differ in from the first and second.
  constexpr int kHeadsOn = Sums::kTwoDims ? 0 : 8, kDimsOn = Sums::kTwoDims ? 8 : 0;
  const Args& args = role.params.args;
  const Sums sums{role.params.shape.log2_mergers};
  const int ranks = static_cast<int>(role.ranks()), group = threadIdx.x % kGroups, pair = threadIdx.x / kGroups;
  const int first = group / 4 * 16 + group % 4 * 2;  // of heads first, + 1, first + kHeadsOn, + 1
  std::uint16_t* out[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    out[k] = args.out + pasa::cuda::at(args.out_stride, item.token, item.head + first + k / 2 * kHeadsOn + k % 2) +
             static_cast<int>(role.rank()) * sums.dims() + sums.dim(2 * pair) + k / 2 * kDimsOn;
  }
  // Where two rows fit the banks at once, neighbours begin with different ones.
  const int swap = Sums::kRow == 64 ? pair % 2 : 0, other = swap ? -sums.kRow : sums.kRow;
  auto* weights = reinterpret_cast<float(*)[4 * kGroups]>(&smem.p);  // [rank][as in a row]
  const RowEnd end = merge_weights<kWarpgroup / 32>(role, item, at, parity, smem.parts, smem.tops, smem.sink,
                                                    smem.finish, [&](int rank, int head, float factor) {
                                                      weights[rank][sums.place(head)] = factor;
                                                      if (Sums::kTwoDims) weights[rank][sums.place(head) + 2] = factor;
                                                    });
  ptx::bar_sync<2, kWarpgroup>();
  bool zero[4];  // of whatever the sums hold
#pragma unroll
  for (int k = 0; k < 4; ++k) zero[k] = smem.finish[first + k / 2 * kHeadsOn + k % 2] == 0;
  const std::uint32_t weight = ptx::smem_address(&weights[0][4 * group]);
#pragma unroll 1
  for (int p = pair; p < sums.rows() / 2; p += kPairs) {
    const std::uint32_t from = at.q() + (2 * p + swap) * sums.kRow + group * 16;
    float4 sum[2] = {};
    const auto add = [&](int rank) {
      const uint4 bits = ptx::ld_shared(weight + rank * sizeof(weights[0]));
      const float4 w = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                        __uint_as_float(bits.w)};
#pragma unroll
      for (int d = 0; d < 2; ++d) {
        const uint4 x = ptx::ld_shared(from + rank * sums.bytes() + d * other);
        sum[d].x += w.x * __uint_as_float(x.x);
        sum[d].y += w.y * __uint_as_float(x.y);
        sum[d].z += w.z * __uint_as_float(x.z);
        sum[d].w += w.w * __uint_as_float(x.w);
      }
    };
#pragma unroll 1
    for (int rank = 1; rank < ranks; rank += 2) add(rank - 1), add(rank);
    if (ranks % 2 != 0) add(ranks - 1);
    const auto store = [&](int k, float one, float two) {
      const std::uint32_t x = ptx::cvt_bf16x2(one, two);
      if (first + k / 2 * kHeadsOn + k % 2 < item.heads) {
        *reinterpret_cast<std::uint32_t*>(out[k]) = zero[k] ? 0 : swap ? x << 16 | x >> 16 : x;
      }
      out[k] += sums.dim(2 * kPairs);
    };
    store(0, sum[0].x, sum[1].x), store(1, sum[0].y, sum[1].y);
    store(2, sum[0].z, sum[1].z), store(3, sum[0].w, sum[1].w);
  }
  if (end.row >= 0) write_row(args, item.token, item.head + end.row, end.lse, end.top);
}

template <typename S>
__device__ void attend_few(const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map) {
  constexpr int kHeads = S::kHeads, kSteps = S::kDim / 16, kLeftSteps = kValueDim / 2 / 16;
  constexpr int kBlocks = kValueDim / kPanelColumns;
  using Softmax = ColumnSoftmax<kHeads>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Where more ranks push than merge, what they push reaches into the first tile: its room is free when the last product has
  // ended, and no item may follow.
  const bool early = role.ranks() == role.mergers();
  const auto announce = [&] {
    const int each = sizeof(smem.parts[0]) + (role.params.args.max_logits ? sizeof(smem.tops[0]) : 0);
    announce_room(role, at,
                  static_cast<int>(role.ranks()) * (PushedSums<kHeads>{role.params.shape.log2_mergers}.bytes() + each));
  };
  ptx::barrier_cluster_wait();
  if (threadIdx.x == 0 && role.first() < role.count()) load_q(role, role.first(), q_map, at);

  float o[kBlocks][kHeads / 2];  // fragments of O^T: block b's rows are value dims 64b...
  std::uint32_t use = 0, parity = 0;
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step(), parity ^= 1) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& x : o[b]) x = 0;
    }
    ptx::mbarrier_wait(at.q_full(), parity);
    const auto item = role.item(ptx::opaque(i));
    const bool more = i + role.step() < role.count();
    // Of one head each, from here on its way; for all behind the row's last tile.
    const int row = threadIdx.x % kHeads;
    const float sink = role.params.args.sink && row < item.heads ? role.params.args.sink[item.head + row] : -kInfinity;
    for (bool first = true, last = false; !last; first = false, ++use) {
      const std::uint32_t tile = use % 2, full_parity = use / 2 % 2, keys = ptx::uniform(at.keys(tile));
      float s[kHeads / 2];
      const auto score_step = [&](int step) {
        ptx::wgmma_m64k16<kHeads, 0>(s, along_rows(keys) + column_step(step),
                                     along_rows(at.q()) + column_step(step, sizeof(smem.q[0])), step > 0);
      };
      wait_full(at.full(tile, 0), full_parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kLeftSteps; ++step) score_step(step);
      wait_full(at.full(tile, 1), full_parity);
#pragma unroll
      for (int step = kLeftSteps; step < kSteps; ++step) score_step(step);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(s);

      // The fragment's tokens are lane / 4 and that plus 8 of the warp's 16.
      const std::uint32_t mine = smem.info[tile][warp / 2] >> (warp % 2 * 16 + lane / 4);
      last = __any_sync(~0u, smem.info[tile][2] != 0);
      const bool valid[2] = {(mine & 1) != 0, (mine & 0x100) != 0};
      softmax.tile(s, role.params.args.scale_log2, valid, smem, [&](const float(&by)[Softmax::kMine]) {
        if (first) return;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int k = 0; k < kHeads / 2; ++k) o[b][k] *= by[k / 4 * 2 + k % 2];
        }
      });
      // The softmax's barrier lies behind every warp's scores, and behind its output of the tile before. So Q is free: for the
      // next item's, or for what the cluster's blocks push.
      if (last && role.merges()) {
        if (early && warp == 0) announce();
      } else if (last && threadIdx.x == 0 && more) {
        load_q(role, i + role.step(), q_map, at);
      }
      store_columns<kHeads>(
          at.p(), [&](int h, int r) { return ptx::cvt_bf16x2(s[h / 2 * 4 + 2 * r], s[h / 2 * 4 + 2 * r + 1]); });
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
      release(at.free(tile, 0));
      if (last && role.merges() && early) {  // the sums first, as soon as they are there: they are long on their way
#pragma unroll
        for (int b = 0; b < kBlocks / 2; ++b) ptx::wgmma_touch(o[b]);
        ptx::mbarrier_wait(at.room_free(), parity);
        push_columns<0, kBlocks / 2>(role, smem, at, o);
      }
      ptx::wgmma_wait_group<0>();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ptx::wgmma_touch(o[b]);
      release(at.free(tile, 1));
    }

    if (role.merges()) {
      if (!early) {
        ptx::bar_sync<2, kWarpgroup>();
        if (warp == 0) announce();
        ptx::mbarrier_wait(at.room_free(), parity);
        push_columns<0, kBlocks / 2>(role, smem, at, o);
      }
      push_columns<kBlocks / 2, kBlocks>(role, smem, at, o);
    }
    leave_columns(role.params.args, smem, softmax, sink);
    ptx::bar_sync<2, kWarpgroup>();
    if (role.merges()) {
      push_parts(role, smem, at);
      if (role.rank() < role.mergers()) merge_columns(role, item, smem, at, parity);
      if (more) {
        ptx::bar_sync<2, kWarpgroup>();
        ptx::fence_proxy_async_shared();
        if (threadIdx.x == 0) load_q(role, i + role.step(), q_map, at);
      }
    } else if (role.params.args.partial) {
      write_partial_columns(role, item, smem, o);
    } else {
      write_columns(role, item, smem, at, o);
    }
  }
}

// Up to 8, 16 or 32 heads. Registers: 3 x 168 at entry.
template <int kHeads_>
struct Few {
  static constexpr int kHeads = kHeads_, kThreads = 3 * kWarpgroup, kConsuming = 1;
  static constexpr int kRegisters = kHeads < 32 ? 176 : 216, kConvertRegisters = kHeads < 32 ? 160 : 144;
  static_assert(kRegisters + 2 * kConvertRegisters <= 504);

  template <typename Format, typename S>
  static __device__ void run(int warpgroup, const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map,
                             const CUtensorMap*) {
    if (warpgroup == 0) {
      ptx::setmaxnreg_inc<kRegisters>();
      attend_few(role, smem, at, q_map);
    } else {
      ptx::setmaxnreg_dec<kConvertRegisters>();
      convert<0, Format>(role, at, [] {});
    }
  }
};

}  // namespace pasa::cuda
