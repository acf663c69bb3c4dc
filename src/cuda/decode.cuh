// What the decode kernels for few and for many heads share: the shared memory of a block, its place in the launch, the
// converters, and the merge of a row that the blocks of a cluster have split. decode_sm90.cu tells the whole story.
#pragma once

#include <cuda.h>

#include "core/softmax.h"
#include "cuda/fragment.cuh"
#include "cuda/gather.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/tile.cuh"

namespace pasa::cuda {

constexpr int kTileTokens = kPanelRows, kMaxCluster = 16;
constexpr int kManyHeads = 64;  // that a block serves at most
// What a launch fixes beside the arguments.
struct LaunchShape {
  std::int32_t groups;        // of heads; a cluster serves one
  std::int32_t group_heads;   // heads of a group
  std::int32_t ranks;         // blocks of a cluster, which split a row's tokens
  std::int32_t log2_mergers;  // of the ranks that merge what all have summed, where sums are pushed
  std::uint32_t items;        // rows x splits x groups
  Divider by_groups, by_ranks;
};

struct Params {
  Args args;
  LaunchShape shape;
};

template <int kDim>
constexpr int kPanels = kDim / kPanelColumns;

// Tokens or heads by 64 columns.
template <int kRows>
struct alignas(1024) Panel {
  std::uint16_t at[kRows * kPanelColumns];
};

// kHeads: of a block at most.
template <int kDim_, int kHeads_>
struct Smem {
  static constexpr int kDim = kDim_, kHeads = kHeads_;
  static constexpr bool kRoom = kHeads < kManyHeads;
  // Behind q, for few heads: room for the output on its way out; with q, for the sums that a cluster's blocks push.
  Panel<kHeads> q[kPanels<kDim> + (kRoom ? kPanels<kValueDim> : 0)];
  Panel<kTileTokens> keys[2][kPanels<kDim>];  // later the output on its way out, float [kHeads][512]
  Panel<kHeads> p;                            // [head][token]; later the merge's weights, Partial [16][kHeads]
  uint4 aside[kDim == kValueDim ? 5 * kConverters : 1];  // records on their way
  alignas(16) std::uint32_t info[2][4];                  // per tile: a valid bit for each token; not 0: the row's last
  float rescale[kHeads];                                 // what P V's sums so far are multiplied by
  float sink[kHeads];                                    // of few heads
  float ref[kHeads];                                     // what a row's P is relative to
  float finish[kHeads];                                  // behind a row's last tile: factor of the output
  alignas(8) Partial part[kHeads];                       // of this block's share, for the merge
  alignas(16) Partial exchange[kRoom ? 4 : 1][kHeads];   // of the warps that share a head's tokens
  Partial parts[kRoom ? kMaxCluster : 1][kHeads];        // of the cluster's blocks, pushed
  float tops[kRoom ? kMaxCluster : 1][kHeads];           // likewise, if somebody asks for them
  std::int32_t last;                                     // P is a row's last
  std::uint64_t q_full, full[2][2], free[2][2], p_full, p_free, finish_full, room_free, sums_in;
};

// Where this block stands: its cluster, its rank in it, and what item `i` is to it. Nothing is stored: all of it follows from
// special registers and constants, and the product warpgroups have no register to spare.
struct Role {
  const Params& params;

  __device__ bool merges() const { return params.shape.ranks > 1; }
  __device__ std::uint32_t ranks() const { return params.shape.ranks; }
  __device__ std::uint32_t mergers() const { return 1u << params.shape.log2_mergers; }
  __device__ std::uint32_t rank() const { return ptx::cluster_rank(); }
  // A cluster takes every step()-th item.
  __device__ std::uint32_t count() const { return params.shape.items; }
  __device__ std::uint32_t first() const { return ptx::cluster_index(); }
  __device__ std::uint32_t step() const { return ptx::cluster_count(); }
  // Nobody leaves while a neighbour may still reach into its shared memory.
  __device__ void leave() const {
    if (!merges()) return;
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait();
  }

