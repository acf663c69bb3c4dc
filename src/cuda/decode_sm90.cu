// Paged sparse decode on Hopper: for every query row, softmax(Q K^T) V over the tokens that its lists name.
//
// A block owns up to 64 heads of one row and walks the row's tokens in tiles of 64; a tile is 64 bf16 keys in shared memory,
// which are K and V at once. Four warpgroups, three roles:
//   scores    Q K^T (64 x 64), softmax, P V for the left half of the value dims
//   values    P V for the right half
//   convert   two warpgroups: records from global memory to registers to bf16 tiles (gather.cuh)
// Two tiles, each released by halves: the left half of a tile is free when `scores` has used it, the right half when
// `values` has. The tensor cores see P V(left, i), Q K^T(i + 1), P V(right, i), ...: `values` starts when Q K^T(i + 1) has
// ended, so its product runs under the softmax of i + 1.
//
// Budget of a 64-token tile at 64 heads, cycles: tensor cores 2048; device memory 2600 (its share of 37 KB); shared memory
// 2180 (tile written 512, Q and K read 1024, V read 512, P 130).
//
// Up to 16 blocks of a cluster may split one row's tokens; they leave their unnormalised sums in shared memory, and each
// merges a share of them, so a split row needs no workspace, no second launch and no atomics. Asked-for splits instead write
// partials for reduce.cu. More than 64 heads are groups of their own; the second group's keys come from L2.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>

#include "core/backend.h"
#include "core/softmax.h"
#include "cuda/device.h"
#include "cuda/gather.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/tile.cuh"

namespace pasa::cuda {
namespace {

constexpr int kTileHeads = 64, kTileTokens = kPanelRows;
constexpr int kThreads = 512, kWarpgroup = 128;
constexpr int kMaxCluster = 16;
// Registers of the roles; 4 x 128 at entry.
constexpr int kScoresRegisters = 192, kValuesRegisters = 160, kConvertRegisters = 80;
static_assert(kScoresRegisters + kValuesRegisters + 2 * kConvertRegisters <= 512);
// The softmax reference follows the maximum only when that has grown by this much (base 2): most tiles then need no
// rescaling of the output, and P stays far below bf16's limit.
constexpr float kSlack = 8.0f;

// What a launch fixes beside the arguments.
struct Shape2 {
  std::int32_t groups;            // of heads; a cluster serves one
  std::int32_t group_heads;       // heads of a group
  std::int32_t log2_rank_splits;  // of the blocks of a cluster, which split a row's tokens
  std::uint32_t items;            // rows x splits x groups
  Divider by_groups;
};

struct Params {
  Args args;
  Shape2 shape;
};

template <int kDim>
constexpr int kPanels = kDim / kPanelColumns;

struct alignas(1024) Panel {
  std::uint16_t at[kPanelRows * kPanelColumns];
};

template <int kDim>
struct Smem {
  Panel q[kPanels<kDim>];
  Panel keys[2][kPanels<kDim>];                          // later the merge's unnormalised output, float [64 heads][512]
  Panel p;                                               // later the merge's weights, float [16][64]
  uint4 aside[kDim == kValueDim ? 5 * kConverters : 1];  // records on their way
  alignas(16) std::uint32_t info[2][8];                  // per tile and 8 tokens: valid bits, kLast
  float rescale[kTileHeads];                             // what P V's sums so far are multiplied by
  float finish[kTileHeads];                              // behind a row's last tile: factor of the output
  alignas(8) Partial part[kTileHeads];                   // of this block's share, for the merge
  std::int32_t last;                                     // P is a row's last
  std::uint64_t q_full, full[2][2], free[2][2], p_full, p_free;
};
constexpr std::uint32_t kLast = 0x100;  // in Smem::info: the item's last tile

// Where this block stands: its cluster, its rank in it, and what item `i` is to it. Nothing is stored: all of it follows from
// special registers and constants, and the product warpgroups have no register to spare.
struct Role {
  const Params& params;

  __device__ bool merges() const { return params.shape.log2_rank_splits > 0; }
  __device__ std::uint32_t rank_splits() const { return 1u << params.shape.log2_rank_splits; }
  __device__ std::uint32_t rank() const { return blockIdx.x & (rank_splits() - 1); }
  // A cluster takes every step()-th item.
  __device__ std::uint32_t count() const { return params.shape.items; }
  __device__ std::uint32_t first() const { return blockIdx.x >> params.shape.log2_rank_splits; }
  __device__ std::uint32_t step() const { return gridDim.x >> params.shape.log2_rank_splits; }
  // Nobody leaves while a neighbour may still reach into its shared memory.
  __device__ void leave() const {
    if (!merges()) return;
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait();
  }

