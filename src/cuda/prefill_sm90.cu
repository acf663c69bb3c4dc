// Paged sparse prefill on Hopper: many query rows, each with lists of its own, over any pool but one of mixed formats.
//
// A block walks (row, 64 heads) items; an item's tokens come in tiles of 64 that are K and V at once (tile.cuh). Four
// warpgroups, three roles:
//   scores   Q K^T (64 x 64) and its softmax; it has no output to hold, so of a 16-bit problem it holds most of Q
//   values   two warpgroups, each P V for 256 of the value dims
//   fill     16-bit pools (gather): from global memory to the ring by 16-byte copies that nobody waits for
//            fp8 pools (convert): by way of its registers, as bf16 (gather.cuh)
//
// The one idea: everything a row needs comes through one ring, first its 64 queries as if they were a tile, then its keys, and
// the next row's right behind. So a row's end is no end: its last products and its stores run under the next row's first
// scores, and whoever comes first takes the next item (a counter), so rows of any length fill the device.
//
// Where the ring has three slots, the tensor cores see Q K^T(i + 1), P V(i), Q K^T(i + 2), ...: P V(i) starts behind
// Q K^T(i + 1) and runs under the softmax of i + 1. Q from registers takes 48 KB a tile off shared memory, whose bandwidth is
// what two products and a gather contend for: docs/sm90.md has the budget.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "core/softmax.h"
#include "cuda/device.h"
#include "cuda/fragment.cuh"
#include "cuda/gather.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/sm90.h"
#include "cuda/tile.cuh"

namespace pasa::cuda {
namespace {

constexpr int kTileHeads = 64, kTileTokens = kPanelRows;
constexpr int kThreads = 4 * kWarpgroup;
constexpr int kWarpTokens = kTileTokens / 4;  // of a tile, for each warp of `fill`

// How registers and shared memory are spent.
template <typename Format>
struct Tiling {
  static constexpr bool kCodes = Format::kNope > 0;  // fp8
  static constexpr int kPanels = Format::kDim / kPanelColumns;
  static constexpr int kHeldPanels = kCodes ? 0 : 6;                           // of Q, in registers
  static constexpr int kSlots = !kCodes && Format::kDim == kValueDim ? 3 : 2;  // of the ring
  static constexpr int kBuffers = kCodes ? 1 : 2;                              // of P
  // Registers of the roles; 4 x 128 at entry.
  static constexpr int kScores = kCodes ? 72 : 160, kValues = 160, kFill = kCodes ? 120 : 32;
  static_assert(kScores + 2 * kValues + kFill <= 512);
};

struct alignas(1024) Panel {
  std::uint16_t at[kPanelRows * kPanelColumns];
};

constexpr std::uint32_t kLast = 1u << kWarpTokens;  // in Smem::info: the row's last tile
constexpr std::uint32_t kEnd = ~0u;                 // in the place of an item: there is none left

template <typename Format>
struct Smem {
  using T = Tiling<Format>;
  Panel ring[T::kSlots][T::kPanels];
  Panel q[T::kPanels - T::kHeldPanels];  // what is not held in registers
  Panel p[T::kBuffers];
  uint4 aside[Pieces<Format>::kAside * kConverters + 1];  // records on their way: see Records
  // Of a slot with keys: per warp of `fill` the valid bits of its tokens, kLast. Of one with queries: the item.
  alignas(16) std::uint32_t info[T::kSlots][4];
  // With each P: what the sums so far are multiplied by, and a little behind a row's last one the factor of its output.
  float rescale[T::kBuffers][kTileHeads], finish[T::kBuffers][kTileHeads];
  std::int32_t last[T::kBuffers];
  std::uint32_t next[2];  // items, of every other row
  std::uint64_t full[T::kSlots], free[T::kSlots], p_full[T::kBuffers], p_free[T::kBuffers], finish_full[T::kBuffers];
};

// Arrivals on a slot's barriers: it is full when every thread of `fill` has brought its part and every warp of it the info,
// free when every other warp has released it.
constexpr int kFullArrivals = kWarpgroup + 4, kFreeArrivals = 12;

struct Params {
  Args args;
  std::int32_t groups;  // of 64 heads
  Divider by_groups;
  std::uint32_t items;     // rows x splits x groups
  std::uint32_t* counter;  // of items taken beyond the first of each block