  struct Row {
    std::uint32_t token;
    int split;
  };
  __device__ Row row(std::uint32_t i) const {
    const std::uint32_t row = divide(i, params.shape.by_groups), token = divide(row, params.args.by_splits);
    return {token, static_cast<int>(row - token * params.args.splits)};
  }
  __device__ std::uint32_t group(std::uint32_t i) const {
    return i - divide(i, params.shape.by_groups) * params.shape.groups;
  }
  struct Item {
    std::int64_t token;
    int split, head, heads;  // first head of the block and how many it has
  };
  __device__ Item item(std::uint32_t i) const {
    const Row its = row(i);
    const int head = static_cast<int>(group(i)) * params.shape.group_heads;
    return {its.token, its.split, head, min(params.shape.group_heads, params.args.heads - head)};
  }
  // Of a row of `count` tokens, this block's: multiples of 8, what a warp converts at once.
  struct Slice {
    std::int32_t begin, end;
  };
  __device__ Slice slice(std::int32_t count) const {
    const std::int32_t ranks = params.shape.ranks;
    const std::int32_t chunk =
        ranks == 1 ? count : (static_cast<std::int32_t>(divide(count + ranks - 1, params.shape.by_ranks)) + 7) & ~7;
    const std::int32_t begin = min(count, chunk * static_cast<std::int32_t>(rank()));
    return {begin, min(count, begin + chunk)};
  }
};

// Address arithmetic on shared memory.
template <typename S>
struct Address {
  std::uint32_t base;
  explicit __device__ Address(const S& smem) : base(ptx::smem_address(&smem)) {}
  __device__ std::uint32_t q(int panel = 0) const { return base + panel * sizeof(S::q[0]); }
  __device__ std::uint32_t keys(int tile) const { return base + offsetof(S, keys) + tile * sizeof(S::keys[0]); }
  __device__ std::uint32_t p() const { return base + offsetof(S, p); }
  __device__ std::uint32_t aside() const { return base + offsetof(S, aside); }
  __device__ std::uint32_t info(int tile) const { return base + offsetof(S, info) + tile * sizeof(S::info[0]); }
  __device__ std::uint32_t q_full() const { return base + offsetof(S, q_full); }
  __device__ std::uint32_t full(int tile, int half) const { return base + offsetof(S, full) + (tile * 2 + half) * 8; }
  __device__ std::uint32_t free(int tile, int half) const { return base + offsetof(S, free) + (tile * 2 + half) * 8; }
  __device__ std::uint32_t p_full() const { return base + offsetof(S, p_full); }
  __device__ std::uint32_t p_free() const { return base + offsetof(S, p_free); }
  __device__ std::uint32_t finish_full() const { return base + offsetof(S, finish_full); }
  __device__ std::uint32_t room() const { return q(kPanels<S::kDim>); }
  __device__ std::uint32_t room_free() const { return base + offsetof(S, room_free); }
  __device__ std::uint32_t sums_in() const { return base + offsetof(S, sums_in); }
  __device__ std::uint32_t part(int rank, int head) const {
    return base + offsetof(S, parts) + (rank * S::kHeads + head) * sizeof(Partial);
  }
  __device__ std::uint32_t top(int rank, int head) const {
    return base + offsetof(S, tops) + (rank * S::kHeads + head) * sizeof(float);
  }
};

// ---- convert: two warpgroups -------------------------------------------------------------------------------------------

// kFirst: the half of a tile that is made first, 0 is the left one. Where a record's registers are few, the right half of the next
// tile is made before the left half's registers are looked at again, so that loads to registers begin and end in one
// round of the loop: the compiler waits, at a loop's first branch, for all that the round before has left on its way.
// behind_item(): when an item's last tile is made.
template <int kFirst, typename Format, typename S, typename Behind>
__device__ void convert(const Role& role, Address<S> at, Behind&& behind_item) {
  using Piece = Pieces<Format>;
  constexpr bool kTail = Format::kScaling == Scaling::kTailUe8m0;
  // Records that fit neither registers nor a place aside: too late by nature, they are to come from L2.
  constexpr bool kWordsApart = kFirst == 1 && Piece::kCodes > 0 && Piece::kWords > 0 && Piece::kAside == 0;
  constexpr bool kAhead = kFirst == 1 && Piece::kFlight - Piece::kAside <= 8;
  const std::uint32_t warp = ptx::uniform(threadIdx.x / 32 % 8);
  const bool nan_to_zero = role.params.args.nan_to_zero;
  // Keys that the blocks of other heads read as well come from L2 as it is.
  const bool alone = role.params.shape.groups == 1;

  // With few heads a thread has registers to know both tokens; and for two units, if their pieces have no place aside.
  constexpr bool kBoth = S::kRoom, kTaken = S::kRoom && Piece::kWhole && Piece::kAside == 0;
  using Unit = cuda::Unit<kBoth>;
  Stream<Format, Role, kBoth> stream(role.params.args, role, 8 * warp);
  Records<Format, kBoth,
          kTaken        ? Way::kTaken
          : kWordsApart ? Way::kWordsApart
                        : Way::kAside>
      records(8 * warp, at.aside() + threadIdx.x % kConverters * 16);
  const auto load = [&]<int kHalf>(const Unit& unit, std::uint32_t zero = 0) {
    records.template load<Piece::from(kHalf), Piece::to(kHalf)>(unit, zero);
  };
  // What lies aside is of the right half.
  const auto fetch = [&](const Unit& unit) { return records.fetch(unit); };
  const auto make = [&]<int kHalf>(const Unit& unit, std::uint32_t use) {
    const int tile = use % 2;
    ptx::mbarrier_wait(at.free(tile, kHalf), use / 2 % 2 ^ 1);
    if constexpr (kWordsApart && kHalf == 1) records.copy_words(unit, at.keys(tile));
    records.template convert<Piece::from(kHalf), Piece::to(kHalf)>(unit, nan_to_zero, at.keys(tile));
    if constexpr (kWordsApart && kHalf == 1) records.finish_words(nan_to_zero, at.keys(tile));
    __syncwarp();
    const bool elected = ptx::elect_sync();
    if (kHalf == 1 && elected) ptx::st_shared_byte(at.info(tile) + warp, unit.valid & 0xff);
    if (kHalf == 1 && elected && warp == 0) ptx::st_shared(at.info(tile) + 8, unit.valid & kLastTile);
    if (elected) ptx::mbarrier_arrive(at.full(tile, kHalf));
  };
  // The scales of the unit that the stream has yielded last. Returns 0 when they are known.
  const auto take_scales = [&] {
    if constexpr (!kTail) {
      records.use_scales();
      return 0u;
    }
    const uint2 tail = stream.tail();
    records.use_scales(tail);
    return ptx::zero_behind(tail.x | tail.y);
  };

  // The blocks of a row's other groups ask for others of its tokens.
  stream.prefetch(role.group(8 * warp + threadIdx.x % 8) == role.group(role.first()));
  ptx::barrier_cluster_wait();  // barriers are initialised everywhere
  ptx::griddepcontrol_wait();
  Unit unit;
  for (bool sure = false; !sure; sure = stream.is_sure(records.loaded())) {
    unit = stream.first();
    records.load_scales(unit);
    load.template operator()<kFirst>(unit);
    if constexpr (Piece::kWhole) load.template operator()<!kFirst>(unit);
  }
  std::uint32_t item = role.first();
  if (item >= role.count()) return;
  if constexpr (kTaken) {
    for (std::uint32_t use = 0; item < role.count(); ++use) {
      take_scales();
      records.take();
      const Unit next = stream.next();
      records.load_scales(next);
      load.template operator()<0>(next);
      load.template operator()<1>(next);
      make.template operator()<0>(unit, use);
      make.template operator()<1>(unit, use);
      if (unit.valid & kLastTile) item += role.step();
      unit = next;
    }
  } else if constexpr (kAhead) {
    take_scales();
    Unit next = stream.next();
    records.load_scales(next);
    fetch(unit);
    make.template operator()<1>(unit, 0);
    load.template operator()<Piece::kWhole>(Piece::kWhole ? next : unit);
    for (std::uint32_t use = 0;; ++use) {
      make.template operator()<0>(unit, use);
      // Scale bytes are looked at before the next half is asked for: or the wait for them is one for that half. And pieces that
      // lie aside are fetched: their answer queues behind the loads.
      const std::uint32_t zero = take_scales();
      const Unit after = stream.next();
      records.load_scales(after);
      records.prefetch(after, alone);
      load.template operator()<!Piece::kWhole>(next, zero | fetch(next));
      if (unit.valid & kLastTile) {
        behind_item();
        item += role.step();
        if (item >= role.count()) return;
      }
      make.template operator()<1>(next, use + 1);
      load.template operator()<Piece::kWhole>(Piece::kWhole ? after : next);
      unit = next;
      next = after;
    }
  } else {
    static_assert(kFirst == 0 || Piece::kAside == 0);
    for (std::uint32_t use = 0; item < role.count(); item += role.step()) {
      for (bool last = false; !last; ++use) {
        last = (unit.valid & kLastTile) != 0;
        take_scales();
        const Unit next = stream.next();
        records.load_scales(next);
        if constexpr (kWordsApart) records.prefetch(next, true);
        make.template operator()<kFirst>(unit, use);
        load.template operator()<Piece::kWhole ? kFirst : !kFirst>(Piece::kWhole ? next : unit);
        fetch(unit);
        make.template operator()<!kFirst>(unit, use);
        load.template operator()<Piece::kWhole ? !kFirst : kFirst>(next);
        unit = next;
      }
      behind_item();
    }
  }
}

// Q of an item into L2; into shared memory, a box of all panels. One thread.
__device__ inline void prefetch_q(const Role& role, std::uint32_t i, const CUtensorMap* map) {
  const auto item = role.item(i);
  ptx::prefetch_tensor_4d(map, 0, item.head, 0, static_cast<int>(item.token));
}
template <typename S>
__device__ void load_q(const Role& role, std::uint32_t i, const CUtensorMap* map, Address<S> at) {
  const auto item = role.item(ptx::opaque(i));
  ptx::mbarrier_arrive_expect_tx(at.q_full(), kPanels<S::kDim> * S::kHeads * kPanelRowBytes);
  ptx::cp_async_bulk_tensor_4d(at.q(), map, 0, item.head, 0, static_cast<int>(item.token), at.q_full());
}

// ---- the merge of a split row --------------------------------------------------------------------------------------------

// Of a head's parts each of the lanes kFrom, 2 * kFrom, ... < kTo apart holds some: makes of each its factor before the head's own,
// in the place of m. A part without keys has l = 0, whatever its m.
struct Merged {
  Finish end;
  float top;
};
template <int kFrom, int kTo, int kMost>
__device__ Merged weigh_parts(Partial (&part)[kMost], float sink) {
  float top = -kInfinity, sum = 0;
#pragma unroll
  for (int k = 0; k < kMost; ++k) top = fmaxf(top, part[k].m);
#pragma unroll
  for (int lanes = kFrom; lanes < kTo; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const bool some = part[k].l != 0;  // or NaN
    part[k].m = some ? ptx::ex2(part[k].m - top) : 0;
    sum += some ? part[k].m * part[k].l : 0;
  }
#pragma unroll
  for (int lanes = kFrom; lanes < kTo; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  return {fast_finish(top, sum, sink), top};
}

// ---- by pushing ----------------------------------------------------------------------------------------------------------
//
// Ranks below mergers() merge: rank r value dims [512 / mergers * r, ...) of all heads. A block pushes what it has summed of them,
// and (m, l) of every head, straight into that rank's shared memory (st_async; `sums_in` there counts the bytes), once every
// merger has said that its room is free (announce_room): at the latest when its own sums are final, so that nobody waits
// long. Then each merger merges what it finds at home (merge_weights, and the caller's sum); everybody may leave.

// One warp, when this block's room for `bytes` of sums and parts is free.
template <typename S>
__device__ void announce_room(const Role& role, Address<S> at, int bytes) {
  if (role.rank() >= role.mergers()) return;
  const std::uint32_t lane = threadIdx.x % 32;
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(at.sums_in(), bytes);
  if (lane < role.ranks()) ptx::mbarrier_arrive_cluster(ptx::map_to_rank(at.room_free(), lane));
}

// Waits for all sums and makes of the parts [rank][head] and the heads' sinks the ranks' factors: set(rank, head, factor), and in
// `finish` each head's own, which is 0 where the output is. A head's parts are some lanes' of one of kWarps warps, of which the
// first returns what else the row leaves.
struct RowEnd {
  int row;  // -1: another lane has it
  float lse, top;
};
template <int kWarps, typename S, typename Set>
__device__ RowEnd merge_weights(const Role& role, const Role::Item& item, Address<S> at, std::uint32_t parity,
                                const Partial (*parts)[S::kHeads], const float (*tops)[S::kHeads], const float* sinks,
                                float* finish, Set&& set) {
  constexpr int kEach = S::kHeads / kWarps, kLanes = 32 / kEach, kMost = (kMaxCluster + kLanes - 1) / kLanes;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % kWarps * kEach + lane % kEach, first = lane / kEach;
  const int ranks = static_cast<int>(role.ranks());
  const float sink = sinks[row];
  ptx::mbarrier_wait(at.sums_in(), parity);
  Partial part[kMost];
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int rank = first + k * kLanes;
    part[k] = rank < ranks ? parts[rank][row] : Partial{-kInfinity, 0};
  }
  const auto [end, ref] = weigh_parts<kEach, 32>(part, sink);
  if (first == 0) finish[row] = end.scale;
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int rank = first + k * kLanes;
    if (rank < ranks) set(rank, row, part[k].m * end.scale);
  }
  if (!role.params.args.max_logits)
    return {role.rank() == 0 && first == 0 && row < item.heads ? row : -1, end.lse, ref};
  float top = -kInfinity;
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (const int rank = first + k * kLanes; rank < ranks) top = fmaxf(top, tops[rank][row]);
  }