  struct Item {
    std::int64_t token;
    int split, head, heads;  // first head of the block and how many it has
  };
  __device__ Item item(std::uint32_t i) const {
    const std::uint32_t row = divide(i, params.shape.by_groups), group = i - row * params.shape.groups;
    const std::uint32_t token = divide(row, params.args.by_splits);
    const int head = group * params.shape.group_heads;
    return {token, static_cast<int>(row - token * params.args.splits), head,
            min(params.shape.group_heads, params.args.heads - head)};
  }
  __device__ Share share(std::uint32_t i) const {
    const Args& args = params.args;
    const std::uint32_t row = divide(i, params.shape.by_groups), token = divide(row, args.by_splits);
    const int split = static_cast<int>(row - token * args.splits);
    Share share{};
    share.list[0] = part_of(args, 0, token, split);
    if (args.source_count == 2) share.list[1] = part_of(args, 1, token, split);
    const std::int32_t count = share.list[0].count + share.list[1].count, by = static_cast<std::int32_t>(rank_splits());
    const std::int32_t chunk = by == 1 ? count : ((count + by - 1) / by + 7) / 8 * 8;
    share.begin = min(count, static_cast<std::int32_t>(min(std::int64_t{chunk} * rank(), std::int64_t{count})));
    share.end = count - share.begin > chunk ? share.begin + chunk : count;
    return share;
  }
};

// Address arithmetic on shared memory.
template <int kDim>
struct Address {
  std::uint32_t base;
  explicit __device__ Address(const Smem<kDim>& smem) : base(ptx::smem_address(&smem)) {}
  using S = Smem<kDim>;
  __device__ std::uint32_t q() const { return base; }
  __device__ std::uint32_t keys(int tile) const { return base + offsetof(S, keys) + tile * sizeof(S::keys[0]); }
  __device__ std::uint32_t p() const { return base + offsetof(S, p); }
  __device__ std::uint32_t aside() const { return base + offsetof(S, aside); }
  __device__ std::uint32_t info(int tile) const { return base + offsetof(S, info) + tile * sizeof(S::info[0]); }
  __device__ std::uint32_t q_full() const { return base + offsetof(S, q_full); }
  __device__ std::uint32_t full(int tile, int half) const { return base + offsetof(S, full) + (tile * 2 + half) * 8; }
  __device__ std::uint32_t free(int tile, int half) const { return base + offsetof(S, free) + (tile * 2 + half) * 8; }
  __device__ std::uint32_t p_full() const { return base + offsetof(S, p_full); }
  __device__ std::uint32_t p_free() const { return base + offsetof(S, p_free); }
};

// ---- convert: two warpgroups -------------------------------------------------------------------------------------------

template <typename Format>
__device__ void convert(const Role& role, Address<Format::kDim> at) {
  using Piece = Pieces<Format>;
  const int warp = threadIdx.x / 32 % 8, lane = threadIdx.x % 32;
  const bool nan_to_zero = role.params.args.nan_to_zero;

  Stream<Format, Role> stream(role.params.args, role, 8 * warp);
  Records<Format> records(8 * warp, at.aside() + threadIdx.x % kConverters * 16);
  Unit unit = stream.next();
  records.load_scales(unit);
  records.template load<0, Piece::kFlight>(unit);
  ptx::barrier_cluster_wait();  // barriers are initialised everywhere

  std::uint32_t use = 0;
  for (std::uint32_t item = role.first(); item < role.count(); item += role.step()) {
    for (int left = role.share(item).tiles(); left > 0; --left, ++use) {
      const int tile = use % 2;
      const std::uint32_t parity = use / 2 % 2, keys = at.keys(tile);
      const Unit next = stream.next();
      records.use_scales();
      records.load_scales(next);

      // Converts pieces [kFrom, kTo), then asks for what their registers are free for.
      const auto pieces = [&]<int kFrom, int kTo>(int half) {
        ptx::mbarrier_wait(at.free(tile, half), parity ^ 1);
        records.template convert<kFrom, kTo>(unit, nan_to_zero, keys);
        if (half == 0 && lane == 0) ptx::st_shared(at.info(tile) + warp * 4, unit.valid | (left == 1 ? kLast : 0));
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(at.full(tile, half));
        if constexpr (kTo + Piece::kFlight <= Piece::kCount) {
          records.template load<kFrom + Piece::kFlight, kTo + Piece::kFlight>(unit);
        } else {
          constexpr int kBack = Piece::kCount - Piece::kFlight;
          records.template load<kFrom - kBack, kTo - kBack>(next);
        }
      };
      pieces.template operator()<0, Piece::kLeft>(0);
      pieces.template operator()<Piece::kLeft, Piece::kCount>(1);
      unit = next;
    }
    if (role.merges()) {  // the tiles hold outputs until every block has read them
      ptx::barrier_cluster_arrive_relaxed();
      ptx::barrier_cluster_wait();
      ptx::barrier_cluster_arrive_relaxed();
      ptx::barrier_cluster_wait();
    }
  }
}

// ---- the merge of a split row, and the output ----------------------------------------------------------------------------

// Byte offset of 4 floats (columns 4 * quad...) of a head in the output that the tiles hold for the merge; rows are
// permuted so that a fragment's rows meet no bank twice.
constexpr std::uint32_t merge_offset(int head, int quad) {
  return head * (kValueDim * 4) + ((quad ^ (head % 4 * 2)) * 16);
}

// This thread's two rows of a fragment: heads row, row + 8 of the block.
struct Rows {
  int at[2];
  explicit __device__ Rows(int thread)
      : at{thread / 32 * 16 + thread % 32 / 4, thread / 32 * 16 + thread % 32 / 4 + 8} {}
};

// Lane q's x[k] becomes lane k's x[q] among four neighbours.
__device__ void transpose_quad(std::uint32_t (&x)[4]) {
  const int lane = threadIdx.x;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool high = lane & bit;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k & bit) continue;
      const std::uint32_t theirs = __shfl_xor_sync(~0u, high ? x[k] : x[k + bit], bit);
      (high ? x[k] : x[k + bit]) = theirs;
    }
  }
}