  struct Item {
    std::int64_t token;
    int split, head, heads;  // first head, and how many
  };
  __device__ Item item(std::uint32_t i) const {
    const std::uint32_t row = divide(i, by_groups), token = divide(row, args.by_splits);
    const int head = static_cast<int>(i - row * groups) * kTileHeads;
    return {token, static_cast<int>(row - token * args.splits), head, min(kTileHeads, args.heads - head)};
  }
};

// Address arithmetic on shared memory.
template <typename Format>
struct Address {
  using S = Smem<Format>;
  std::uint32_t base;
  explicit __device__ Address(const S& smem) : base(ptx::smem_address(&smem)) {}
  __device__ std::uint32_t ring(int slot) const { return base + slot * sizeof(S::ring[0]); }
  __device__ std::uint32_t q() const { return base + offsetof(S, q); }
  __device__ std::uint32_t p(int buffer) const { return base + offsetof(S, p) + buffer * sizeof(Panel); }
  __device__ std::uint32_t aside() const { return base + offsetof(S, aside); }
  __device__ std::uint32_t info(int slot) const { return base + offsetof(S, info) + slot * sizeof(S::info[0]); }
  __device__ std::uint32_t finish_full(int buffer) const { return base + offsetof(S, finish_full) + buffer * 8; }
  __device__ std::uint32_t full(int slot) const { return base + offsetof(S, full) + slot * 8; }
  __device__ std::uint32_t free(int slot) const { return base + offsetof(S, free) + slot * 8; }
  __device__ std::uint32_t p_full(int buffer) const { return base + offsetof(S, p_full) + buffer * 8; }
  __device__ std::uint32_t p_free(int buffer) const { return base + offsetof(S, p_free) + buffer * 8; }
};

// Where a role stands in a ring of kCount: every role walks all places in the same order.
template <int kCount>
struct Place {
  std::uint32_t slot = 0, parity = 0;
  __device__ void next() {
    if (++slot == kCount) slot = 0, parity ^= 1;
  }
};

// ---- fill: one warpgroup -------------------------------------------------------------------------------------------------

// Where 16 rows of a tile come from: the record's address, or 0, and what a format has beside it, which is the address of the
// components behind the value's or of the scales, or the scale bytes. Lanes [0, 16) and [16, 32) of a warp know the rows of
// two tiles.
struct Sources {
  std::uint64_t record, other;
  std::uint32_t valid;  // a bit per lane
};

// A tile for a warp: its rows are those of lanes first, first + 1, ...
struct Tile {
  Sources from;
  int first;
  std::uint32_t item;  // kEnd: there is no more
  bool begins, ends;   // the item

  __device__ std::uint32_t info() const { return (from.valid >> first & (kLast - 1)) | (ends ? kLast : 0); }
};

// The block's tiles, item after item. Of a row, a warp's indices are asked for two tiles at a time, two tiles ahead.
template <typename Format>
class Walk {
 public:
  __device__ Walk(const Params& params, Smem<Format>& smem) : params_(params), smem_(smem) {
    if (item_ < params_.items) open();
  }

  __device__ Tile next() {
    Tile tile{from_, 0, kEnd, false, false};
    if (left_ == 0 && item_ < params_.items) take();
    if (item_ >= params_.items) return tile;
    tile.begins = index_ == 0;
    if (index_ % 2 == 0) {
      resolve();
      request();
    }
    tile.from = from_;
    tile.first = index_ % 2 * kWarpTokens;
    tile.item = item_;
    ++index_;
    --left_;
    tile.ends = left_ == 0;
    return tile;
  }

 private:
  static __device__ bool counts() { return threadIdx.x % kWarpgroup == 0; }