#pragma unroll
  for (int lanes = kEach; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
  return {role.rank() == 0 && first == 0 && row < item.heads ? row : -1, end.lse, top};
}

// ---- by reading, and the output ------------------------------------------------------------------------------------------

// Byte offset of 4 floats (columns 4 * quad...) of a head in the output that the tiles hold; rows are permuted so that the
// lanes that store a fragment meet no bank twice.
constexpr std::uint32_t staged_offset(int head, int quad) {
  return head * (kValueDim * 4) + ((quad ^ (head % 4 * 2)) * 16);
}

// The first kMergers threads of every block: sums of the cluster's blocks to the final output, a share of it in each block.
template <int kMergers, typename S>
__device__ void merge(const Role& role, std::uint32_t i, S& smem, Address<S> at) {
  constexpr int kQuads = kValueDim / 4, kLanes = 8, kMost = kMaxCluster / kLanes;  // lanes of a head; parts of a lane
  static_assert(kMergers / kLanes >= S::kHeads / 2);  // a share is of half of the heads at most
  const Args& args = role.params.args;
  const auto item = role.item(i);
  const int ranks = static_cast<int>(role.ranks()), rank = static_cast<int>(role.rank());
  ptx::barrier_cluster_arrive();

  const int quads = item.heads * kQuads, begin = quads * rank / ranks, end = quads * (rank + 1) / ranks;
  const int first_head = begin / kQuads, heads = (end + kQuads - 1) / kQuads - first_head;
  const int head = static_cast<int>(threadIdx.x) / kLanes, lane = threadIdx.x % kLanes, row = first_head + head;
  const float sink = args.sink && head < heads ? args.sink[item.head + row] : -kInfinity;
  auto* weights = reinterpret_cast<float(*)[S::kHeads / 2]>(&smem.p);
  ptx::barrier_cluster_wait();
  Partial part[kMost];
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    part[k] = {-kInfinity, 0};
    if (head >= heads || lane + kLanes * k >= ranks) continue;
    const std::uint32_t here = ptx::smem_address(&smem.part[row]);
    const float2 its = ptx::ld_shared_cluster2(ptx::map_to_rank(here, lane + kLanes * k));
    part[k] = {its.x, its.y};
  }
  const auto [end_of_row, top] = weigh_parts<1, kLanes>(part, sink);
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (head < heads && lane + kLanes * k < ranks) weights[lane + kLanes * k][head] = part[k].m * end_of_row.scale;
  }
  if (head < heads && lane == 0 && row * kQuads >= begin) {
    write_row(args, item.token, item.head + row, end_of_row.lse, top);
  }
  ptx::barrier_sync<1, kMergers>();
  // Answers from a neighbour take long: several quads are asked for at once, each block beginning with its own.
  constexpr int kAtOnce = 4;
  for (int first = begin + static_cast<int>(threadIdx.x); first < end; first += kAtOnce * kMergers) {
    const auto quad = [&](int k) { return min(first + k * kMergers, end - 1); };
    float4 all[kAtOnce] = {};
#pragma unroll 2
    for (int turn = 0; turn < ranks; ++turn) {
      const int from = rank + turn < ranks ? rank + turn : rank + turn - ranks;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const float weight = weights[from][quad(k) / kQuads - first_head];
        const std::uint32_t here = at.keys(0) + staged_offset(quad(k) / kQuads, quad(k) % kQuads);
        const float4 x = ptx::ld_shared_cluster4(ptx::map_to_rank(here, from));
        all[k].x += weight == 0 ? 0 : weight * x.x;
        all[k].y += weight == 0 ? 0 : weight * x.y;
        all[k].z += weight == 0 ? 0 : weight * x.z;
        all[k].w += weight == 0 ? 0 : weight * x.w;
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kMergers >= end) continue;
      const int of = quad(k) / kQuads, column = quad(k) % kQuads * 4;
      std::uint16_t* to = args.out + pasa::cuda::at(args.out_stride, item.token, item.head + of) + column;
      *reinterpret_cast<uint2*>(to) = {ptx::cvt_bf16x2(all[k].x, all[k].y), ptx::cvt_bf16x2(all[k].z, all[k].w)};
    }
  }
  ptx::barrier_cluster_arrive_relaxed();  // what we read may be overwritten
  ptx::barrier_cluster_wait();
}