// Writes one half of the output from its fragment: kHalf 0 is the left half.
template <int kHalf, int kDim>
__device__ void write_half(const Role& role, std::uint32_t i, Smem<kDim>& smem, Address<kDim> at, float (&o)[128],
                           const float (&factor)[2]) {
  const Args& args = role.params.args;
  const int thread = threadIdx.x % kWarpgroup;
  const Rows rows(thread);
  const auto item = role.item(ptx::opaque(i));
  const int column = kHalf * (kValueDim / 2) + thread % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = rows.at[r], head = item.head + row;
    const bool real = row < item.heads;
    if (role.merges()) {
      if (!real) continue;
      // merge_offset() of columns 32a + 8b + ...: what depends on the row stays in four addresses.
      const std::uint32_t to = ptx::opaque(at.keys(0) + merge_offset(row, 0) - (row % 4 * 32) + column * 4);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const std::uint32_t to_b = to + (b ^ row % 4) * 32;
#pragma unroll
        for (int a = 0; a < 8; ++a) {
          const int k = 4 * (4 * a + b) + 2 * r;
          ptx::st_shared(to_b + a * 128, float2{o[k] * factor[r], o[k + 1] * factor[r]});
        }
      }
    } else if (args.partial) {
      if (!real) continue;
      float* to = args.partials.acc + partial_at(args, item.token, item.split, head) * kValueDim + column;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j) = {o[4 * j + 2 * r] * factor[r], o[4 * j + 2 * r + 1] * factor[r]};
      }
    } else {
      // Four lanes hold two of every eight columns; after the exchange each holds all eight of one group in four.
      const bool zero = factor[r] == 0;  // of whatever the sums hold
      std::uint16_t* to = args.out + pasa::cuda::at(args.out_stride, item.token, head) + kHalf * (kValueDim / 2);
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
        std::uint32_t x[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int from = 4 * (j + k) + 2 * r;
          x[k] = zero ? 0 : ptx::cvt_bf16x2(o[from] * factor[r], o[from + 1] * factor[r]);
        }
        transpose_quad(x);
        if (real) *reinterpret_cast<uint4*>(to + 8 * (j + thread % 4)) = {x[0], x[1], x[2], x[3]};
      }
    }
  }
}

__device__ void write_row(const Args& args, std::int64_t token, int head, float lse, float top) {
  if (args.lse) args.lse[at(args.lse_stride, token, head)] = lse;
  if (args.max_logits) args.max_logits[at(args.max_logits_stride, token, head)] = top * kLn2;
}