  // The next item is asked for at the start of one and taken at its end, by all of the warpgroup.
  __device__ void take() {
    if (counts()) smem_.next[row_ % 2] = gridDim.x + taken_;
    ptx::bar_sync<1, kWarpgroup>();
    item_ = smem_.next[row_ % 2];
    ++row_;
    if (item_ < params_.items) open();
  }

  __device__ void open() {
    const Args& args = params_.args;
    const Params::Item item = params_.item(item_);
    share_ = {};
    share_.list[0] = part_of(args, 0, item.token, item.split);
    if (args.source_count == 2) share_.list[1] = part_of(args, 1, item.token, item.split);
    share_.end = share_.list[0].count + share_.list[1].count;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    position_ = lane / kWarpTokens * kTileTokens + warp * kWarpTokens + lane % kWarpTokens;
    left_ = share_.tiles();
    index_ = 0;
    request();
    if (counts()) taken_ = atomicAdd(params_.counter, 1);
  }

  __device__ void request() {
    asked_ = -1;
    asked_source_ = position_ >= share_.list[0].count;
    if (position_ < share_.end) {
      asked_ = __ldg(asked_source_ ? share_.list[1].indices + (position_ - share_.list[0].count)
                                   : share_.list[0].indices + position_);
    }
    position_ += 2 * kTileTokens;
  }

  __device__ void resolve() {
    const SourceArgs& source = params_.args.source[asked_source_];
    const bool valid = is_valid(source, asked_);
    from_ = {0, 0, __ballot_sync(~0u, valid)};
    if (!valid) return;
    const Row row = locate<Format>(source, static_cast<std::uint32_t>(asked_));
    from_.record = reinterpret_cast<std::uint64_t>(row.record);
    if constexpr (Format::kTwoPieces) from_.other = reinterpret_cast<std::uint64_t>(row.pe);
    if constexpr (Format::kScaling == Scaling::kSideFloat) from_.other = reinterpret_cast<std::uint64_t>(row.scales);
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      from_.other = __ldg(reinterpret_cast<const unsigned long long*>(row.scales));
    }
  }

  const Params& params_;
  Smem<Format>& smem_;
  std::uint32_t item_ = blockIdx.x, row_ = 0, taken_ = 0;
  Share share_{};
  int left_ = 0, index_ = 0;
  std::int32_t position_ = 0, asked_ = -1;
  int asked_source_ = 0;
  Sources from_{};
};

// The 64 queries of an item as a warp's part of a tile.
__device__ inline Sources query_rows(const Params& params, std::uint32_t i) {
  if (i == kEnd) return {};
  const Params::Item item = params.item(i);
  const int head = threadIdx.x / 32 % 4 * kWarpTokens + threadIdx.x % kWarpTokens;
  const bool real = head < item.heads;
  const std::uint16_t* q = params.args.q + at(params.args.q_stride, item.token, real ? item.head + head : 0);
  return {reinterpret_cast<std::uint64_t>(q), reinterpret_cast<std::uint64_t>(q + kValueDim), __ballot_sync(~0u, real)};
}

// This warp's rows of 16-bit words to the slot at `to`, rows without a source as zeros: eight lanes a row and panel.
template <int kDim>
__device__ void copy_rows(std::uint32_t to, const Sources& from, int first) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int row = 0; row < kWarpTokens; row += 4) {
    const int owner = first + row + lane / 8;
    const auto* record = reinterpret_cast<const std::uint8_t*>(__shfl_sync(~0u, from.record, owner)) + lane % 8 * 16;
    const int bytes = from.valid >> owner & 1 ? 16 : 0;
    const std::uint32_t place = to + chunk_offset(warp * kWarpTokens + row + lane / 8, lane % 8);
#pragma unroll
    for (int panel = 0; panel < kValueDim / kPanelColumns; ++panel) {
      ptx::cp_async_16(place + panel * kPanelBytes, record + panel * kPanelRowBytes, bytes);
    }
    if constexpr (kDim > kValueDim) {
      const auto* pe = reinterpret_cast<const std::uint8_t*>(__shfl_sync(~0u, from.other, owner)) + lane % 8 * 16;
      ptx::cp_async_16(place + kValueDim / kPanelColumns * kPanelBytes, pe, bytes);
    }
  }
}