// Writes one half of what a block leaves of an item that is merged or split, from its fragment: half 0 is the left half.
template <typename S>
__device__ void write_sums(int half, const Role& role, const Role::Item& item, Address<S> at, float (&o)[128],
                           const float (&factor)[2]) {
  const Args& args = role.params.args;
  const int thread = threadIdx.x % kWarpgroup, column = half * (kValueDim / 2) + thread % 4 * 2;
  const Rows rows(thread);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = rows.at[r];
    if (row >= item.heads) continue;
    if (role.merges()) {
      // staged_offset() of columns 32a + 8b + ...: what depends on the row stays in four addresses.
      const std::uint32_t to = ptx::opaque(at.keys(0) + staged_offset(row, 0) - (row % 4 * 32) + column * 4);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const std::uint32_t to_b = to + (b ^ row % 4) * 32;
#pragma unroll
        for (int a = 0; a < 8; ++a) {
          const int k = 4 * (4 * a + b) + 2 * r;
          ptx::st_shared(to_b + a * 128, float2{o[k] * factor[r], o[k + 1] * factor[r]});
        }
      }
    } else {
      float* to = args.partials.acc + partial_at(args, item.token, item.split, item.head + row) * kValueDim + column;
      store_partial_row(to, o, r, factor[r]);
    }
  }
}

}  // namespace pasa::cuda