// Both product warpgroups of every block: sums of the cluster's blocks to the final output, a share of it in each block.
template <int kDim>
__device__ void merge(const Role& role, std::uint32_t i, Smem<kDim>& smem, Address<kDim> at) {
  const Args& args = role.params.args;
  const auto item = role.item(i);
  const int splits = static_cast<int>(role.rank_splits()), thread = threadIdx.x;
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();

  constexpr int kQuads = kValueDim / 4;
  const int quads = item.heads * kQuads, begin = quads * role.rank() / splits, end = quads * (role.rank() + 1) / splits;
  const int first_head = begin / kQuads, heads = (end + kQuads - 1) / kQuads - first_head;
  auto* parts = reinterpret_cast<Partial*>(&smem.p);  // [split][head of ours]
  for (int split = thread / kTileHeads; split < splits; split += 2 * kWarpgroup / kTileHeads) {
    const int head = thread % kTileHeads;
    if (head >= heads) continue;
    const std::uint32_t from = ptx::smem_address(&smem.part[first_head + head]);
    const float2 part = ptx::ld_shared_cluster2(ptx::map_to_rank(from, split));
    parts[split * kTileHeads + head] = {part.x, part.y};
  }
  ptx::bar_sync<1, 2 * kWarpgroup>();
  if (thread < heads) {  // weights in place of the maxima
    Partial* mine = parts + thread;
    float top = -kInfinity, sum = 0;
    for (int s = 0; s < splits; ++s) top = fmaxf(top, mine[s * kTileHeads].m);
    for (int s = 0; s < splits; ++s) {
      Partial& part = mine[s * kTileHeads];
      part.m = part.l != 0 ? merge_weight(part.m, top) : 0;
      sum += part.l != 0 ? part.m * part.l : 0;
    }
    const int row = first_head + thread, head = item.head + row;
    const Finish end_of_row = finish(top, sum, args.sink ? args.sink[head] : -kInfinity);
    for (int s = 0; s < splits; ++s) mine[s * kTileHeads].m *= end_of_row.scale;
    if (row * kQuads >= begin) write_row(args, item.token, head, end_of_row.lse, top);
  }
  ptx::bar_sync<1, 2 * kWarpgroup>();
  for (int quad = begin + thread; quad < end; quad += 2 * kWarpgroup) {
    const int row = quad / kQuads, column = quad % kQuads;
    const std::uint32_t from = at.keys(0) + merge_offset(row, column);
    float4 sum{};
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      const float weight = parts[s * kTileHeads + row - first_head].m;
      const float4 x = ptx::ld_shared_cluster4(ptx::map_to_rank(from, s));
      sum.x += weight == 0 ? 0 : weight * x.x;
      sum.y += weight == 0 ? 0 : weight * x.y;
      sum.z += weight == 0 ? 0 : weight * x.z;
      sum.w += weight == 0 ? 0 : weight * x.w;
    }
    std::uint16_t* to = args.out + pasa::cuda::at(args.out_stride, item.token, item.head + row) + 4 * column;
    *reinterpret_cast<uint2*>(to) = {ptx::cvt_bf16x2(sum.x, sum.y), ptx::cvt_bf16x2(sum.z, sum.w)};
  }
  ptx::barrier_cluster_arrive_relaxed();  // what we read may be overwritten
  ptx::barrier_cluster_wait();
}

// A half of a tile is there. The fence between the converters' stores and the tensor cores' reads stands here, not behind the
// stores: there it would wait for the loads that a converter has on their way.
__device__ void wait_full(std::uint32_t barrier, std::uint32_t parity) {
  ptx::mbarrier_wait(barrier, parity);
  ptx::fence_proxy_async_shared();
}

// One arrival a warp: a half of a tile, or P, may be overwritten or read.
__device__ void release(std::uint32_t barrier) {
  if (ptx::elect_sync()) ptx::mbarrier_arrive(barrier);
}

// O += P V: 64 heads by 256 value dims, from the panels at `v` on.
__device__ void start_product(float (&o)[128], std::uint32_t p, std::uint32_t v) {
  const std::uint32_t a = along_rows(p), b = down_columns(v);
  ptx::wgmma_touch(o);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kTileTokens / 16; ++step) {
    ptx::wgmma_m64n128k16<1, 0>(o, a + column_step(step), b + row_step(step), true);
    ptx::wgmma_m64n128k16<1, 64>(o, a + column_step(step), b + row_step(step) + (2 * kPanelBytes >> 4), true);
  }
  ptx::wgmma_commit_group();
}

__device__ void rescale_rows(float (&o)[128], const float (&by)[2]) {
  if (!__any_sync(~0u, by[0] != 1 || by[1] != 1)) return;
#pragma unroll
  for (int k = 0; k < 128; ++k) o[k] *= by[k / 2 % 2];
}

// ---- values: one warpgroup -----------------------------------------------------------------------------------------------