// Fills the slot at `place` by copies; `info` is what the others must know of it.
template <typename Format, typename P>
__device__ void fill_by_copies(Address<Format> at, P& place, const Sources& from, int first, std::uint32_t info) {
  ptx::mbarrier_wait(at.free(place.slot), place.parity ^ 1);
  copy_rows<Format::kDim>(at.ring(place.slot), from, first);
  ptx::cp_async_mbarrier_arrive(at.full(place.slot));
  if (threadIdx.x % 32 == 0) {
    ptx::st_shared(at.info(place.slot) + threadIdx.x / 32 % 4 * 4, info);
    ptx::mbarrier_arrive(at.full(place.slot));
  }
  place.next();
}

// 16-bit pools: tiles are copies.
template <typename Format>
__device__ void gather(const Params& params, Smem<Format>& smem, Address<Format> at) {
  Walk<Format> walk(params, smem);
  Place<Tiling<Format>::kSlots> place;
  for (Tile tile = walk.next();; tile = walk.next()) {
    const bool end = tile.item == kEnd;
    if (tile.begins || end) fill_by_copies(at, place, query_rows(params, tile.item), 0, tile.item);
    if (end) return;
    fill_by_copies(at, place, tile.from, tile.first, tile.info());
  }
}

// fp8 pools: tiles are converted, eight tokens of a warp at a time, while the next tile's records are on their way.
template <typename Format>
__device__ void convert(const Params& params, Smem<Format>& smem, Address<Format> at) {
  using Piece = Pieces<Format>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const bool nan_to_zero = params.args.nan_to_zero;
  const auto unit = [&](const Tile& tile, int half) {
    const int owner = tile.first + half * 8 + lane / 4;
    Unit<false> u{};
    u.record[0] = __shfl_sync(~0u, tile.from.record, owner);
    const std::uint64_t other = __shfl_sync(~0u, tile.from.other, owner);
    u.tail = {static_cast<std::uint32_t>(other), static_cast<std::uint32_t>(other >> 32)};
    u.side[0] = reinterpret_cast<const float*>(other);
    return u;
  };
  const std::uint32_t aside = at.aside() + threadIdx.x % kWarpgroup * 16;
  Records<Format, false> records[2] = {Records<Format, false>(warp * kWarpTokens, aside),
                                       Records<Format, false>(warp * kWarpTokens + 8, aside + kWarpgroup * 16)};
  Unit<false> units[2];

  Walk<Format> walk(params, smem);
  Place<Tiling<Format>::kSlots> place;
  Tile tile = walk.next();
  const auto load = [&]<int kFrom, int kTo>() {
#pragma unroll
    for (int half = 0; half < 2; ++half) records[half].template load<kFrom, kTo>(units[half]);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    units[half] = unit(tile, half);
    records[half].load_scales(units[half]);
  }
  load.template operator()<0, Piece::kCount>();
  while (tile.item != kEnd) {
    if (tile.begins) fill_by_copies(at, place, query_rows(params, tile.item), 0, tile.item);
    const Tile next = walk.next();
    ptx::mbarrier_wait(at.free(place.slot), place.parity ^ 1);
    const std::uint32_t keys = at.ring(place.slot);
    // A wait for one load is a wait for all that a thread has asked for: nothing is asked for between two conversions.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      records[half].use_scales();
      records[half].template convert<0, Piece::kLeft>(units[half], nan_to_zero, keys);
    }
    Unit<false> following[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      following[half] = unit(next, half);
      records[half].load_scales(following[half]);
      records[half].template load<0, Piece::kLeft>(following[half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      records[half].fetch(units[half]);
      records[half].template convert<Piece::kLeft, Piece::kCount>(units[half], nan_to_zero, keys);
    }
    ptx::mbarrier_arrive(at.full(place.slot));
    if (lane == 0) {
      ptx::st_shared(at.info(place.slot) + warp * 4, tile.info());
      ptx::mbarrier_arrive(at.full(place.slot));
    }
    place.next();
    tile = next;
#pragma unroll
    for (int half = 0; half < 2; ++half) units[half] = following[half];
    load.template operator()<Piece::kLeft, Piece::kCount>();
  }
  ptx::cp_async_wait_all();
  fill_by_copies(at, place, query_rows(params, kEnd), 0, kEnd);
}

// ---- scores: one warpgroup -----------------------------------------------------------------------------------------------

// A row's queries from their slot: the first panels as A fragments to registers, the others to their own place.
template <typename Format, int kHeldSteps>
__device__ void take_q(Address<Format> at, int slot, std::uint32_t (&q)[kHeldSteps][4]) {
  using T = Tiling<Format>;
  const std::uint32_t from = at.ring(slot), lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < 4 * T::kHeldPanels; ++step) {
    ptx::ldmatrix_x4(q[step], from + step / 4 * kPanelBytes + chunk_offset(row, step % 4 * 2 + lane / 16));
  }
  ptx::bar_sync<2, kWarpgroup>();  // no warp's product reads the row before's
  constexpr int kRest = (T::kPanels - T::kHeldPanels) * kPanelBytes;
#pragma unroll 4
  for (std::uint32_t offset = threadIdx.x * 16; offset < kRest; offset += kWarpgroup * 16) {
    ptx::st_shared(at.q() + offset, ptx::ld_shared(from + T::kHeldPanels * kPanelBytes + offset));
  }
  ptx::fence_proxy_async_shared();
  ptx::bar_sync<2, kWarpgroup>();
}

template <typename Format>
__device__ void scores(const Params& params, Smem<Format>& smem, Address<Format> at) {
  using T = Tiling<Format>;
  constexpr int kHeldSteps = 4 * T::kHeldPanels;
  constexpr bool kBehindScores = T::kSlots > 2;  // P V(i) waits for Q K^T(i + 1): not if that waits for P V(i)'s slot
  constexpr Word16 kWord = Format::kWord;
  const Args& args = params.args;
  const int lane = threadIdx.x % 32;
  const Rows rows(threadIdx.x);
  Place<T::kSlots> place;
  Place<T::kBuffers> p;
  std::uint32_t q[kHeldSteps ? kHeldSteps : 1][4];
  for (;;) {
    wait_full(at.full(place.slot), place.parity);
    const std::uint32_t i = smem.info[place.slot][0];
    if (i == kEnd) return;
    take_q(at, place.slot, q);
    release(at.free(place.slot));
    place.next();

    float sink[2];
    load_sinks(args, params.item(i), sink);
    Softmax softmax;
    softmax.start();
    for (bool first = true, last = false; !last; first = false, p.next()) {
      float s[32];
      wait_full(at.full(place.slot), place.parity);
      const std::uint32_t b = ptx::uniform(along_rows(at.ring(place.slot))), a = ptx::uniform(along_rows(at.q()));
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kHeldSteps; ++step) {
        ptx::wgmma_m64n64k16<0, kWord>(s, q[step], b + column_step(step), step > 0);
      }
#pragma unroll
      for (int step = kHeldSteps; step < 4 * T::kPanels; ++step) {
        ptx::wgmma_m64n64k16<0, kWord>(s, a + column_step(step - kHeldSteps), b + column_step(step), step > 0);
      }
      ptx::wgmma_commit_group();
      if (kBehindScores && !first) release(at.p_full(p.slot ^ 1));  // its product runs under this softmax
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(s);

      const uint4 info = *reinterpret_cast<const uint4*>(smem.info[place.slot]);
      last = (info.x & kLast) != 0;
      release(at.free(place.slot));
      place.next();

      float rescale[2];
      softmax.tile(s, args.scale_log2, (info.x & 0xffff) | info.y << 16, (info.z & 0xffff) | info.w << 16, rescale);
      ptx::mbarrier_wait(at.p_free(p.slot), p.parity ^ 1);
      std::uint32_t words[4][4];
      pack_p<kWord>(s, words);
      store_p(at.p(p.slot), words, threadIdx.x);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (lane % 4 == 0) smem.rescale[p.slot][rows.at[r]] = rescale[r];
      }
      if (threadIdx.x == 0) smem.last[p.slot] = last;
      if (!kBehindScores || last) release(at.p_full(p.slot));
    }
    const RowsEnd end(softmax, sink, !args.partial);
    const int buffer = p.slot ^ (T::kBuffers - 1);  // the last P's
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane % 4 == 0) smem.finish[buffer][rows.at[r]] = end.factor[r] * args.value_scale;
    }
    release(at.finish_full(buffer));
    end.write(args, params.item(ptx::opaque(i)));
  }
}