template <int kDim>
__device__ void values(const Role& role, Smem<kDim>& smem, Address<kDim> at) {
  ptx::barrier_cluster_wait();
  const Rows rows(threadIdx.x % kWarpgroup);
  float o[128];
  std::uint32_t use = 0;
  for (std::uint32_t item = role.first(); item < role.count(); item += role.step()) {
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    float factor[2] = {0, 0};
    for (bool last = false; !last; ++use) {
      const int tile = use % 2;
      const std::uint32_t keys = ptx::uniform(at.keys(tile));
      ptx::mbarrier_wait(at.p_full(), use % 2);
      wait_full(at.full(tile, 1), use / 2 % 2);
      last = smem.last != 0;
      const float rescale[2] = {smem.rescale[rows.at[0]], smem.rescale[rows.at[1]]};
      if (last) factor[0] = smem.finish[rows.at[0]], factor[1] = smem.finish[rows.at[1]];
      rescale_rows(o, rescale);
      start_product(o, at.p(), keys + 4 * kPanelBytes);
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      release(at.p_free());
      release(at.free(tile, 1));
    }
    if (role.merges()) ptx::bar_sync<1, 2 * kWarpgroup>();  // no product reads the tiles any more
    write_half<1>(role, item, smem, at, o, factor);
    if (role.merges()) merge(role, item, smem, at);
  }
}

// ---- scores: one warpgroup -----------------------------------------------------------------------------------------------

// Q of an item into shared memory; one thread.
template <int kDim>
__device__ void load_q(const Role& role, std::uint32_t i, const CUtensorMap* map, Address<kDim> at) {
  const auto item = role.item(ptx::opaque(i));
  const int box_heads = min(kTileHeads, role.params.shape.group_heads);
  ptx::mbarrier_arrive_expect_tx(at.q_full(), kPanels<kDim> * box_heads * kPanelRowBytes);
  for (int panel = 0; panel < kPanels<kDim>; ++panel) {
    ptx::cp_async_bulk_tensor_3d(at.q() + panel * kPanelBytes, map, panel * kPanelColumns, item.head,
                                 static_cast<int>(item.token), at.q_full());
  }
}

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
#pragma unroll
    for (int k = 0; k < 32; ++k) s[k] *= scale_log2;
    if ((valid_low & valid_high) != ~0u) {
      const int column = threadIdx.x % 4 * 2;
      const std::uint32_t mine[2] = {valid_low >> column, valid_high >> column};
#pragma unroll
      for (int k = 0; k < 32; ++k) {
        if ((mine[k / 16] >> (k / 4 % 4 * 8 + k % 2) & 1) == 0) s[k] = -kInfinity;
      }
    }
    float most[2] = {-kInfinity, -kInfinity};
#pragma unroll
    for (int k = 0; k < 32; ++k) most[k / 2 % 2] = fmaxf(most[k / 2 % 2], s[k]);
    // The maximum of a row is four lanes' business only when one of them moves the reference: a shuffle waits behind the
    // converters' stores.
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
        s[k] = ptx::ex2(s[k] - base);
        s[k + 1] = ptx::ex2(s[k + 1] - base);
        sum[r] += s[k] + s[k + 1];
      }
    }
  }
};

// Behind a row's last tile: what the row's sums mean, to wherever this launch wants them, and the factor of its output.
template <int kDim>
__device__ void finish_rows(const Role& role, std::uint32_t i, Smem<kDim>& smem, const Softmax& softmax) {
  const Args& args = role.params.args;
  const auto item = role.item(ptx::opaque(i));
  const Rows rows(threadIdx.x);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float ref = softmax.ref[r];
    float top = softmax.top[r];
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const int row = rows.at[r], head = item.head + row;
    if (threadIdx.x % 4 != 0) continue;
    if (role.merges() || args.partial) {
      const float factor = top == -kInfinity ? 1 : ptx::ex2(ref - top);
      smem.finish[row] = factor;
      if (role.merges()) {
        smem.part[row] = {top, sum * factor};
      } else if (row < item.heads) {
        const std::int64_t to = partial_at(args, item.token, item.split, head);
        args.partials.m[to] = top, args.partials.l[to] = sum * factor;
      }
    } else if (row < item.heads) {
      const Finish end = finish(ref, sum, args.sink ? args.sink[head] : -kInfinity);
      write_row(args, item.token, head, end.lse, top);
      smem.finish[row] = end.scale;
    }
  }
}