// ---- values: two warpgroups ----------------------------------------------------------------------------------------------

template <typename Format>
__device__ void values(const Params& params, const CUtensorMap& out_map, Smem<Format>& smem, Address<Format> at,
                       int half) {
  using T = Tiling<Format>;
  constexpr Word16 kWord = Format::kWord;
  const Args& args = params.args;
  const Rows rows(threadIdx.x % kWarpgroup);
  Place<T::kSlots> place;
  Place<T::kBuffers> p;
  float o[128];
  // The slot that an output leaves by is released by its warp 0 when the copy engine has read it.
  const bool issues = threadIdx.x % kWarpgroup < 32;
  std::uint32_t owed = 0, finish_parity = 0;  // parities of both buffers
  const auto settle = [&] {
    if (owed != 0 && threadIdx.x % 32 == 0) {
      ptx::cp_async_bulk_wait_read();
      ptx::mbarrier_arrive(owed);
    }
    __syncwarp();
    owed = 0;
  };
  for (;;) {
    ptx::mbarrier_wait(at.full(place.slot), place.parity);
    const std::uint32_t i = smem.info[place.slot][0];
    if (i == kEnd) return settle();
    release(at.free(place.slot));
    place.next();

#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    float factor[2] = {0, 0};
    std::uint32_t stage = 0;
    settle();  // the next keys need the slot
    for (bool last = false; !last; p.next()) {
      ptx::mbarrier_wait(at.p_full(p.slot), p.parity);
      wait_full(at.full(place.slot), place.parity);  // P's fence as well
      last = smem.last[p.slot] != 0;
      const float rescale[2] = {smem.rescale[p.slot][rows.at[0]], smem.rescale[p.slot][rows.at[1]]};
      rescale_rows(o, rescale);
      const std::uint32_t a = ptx::uniform(along_rows(at.p(p.slot)));
      ptx::wgmma_touch(o);
      ptx::wgmma_fence();
      start_product<kWord>(o, at.ring(place.slot) + half * 4 * kPanelBytes,
                           [&](int step) { return a + column_step(step); });
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      if (last) {
        ptx::mbarrier_wait(at.finish_full(p.slot), finish_parity >> p.slot & 1);
        finish_parity ^= 1u << p.slot;
        factor[0] = smem.finish[p.slot][rows.at[0]], factor[1] = smem.finish[p.slot][rows.at[1]];
      }
      release(at.p_free(p.slot));
      if (last && !args.partial) {
        stage = at.ring(place.slot) + half * 4 * kPanelBytes;
        owed = at.free(place.slot);
      } else {
        release(at.free(place.slot));
      }
      place.next();
    }

    const Params::Item it = params.item(ptx::opaque(i));
    if (!args.partial) {
      store_half<kWord, 4>(half, it, &out_map, o, factor, stage);
      if (!issues) release(owed), owed = 0;
      continue;
    }
    const auto store = [&]<int r>() {
      if (rows.at[r] >= it.heads) return;
      const std::int64_t to = partial_at(args, it.token, it.split, it.head + rows.at[r]) * kValueDim;
      store_partial_row(args.partials.acc + to + half * (kValueDim / 2) + threadIdx.x % 4 * 2, o, r, factor[r]);
    };
    store.template operator()<0>();
    store.template operator()<1>();
  }
}

// ---- the kernel ----------------------------------------------------------------------------------------------------------

template <typename Format>
__global__ void __launch_bounds__(kThreads, 1)
    prefill(const __grid_constant__ Params params, const __grid_constant__ CUtensorMap out_map) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  using T = Tiling<Format>;
  Smem<Format>& smem = *reinterpret_cast<Smem<Format>*>(shared);
  const Address<Format> at(smem);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < T::kSlots; ++slot) {
      ptx::mbarrier_init(at.full(slot), kFullArrivals);
      ptx::mbarrier_init(at.free(slot), kFreeArrivals);
    }
    for (int buffer = 0; buffer < T::kBuffers; ++buffer) {
      ptx::mbarrier_init(at.p_full(buffer), 4);
      ptx::mbarrier_init(at.p_free(buffer), 8);
      ptx::mbarrier_init(at.finish_full(buffer), 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if (warpgroup == 0) {
    T::kScores > 128 ? ptx::setmaxnreg_inc<T::kScores>() : ptx::setmaxnreg_dec<T::kScores>();
    scores<Format>(params, smem, at);
  } else if (warpgroup < 3) {
    ptx::setmaxnreg_inc<T::kValues>();
    values<Format>(params, out_map, smem, at, warpgroup - 1);
  } else {
    ptx::setmaxnreg_dec<T::kFill>();
    if constexpr (T::kCodes) {
      convert<Format>(params, smem, at);
    } else {
      gather<Format>(params, smem, at);
    }
  }
}

// ---- plan and launch -----------------------------------------------------------------------------------------------------

struct Kernel {
  void (*launch)(Params, CUtensorMap) = nullptr;
  std::size_t shared_bytes = 0;
};

template <typename Format>
constexpr Kernel kernel_for() {
  static_assert(sizeof(Smem<Format>) <= 227 * 1024);
  return {prefill<Format>, sizeof(Smem<Format>)};
}

// The kernels are listed at this place alone; no launch function: it does not read this format.
Kernel kernel_of(const Problem& problem) {
  const bool bf16 = problem.word == Word16::kBf16, long_keys = problem.dim != kValueDim;
  switch (problem.source[0].format) {
    case PASA_KV_BF16:
      return !bf16 ? Kernel{} : long_keys ? kernel_for<Bf16<576>>() : kernel_for<Bf16<512>>();
    case PASA_KV_PACKED_BF16:
      return !bf16 ? Kernel{} : kernel_for<PackedBf16>();
    case PASA_KV_F16:
      return bf16 ? Kernel{} : long_keys ? kernel_for<F16<576>>() : kernel_for<F16<512>>();
    case PASA_KV_FP8_DS_MLA:
      return !bf16 ? Kernel{} : kernel_for<Fp8DsMla>();
    case PASA_KV_FP8_V32:
      return !bf16 ? Kernel{} : kernel_for<Fp8V32>();
    case PASA_KV_FP8_E4M3FN:
      return !bf16 || long_keys ? Kernel{} : kernel_for<UniformFp8<Fp8::kE4m3fn>>();
    case PASA_KV_FP8_E4M3FNUZ:
      return !bf16 || long_keys ? Kernel{} : kernel_for<UniformFp8<Fp8::kE4m3fnuz>>();
    default:
      return {};
  }
}

// From here on, in items a multiprocessor, this kernel is faster than the decode kernel, which splits rows and does not pad few
// heads to 64 (docs/sm90.md): from 64 heads on, where two blocks a row no longer find a place.
constexpr double least_load(int heads) { return heads <= 32 ? 0.75 : 0.505; }
constexpr std::string_view kName = "cuda:sm90_prefill";
// The workspace begins with the counter; partials follow.
constexpr std::size_t kCounterBytes = 256;

int groups_of(const Problem& problem) { return (problem.heads + kTileHeads - 1) / kTileHeads; }

std::string decline(const Problem& problem) {
  if (std::string reason = unavailable_on(problem.device_index, 90); !reason.empty()) return reason;
  const Device& gpu = device(problem.device_index);
  if (gpu.capability() != 90) return concat(gpu.name, " is not a Hopper GPU");
  const pasa_kv_format format = problem.source[0].format;
  if (kernel_of(problem).launch == nullptr) {
    return concat("kv is ", find_format(format)->name, " with D = ", problem.dim, " and q is ",
                  problem.word == Word16::kBf16 ? "bf16" : "f16", ", which this kernel does not read");
  }
  if (problem.nan_to_zero && !find_format(format)->bytes) {
    return "16-bit keys go to shared memory unseen, so NaN components cannot be cleared";
  }
  std::int64_t entries = 0;
  for (int s = 0; s < problem.source_count; ++s) {
    const Source& source = problem.sources[s];
    if (layout_of(problem.source[s].format) != layout_of(format)) return "extra_kv has another format than kv";
    if (!is_multiple(source.kv, 16) || source.page_stride % 16 || !is_multiple(source.pe, 16) ||
        source.pe_stride % 16) {
      return concat(s == 0 ? "kv" : "extra_kv", " is not at multiples of 16 bytes, the width of a load");
    }
    entries += problem.source[s].ragged ? source.nnz : source.width;
  }
  if (entries > INT32_MAX - 4 * kTileTokens) return "the lists hold more entries than 32 bits count";
  if (!copies_in_16_bytes(problem, problem.q, problem.q_stride) ||
      !copies_in_16_bytes(problem, problem.out, problem.out_stride)) {
    return "q or out is not at multiples of 16 bytes, the width of a copy";
  }
  if (problem.tokens * std::max(1, problem.splits) > INT32_MAX / 2 / groups_of(problem)) return "too many rows";
  if (problem.kernel == kName) return "";
  if (problem.splits > 0) return "the splits are fixed, and with them the kernel, whatever the number of rows";
  if (find_format(problem.source[0].format)->bytes) {
    return "kv is fp8: the decode kernel converts with twice as many warps";
  }
  const std::int64_t items = problem.tokens * groups_of(problem), sms = device(problem.device_index).sms;
  if (static_cast<double>(items) < least_load(problem.heads) * static_cast<double>(sms)) {
    return concat(problem.tokens, " rows of ", problem.heads, " heads are few for ", sms, " multiprocessors");
  }
  return "";
}

void plan(const Problem& problem, Plan& plan) {
  const DeviceScope scope(problem.device_index);
  const Kernel kernel = kernel_of(problem);
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel.launch), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kernel.shared_bytes)),
        "cudaFuncSetAttribute");
  plan.splits = std::max(1, problem.splits);
  plan.workspace_bytes = kCounterBytes + partials_bytes(problem, plan.splits);
  plan.summary = concat("64 heads x 64 keys, blocks take the next row, splits ", plan.splits);
}