template <int kDim>
__device__ void scores(const Role& role, Smem<kDim>& smem, Address<kDim> at, const CUtensorMap* q_map) {
  constexpr int kSteps = kDim / 16, kLeftSteps = kValueDim / 2 / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Rows rows(threadIdx.x);
  ptx::barrier_cluster_wait();
  if (threadIdx.x == 0 && role.first() < role.count()) load_q(role, role.first(), q_map, at);

  float o[128];
  std::uint32_t use = 0, q_parity = 0;
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step()) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    ptx::mbarrier_wait(at.q_full(), q_parity);
    q_parity ^= 1;
    for (bool first = true, last = false; !last; first = false, ++use) {
      const std::uint32_t tile = use % 2, parity = use / 2 % 2, keys = ptx::uniform(at.keys(tile));
      const std::uint32_t a = along_rows(at.q()), b = along_rows(keys);

      float s[32];
      // S = Q K^T, in two halves of the sum as the converters finish them, behind the P V of the tile before.
      wait_full(at.full(tile, 0), parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kLeftSteps; ++step) {
        ptx::wgmma_m64n64k16<0>(s, a + column_step(step), b + column_step(step), step > 0);
      }
      wait_full(at.full(tile, 1), parity);
#pragma unroll
      for (int step = kLeftSteps; step < kSteps; ++step) {
        ptx::wgmma_m64n64k16<0>(s, a + column_step(step), b + column_step(step), true);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(s);
      ptx::wgmma_touch(o);
      if (!first) {
        release(at.free(tile ^ 1, 0));
        release(at.p_full());  // its product runs under this softmax
      }

      const auto* info = reinterpret_cast<const uint4*>(smem.info[tile]);
      const uint4 low = info[0], high = info[1];
      last = (low.x & kLast) != 0;
      if (last && i + role.step() < role.count()) {
        ptx::bar_sync<2, kWarpgroup>();  // every warp is done with Q
        if (threadIdx.x == 0) load_q(role, i + role.step(), q_map, at);
      }
      float rescale[2];
      softmax.tile(s, role.params.args.scale_log2,
                   (low.x & 0xff) | (low.y & 0xff) << 8 | (low.z & 0xff) << 16 | low.w << 24,
                   (high.x & 0xff) | (high.y & 0xff) << 8 | (high.z & 0xff) << 16 | high.w << 24, rescale);

      // P, what it does to the sums so far and, behind the last tile, the row's end, for `values`.
      ptx::mbarrier_wait(at.p_free(), (use % 2) ^ 1);
      const std::uint32_t row = warp * 16 + lane % 16;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float* x = s + 8 * k;
        ptx::stmatrix_x4(at.p() + chunk_offset(row, 2 * k + lane / 16), ptx::cvt_bf16x2(x[0], x[1]),
                         ptx::cvt_bf16x2(x[2], x[3]), ptx::cvt_bf16x2(x[4], x[5]), ptx::cvt_bf16x2(x[6], x[7]));
      }
      if (threadIdx.x == 0) smem.last = last;
      if (lane % 4 == 0) {
        smem.rescale[rows.at[0]] = rescale[0];
        smem.rescale[rows.at[1]] = rescale[1];
      }
      if (last) finish_rows(role, i, smem, softmax);
      ptx::fence_proxy_async_shared();
      ptx::bar_sync<2, kWarpgroup>();  // the product reads every warp's P
      if (last) release(at.p_full());
      rescale_rows(o, rescale);
      start_product(o, at.p(), keys);
    }
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_touch(o);
    release(at.free((use - 1) % 2, 0));
    const float factor[2] = {smem.finish[rows.at[0]], smem.finish[rows.at[1]]};
    if (role.merges()) ptx::bar_sync<1, 2 * kWarpgroup>();
    write_half<0>(role, i, smem, at, o, factor);
    if (role.merges()) merge(role, i, smem, at);
  }
}

// ---- the kernel ----------------------------------------------------------------------------------------------------------

template <typename Format>
__global__ void __launch_bounds__(kThreads, 1)
    decode(const __grid_constant__ Params params, const __grid_constant__ CUtensorMap q_map) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  using S = Smem<Format::kDim>;
  S& smem = *reinterpret_cast<S*>(shared);
  const Address<Format::kDim> at(smem);
  const Role role{params};
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);

  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&q_map);
    ptx::mbarrier_init(at.q_full(), 1);
    for (int tile = 0; tile < 2; ++tile) {
      for (int half = 0; half < 2; ++half) {
        ptx::mbarrier_init(at.full(tile, half), kConverters / 32);
        ptx::mbarrier_init(at.free(tile, half), kWarpgroup / 32);
      }
    }
    ptx::mbarrier_init(at.p_full(), kWarpgroup / 32);
    ptx::mbarrier_init(at.p_free(), kWarpgroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::barrier_cluster_arrive_relaxed();  // each role waits where it first needs the others
  ptx::griddepcontrol_launch_dependents();

  if (warpgroup == 0) {
    ptx::setmaxnreg_inc<kScoresRegisters>();
    scores(role, smem, at, &q_map);
    role.leave();
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_inc<kValuesRegisters>();
    values(role, smem, at);
    role.leave();
  } else {
    ptx::setmaxnreg_dec<kConvertRegisters>();
    convert<Format>(role, at);
    role.leave();
  }
}

// ---- plan and launch -----------------------------------------------------------------------------------------------------

using Kernel = void (*)(Params, CUtensorMap);