void run(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  const DeviceScope scope(problem.device_index);
  const Args args = make_args(problem, plan, static_cast<std::byte*>(workspace) + kCounterBytes);
  const auto on = static_cast<cudaStream_t>(stream);
  const int groups = groups_of(problem);
  const std::int64_t items = problem.tokens * plan.splits * groups;
  const Params params{args, groups, make_divider(static_cast<std::uint32_t>(groups)), static_cast<std::uint32_t>(items),
                      static_cast<std::uint32_t*>(workspace)};
  check(cudaMemsetAsync(workspace, 0, sizeof *params.counter, on), "cudaMemsetAsync");
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(items, device(problem.device_index).sms));
  const Kernel kernel = kernel_of(problem);
  const CUtensorMap out_map = args.partial
                                  ? CUtensorMap{}
                                  : make_tensor_map(problem, problem.out, problem.out_stride, kValueDim, kTileHeads, 4);
  kernel.launch<<<blocks, kThreads, kernel.shared_bytes, on>>>(params, out_map);
  check(cudaGetLastError(), "prefill_sm90");
  if (args.partial && !plan.partial) launch_merge(make_merge_args(args), /*overlap=*/false, stream);
}

}  // namespace
}  // namespace pasa::cuda

namespace pasa {

extern const Backend kCudaSm90Prefill;
const Backend kCudaSm90Prefill = {
    .name = cuda::kName,
    .device = PASA_CUDA,
    .unavailable = [] { return cuda::unavailable(90); },
    .decline = cuda::decline,
    .plan = cuda::plan,
    .run = cuda::run,
    .reduce = nullptr,
};

}  // namespace pasa