// bf16 and packed_bf16 are one format here; the kernels are listed at this place alone.
Kernel kernel_of(pasa_kv_format format) {
  switch (format) {
    case PASA_KV_FP8_DS_MLA:
      return decode<Fp8DsMla>;
    case PASA_KV_FP8_V32:
      return decode<Fp8V32>;
    case PASA_KV_FP8_E4M3FN:
      return decode<UniformFp8<Fp8::kE4m3fn>>;
    case PASA_KV_FP8_E4M3FNUZ:
      return decode<UniformFp8<Fp8::kE4m3fnuz>>;
    case PASA_KV_BF16:
    case PASA_KV_PACKED_BF16:
      return decode<Bf16<512>>;
    default:
      return nullptr;
  }
}

std::size_t shared_bytes(int dim) { return dim == kValueDim ? sizeof(Smem<kValueDim>) : sizeof(Smem<kMaxDim>); }

bool is_multiple(const void* pointer, std::uintptr_t of) { return reinterpret_cast<std::uintptr_t>(pointer) % of == 0; }

pasa_kv_format layout_of(pasa_kv_format format) { return format == PASA_KV_PACKED_BF16 ? PASA_KV_BF16 : format; }

std::string decline(const Problem& problem) {
  if (std::string reason = unavailable_on(problem.device_index, 90); !reason.empty()) return reason;
  const Device& gpu = device(problem.device_index);
  if (gpu.capability() != 90) return concat(gpu.name, " is not a Hopper GPU");
  if (problem.word != Word16::kBf16) return "q is f16, this kernel multiplies bf16";
  std::int64_t entries = 0;
  for (int s = 0; s < problem.source_count; ++s) {
    const std::string name = s == 0 ? "kv" : "extra_kv";
    const Source& source = problem.sources[s];
    const pasa_kv_format format = problem.source[s].format;
    if (kernel_of(format) == nullptr || (layout_of(format) == PASA_KV_BF16 && problem.dim != kValueDim)) {
      return concat(name, " is ", find_format(format)->name, " with D = ", problem.dim,
                    ", which this kernel does not read");
    }
    if (layout_of(format) != layout_of(problem.source[0].format)) return "extra_kv has another format than kv";
    if (!is_multiple(source.kv, 16) || source.page_stride % 16 != 0) {
      return concat(name, " is at ", static_cast<const void*>(source.kv), " with rows or pages ", source.page_stride,
                    " bytes apart, 16-byte loads need multiples of 16");
    }
    entries += problem.source[s].ragged ? source.nnz : source.width;
  }
  if (entries > INT32_MAX - kTileTokens * 64) return "the lists hold more entries than 32 bits count";
  const auto& stride = problem.q_stride;
  if (!is_multiple(problem.q, 16) || (problem.tokens > 1 && stride[0] % 8) || (problem.heads > 1 && stride[1] % 8)) {
    return "q's address or strides are no multiple of 16 bytes, which the copy engine needs";
  }
  if (!is_multiple(problem.out, 16) || problem.out_stride[0] % 8 || problem.out_stride[1] % 8) {
    return "out's address or strides are no multiple of 16 bytes, the width of a store";
  }
  if (problem.tokens * std::max(1, problem.splits) * ((problem.heads + 15) / 16) > INT32_MAX / 2)
    return "too many rows";
  return "";
}

struct Detail {
  int group_heads, rank_splits;
  std::int64_t clusters;  // at most, of a launch
};

cudaLaunchConfig_t launch_config(const Detail& detail, int dim, std::int64_t clusters, cudaLaunchAttribute& attribute) {
  const auto size = static_cast<unsigned>(detail.rank_splits);
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = size;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return {.gridDim = dim3(static_cast<unsigned>(clusters) * size),
          .blockDim = dim3(kThreads),
          .dynamicSmemBytes = shared_bytes(dim),
          .stream = nullptr,
          .attrs = &attribute,
          .numAttrs = 1};
}

// Clusters of this shape that the device runs at once.
std::int64_t active_clusters(const Problem& problem, const Detail& detail) {
  const auto kernel = reinterpret_cast<const void*>(kernel_of(problem.source[0].format));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes(problem.dim))),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = launch_config(detail, problem.dim, 1, attribute);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

// The cluster shape that finishes first by a model in cycles: rounds of (start and end, tiles, merge).
Detail choose_shape(const Problem& problem) {
  std::int64_t keys = 0;
  for (int s = 0; s < problem.source_count; ++s) keys += problem.average_keys(s);
  Detail best{};
  double least = 0;
  for (int group_heads = kTileHeads; group_heads >= 16; group_heads /= 2) {
    if (group_heads / 2 >= problem.heads && group_heads > 16) continue;
    for (int rank_splits = 1; rank_splits <= kMaxCluster; rank_splits *= 2) {
      if (rank_splits > 1 && problem.splits > 0) break;  // the caller cuts the rows: 1 means not at all
      Detail detail{group_heads, rank_splits, 0};
      detail.clusters = active_clusters(problem, detail);
      if (detail.clusters == 0) continue;
      const std::int64_t groups = (problem.heads + group_heads - 1) / group_heads;
      const std::int64_t items = problem.tokens * std::max(1, problem.splits) * groups;
      const std::int64_t rounds = (items + detail.clusters - 1) / detail.clusters;
      const std::int64_t each = (keys / std::max(1, problem.splits) + rank_splits - 1) / rank_splits;
      const auto tiles = static_cast<double>(std::max<std::int64_t>(1, (each + kTileTokens - 1) / kTileTokens));
      // Measured on an H200 in cycles: start and end, a tile, and a merge.
      const double merge = rank_splits == 1 ? 0 : 950 + 105.0 * group_heads + 250.0 * rank_splits;
      const double cost = static_cast<double>(rounds) * (13500 + 20.0 * group_heads + 4850 * tiles + merge);
      if (best.clusters == 0 || cost < least) best = detail, least = cost;
    }
  }
  require(PASA_ERROR_INTERNAL, best.clusters > 0, "no launch shape of decode_sm90 fits the device");
  return best;
}

void plan(const Problem& problem, Plan& plan) {
  const DeviceScope scope(problem.device_index);
  const Detail detail = choose_shape(problem);
  plan.splits = std::max(1, problem.splits);
  const bool given = problem.skip_reduce && plan.splits > 1;
  plan.workspace_bytes = plan.splits > 1 && !given ? partials_bytes(problem.tokens, plan.splits, problem.heads) : 0;
  plan.detail = std::make_shared<Detail>(detail);
  plan.summary =
      concat(detail.group_heads, " heads x 64 keys, clusters of ", detail.rank_splits, ", splits ", plan.splits);
}

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time so that the library loads without a driver.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion");
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

// q [T, H, D] as boxes of a panel's columns by box_heads heads; heads beyond H read as zeros.
CUtensorMap make_q_map(const Problem& problem, int box_heads) {
  const auto dim = static_cast<cuuint64_t>(problem.dim), heads = static_cast<cuuint64_t>(problem.heads);
  const cuuint64_t sizes[3] = {dim, heads, static_cast<cuuint64_t>(problem.tokens)};
  const cuuint64_t head_bytes = problem.heads > 1 ? static_cast<cuuint64_t>(problem.q_stride[1]) * 2 : dim * 2;
  const cuuint64_t token_bytes =
      problem.tokens > 1 ? static_cast<cuuint64_t>(problem.q_stride[0]) * 2 : head_bytes * heads;
  const cuuint64_t strides[2] = {head_bytes, token_bytes};
  const cuuint32_t box[3] = {kPanelColumns, static_cast<cuuint32_t>(box_heads), 1}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<std::uint16_t*>(problem.q), sizes, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(PASA_ERROR_INTERNAL, result == CUDA_SUCCESS, "cuTensorMapEncodeTiled returned ", static_cast<int>(result));
  return map;
}

void run(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  const DeviceScope scope(problem.device_index);
  const Args args = make_args(problem, plan, workspace);
  const auto& detail = *static_cast<const Detail*>(plan.detail.get());
  if (!decline(problem).empty()) {  // this call's addresses are not as even as the plan's: the general kernel's case
    launch_general(args, 16, stream);
  } else {
    const int groups = (problem.heads + detail.group_heads - 1) / detail.group_heads;
    const std::int64_t items = problem.tokens * plan.splits * groups;
    const Params params{args,
                        {groups, detail.group_heads, std::countr_zero(static_cast<unsigned>(detail.rank_splits)),
                         static_cast<std::uint32_t>(items), make_divider(static_cast<std::uint32_t>(groups))}};
    cudaLaunchAttribute attribute{};
    cudaLaunchConfig_t config = launch_config(detail, problem.dim, std::min(items, detail.clusters), attribute);
    config.stream = static_cast<cudaStream_t>(stream);
    check(cudaLaunchKernelEx(&config, kernel_of(problem.source[0].format), params,
                             make_q_map(problem, std::min(kTileHeads, detail.group_heads))),
          "decode_sm90");
  }
  if (args.partial && !plan.partial) launch_merge(make_merge_args(args), /*overlap=*/true, stream);
}

}  // namespace
}  // namespace pasa::cuda

namespace pasa {

extern const Backend kCudaSm90;
const Backend kCudaSm90 = {
    .name = "cuda:sm90",
    .device = PASA_CUDA,
    .unavailable = [] { return cuda::unavailable(90); },
    .decline = cuda::decline,
    .plan = cuda::plan,
    .run = cuda::run,
    .reduce = nullptr,
};

}  // namespace pasa
