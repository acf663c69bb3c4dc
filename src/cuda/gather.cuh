// The converter warps: index -> page -> record -> bf16 tile in shared memory, whatever the KV format.
//
// A warp takes 8 tokens of a tile, four lanes a token; which of two tokens' panels are whose is told at Lane. A token's record is
// loaded straight to registers in 16-byte pieces, and the piece of the next tile is asked for as soon as the register that
// will hold it has been converted, so a whole tile is always on its way from memory while the one before is converted: no raw
// ring in shared memory, no wait for a free tile before the next load starts. Indices, page numbers and scale bytes run up
// to eight tiles ahead, one lane for each of a warp's next 32 tokens.
//
// e4m3 becomes bf16 without conversion instructions: sign, exponent and mantissa are moved into place, which reads as the
// value times 2^-120, and the multiplication by 2^120 times the scale, in bf16 pairs, makes it exact (subnormals included)
// for power-of-two scales; a float scale is split in two bf16 so that the product rounds once. NaN codes and scales beyond
// this arithmetic are found by a cheap test and converted by core/number.h itself.
#pragma once

#include <cstdint>

#include "core/format.h"
#include "core/number.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/tile.cuh"

namespace pasa::cuda {

constexpr int kConverters = 256;  // threads
constexpr int kAsideStride = 16 * kConverters;

// How a format's record falls into 16-byte pieces, by what a lane has to do: as many as panels of codes, and two for a panel of
// 16-bit words.
template <typename Format>
struct Pieces {
  static constexpr int kCodes = Format::kNope / kPanelColumns;      // one piece a panel
  static constexpr int kWords = 2 * Format::kRope / kPanelColumns;  // two
  static constexpr int kCount = kCodes + kWords, kPanels = kCodes + kWords / 2;
  static constexpr int kLeft = kCodes ? 4 : 8;  // pieces that make panels 0 to 3
  // Pieces that wait in shared memory, not in registers: see Records. The 576-dim key leaves no room for any.
  static constexpr int kAside = Format::kDim == kValueDim && kCodes ? kCount - kLeft : 0;
  // Pieces in flight: the whole record where it fits the registers, else the left half or the right one.
  static constexpr bool kWhole = kCount <= 10;
  static constexpr int kFlight = kWhole ? kCount : kCount - kLeft;
  static_assert(kWhole || kCount - kLeft >= kLeft);
  static_assert(kPanels == Format::kDim / kPanelColumns && (kCodes == 0 || kCodes >= 4));

  // The pieces of a half of the value dims; 0 is the left one.
  static constexpr int from(int half) { return half ? kLeft : 0; }
  static constexpr int to(int half) { return half ? kCount : kLeft; }
  // Of the registers.
  static constexpr int place(int piece) { return kWhole || piece < kLeft ? piece : piece - kLeft; }
  static constexpr int panel(int piece) { return piece < kCodes ? piece : kCodes + (piece - kCodes) / 2; }
};

// ---- e4m3 to bf16 ------------------------------------------------------------------------------------------------------

// Two codes in place: bf16 pair of value * 2^-120. kHigh: bytes 2 and 3 of `word`, else 0 and 1.
template <bool kHigh>
__device__ inline std::uint32_t place(std::uint32_t word) {
  // Each byte with its sign spread over the byte above, moved up by 4: sssssseeeemmm0000, of which one s counts.
  constexpr std::uint32_t kSelector = kHigh ? 0xb3a2 : 0x9180;
  return (ptx::prmt<kSelector>(word) << 4) & 0x87f087f0u;
}

// Of four codes: no bit of kNanCodes if none is NaN. Adding 1 turns the top bit of e4m3fn's NaN codes, 0x7f and 0xff, and else at
// most that of a code beside one.
constexpr std::uint32_t kNanCodes = 0x80808080u;
template <Fp8 kFlavour>
__device__ inline std::uint32_t nan_codes(std::uint32_t word) {
  if constexpr (kFlavour == Fp8::kE4m3fn) return word ^ (word + 0x01010101u);
  return ~((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) & word;
}

// What multiplies a placed pair: `high` + `low`, each twice; low is 0 for power-of-two scales and then unused.
struct Multiplier {
  std::uint32_t high, low;
};

// The bias that placing adds: 2^120, or 2^119 where the same bits mean half the value.
constexpr int bias_of(Fp8 flavour) { return flavour == Fp8::kE4m3fn ? 120 : 119; }

// Of a scale up to 128; the bf16 exponent field is byte + 120.
__device__ inline Multiplier ue8m0_multiplier(std::uint32_t byte) { return {byte * 0x00800080u + 0x3c003c00u, 0}; }
// Non-zero if one of the scales that `tops` marks by the top bit of its byte is above 128.
__device__ inline std::uint32_t large_scales(std::uint32_t bytes, std::uint32_t tops) {
  return ((bytes & 0x7f7f7f7fu) + 0x79797979u) & bytes & tops;
}

// A float scale in two bf16, high in the low half; of one from 128 on, a NaN.
constexpr std::uint32_t kLargeScale = 0x7f80;  // these bits are set in no other
__device__ inline std::uint32_t split_scale(float scale, Fp8 flavour) {
  const float lifted = scale * __uint_as_float(static_cast<std::uint32_t>(bias_of(flavour) + 127) << 23);
  const float rest = lifted - __uint_as_float(ptx::cvt_bf16x2(lifted, lifted) << 16);
  return fabsf(scale) < 128.0f ? ptx::cvt_bf16x2(lifted, rest) : kLargeScale | 1;
}
__device__ inline Multiplier float_multiplier(std::uint32_t split) {
  return {ptx::prmt<0x1010>(split), ptx::prmt<0x3232>(split)};
}

// Two codes of `word` (place()) times their scale.
template <Scaling kScaling, bool kHigh>
__device__ inline std::uint32_t scaled(std::uint32_t word, const Multiplier& by) {
  const std::uint32_t placed = place<kHigh>(word);
  if constexpr (kScaling == Scaling::kTailUe8m0) return ptx::mul_bf16x2(placed, by.high);
  return ptx::fma_bf16x2(placed, by.high, ptx::mul_bf16x2(placed, by.low));
}

// One code by the definition.
template <typename Format>
__device__ inline std::uint32_t slow_element(std::uint32_t code, float scale, bool nan_to_zero) {
  const float x = fp8_to_float(Format::kFlavour, static_cast<std::uint8_t>(code)) * scale;
  return is_nan(x) && nan_to_zero ? 0u : float_to_bf16(x);
}

__device__ inline std::uint32_t drop_nans(std::uint32_t pair) {
  if ((pair & 0x7fffu) > 0x7f80u) pair &= 0xffff0000u;
  if ((pair >> 16 & 0x7fffu) > 0x7f80u) pair &= 0x0000ffffu;
  return pair;
}

__device__ inline uint4 drop_nans(const uint4& x) {
  return {drop_nans(x.x), drop_nans(x.y), drop_nans(x.z), drop_nans(x.w)};
}

// ---- work: which tokens of which lists -----------------------------------------------------------------------------------

// A block's share of a row: positions [begin, end) of its two lists, one behind the other.
struct Share {
  Part list[2];
  std::int32_t begin, end;

  // At least one, so that an empty row is written too.
  constexpr int tiles() const { return end - begin > kPanelRows ? (end - begin + kPanelRows - 1) / kPanelRows : 1; }
};

// ---- the stream of a warp's tokens ---------------------------------------------------------------------------------------

constexpr std::uint32_t kLastTile = 0x100;  // with a unit's valid bits: the item's last tile

// How the lanes of a warp share its 8 tokens of a tile. Each token is four lanes'. But L1 is asked for lines of 128 bytes, once by each
// load that wants part of one: so a load takes two panels of four tokens, not one panel of eight. A lane and its partner, two
// tokens on, have one panel each of every pair, of both their tokens.
struct Lane {
  static __device__ std::uint32_t token() { return threadIdx.x % 32 / 4; }
  static __device__ std::uint32_t chunk() { return threadIdx.x % 4; }  // of a panel, 16 codes or 8 words
  // Its token is the second one of the two, and its panels are the second ones of pairs.
  static __device__ bool is_second() { return (threadIdx.x & 8) != 0; }
  template <typename T>
  static __device__ T partners(T x) {
    return __shfl_xor_sync(~0u, x, 8);
  }
};

// Of a token's seven scale bytes those of the first or second panels of pairs, and behind them that of the panel without a pair.
__device__ inline std::uint32_t tail_scales(std::uint32_t low, std::uint32_t high, bool second) {
  return ptx::prmt(low, high, second ? 0x6531 : 0x6420);
}

// One tile's 8 tokens of a warp, as a lane sees it. kBoth: it knows its partner's token as well, else it asks for it.
template <bool kBoth>
struct Unit {
  static constexpr int kKnown = kBoth ? 2 : 1;  // tokens, in their order
  std::uint64_t record[kKnown];                 // address; 0: no such token, or an invalid index
  const float* side[kKnown];                    // scales of a side tensor
  uint2 tail;                                   // scale bytes from a page's tail; a Stream's: see tail()
  std::uint32_t valid;                          // bit per token; kLastTile

  __device__ std::uint64_t own() const { return kBoth && Lane::is_second() ? record[kKnown - 1] : record[0]; }
  // Of both tokens.
  __device__ void records(std::uint64_t (&of)[2]) const { both(record, of); }
  __device__ void sides(std::uint64_t (&of)[2]) const {
    std::uint64_t known[kKnown];
    for (int n = 0; n < kKnown; ++n) known[n] = reinterpret_cast<std::uint64_t>(side[n]);
    both(known, of);
  }

 private:
  static __device__ void both(const std::uint64_t (&known)[kKnown], std::uint64_t (&of)[2]) {
    const std::uint64_t other = kBoth ? known[kKnown - 1] : Lane::partners(known[0]);
    of[0] = !kBoth && Lane::is_second() ? other : known[0];
    of[1] = !kBoth && Lane::is_second() ? known[0] : other;
  }
};

// How a list is read: for good; or before griddepcontrol_wait() and to compare with that, past L1 and in the order written.
struct LoadFinal {
  __device__ std::int32_t operator()(const std::int32_t* from) const { return __ldg(from); }
};
struct LoadRelaxed {
  __device__ std::int32_t operator()(const std::int32_t* from) const { return ptx::ld_relaxed(from); }
};

// Yields a warp's units, 8 tokens from row `row` of every tile on, item after item. `Work` tells the items: count(), first(), step(),
// an item's row(item), and slice(count), the positions of a row of `count` tokens that are this block's.
//
// What a row's start waits for are reads that need another's answer. So the first indices are asked for as if the lists were as
// long as they can be, together with the lengths, and again if the lengths say otherwise; an item's lengths are asked for
// when the one before begins; and scales are looked at (tail()) only when their tile is converted.
//
// All that leads to the first records is worked out before the kernel before this one in the stream has ended, from lists that it
// may change yet. Once it has (griddepcontrol_wait), first() yields the unit and asks for the lists again, and is_sure(),
// when the unit's records are on their way, tells whether they say the same. If not, both are to be called again.
template <typename Format, typename Work, bool kBoth>
class Stream {
  using Unit = cuda::Unit<kBoth>;
  static constexpr int kTokens = 8, kAhead = 32 / kTokens;  // of a tile; tiles that one load of indices serves

 public:
  __device__ Stream(const Args& args, const Work& work, int row)
      : args_(args), work_(work), row_(row), item_(work.first()) {
    if (item_ >= work_.count()) return;
    bounds_ = {0, args_.source[list()].entries};
    open(bounds_);
    place_ = bounds_place(item_);
    next_place_ = bounds_place(item_ + work_.step());
    const Bounds said = bounds(place_, LoadRelaxed());
#pragma unroll 1
    while (true) {
      ask(LoadRelaxed());
      if (__all_sync(~0u, bounds_ == said)) break;
      bounds_ = said;
      open(bounds_);
    }
    resolve();
  }

  // Has L2 ask for the first tile's records of the lanes that say so, and for scales.
  __device__ void prefetch(bool mine) const {
    if (mine && threadIdx.x % 32 < kTokens && record_ != 0) {
      ptx::prefetch_l2_bulk(reinterpret_cast<const void*>(record_), Format::kRecordBytes);
    }
    if (scales_) ptx::prefetch_l2(scales_);
  }

  // The first unit, behind griddepcontrol_wait().
  __device__ Unit first() {
    asked_again_ = -1;
    if (index_) asked_again_ = ptx::ld_relaxed(index_);
    bounds_again_ = bounds(place_, LoadRelaxed());
    next_bounds_ = bounds(next_place_, LoadRelaxed());
    ask_tail();
    const Unit unit = known();
    said_ = asked_;
    request();
    advance();
    return unit;
  }
  // Whether it was the right one. `zero`: Records::loaded(). Else the compiler would look at the lists before it asks for the
  // records, and would have to wait for these inside the loop over tiles, and so for what the round has asked for itself.
  __device__ bool is_sure(std::uint32_t zero) {
    const bool same = bounds_ == bounds_again_ && said_ == asked_again_ + static_cast<std::int32_t>(zero);
    if (work_.first() >= work_.count() || __all_sync(~0u, same)) return true;
    item_ = work_.first();
    bounds_ = bounds_again_;
    open(bounds_);
    ask();
    resolve();
    tile_ = 0;
    from_ %= kTokens;
    ptx::cp_async_wait_all();  // pieces of the wrong ones
    return false;
  }

  // The next unit; past the end one without tokens.
  __device__ Unit next() {
    if (tile_ == count_) {
      resolve();
      ask_tail();
      request();
      tile_ = 0;
      from_ %= kTokens;
    }
    const Unit unit = known();
    advance();
    return unit;
  }

  // Scale bytes from a page's tail, of the unit that next() returned last.
  // If both tokens are known, tail_scales() of each.
  __device__ uint2 tail() const {
    const int from = count_ != 0 ? from_ - kTokens : from_;
    const auto of = [&](int n) {
      return uint2{__shfl_sync(~0u, tail_.x, lane(from, n)), __shfl_sync(~0u, tail_.y, lane(from, n))};
    };
    if constexpr (!kBoth) return of(0);
    const uint2 one = of(0), two = of(1);
    return {tail_scales(one.x, one.y, Lane::is_second()), tail_scales(two.x, two.y, Lane::is_second())};
  }

 private:
  __device__ void advance() {
    if (count_ != 0) ++tile_, from_ += kTokens;
  }

  // The unit of tile_.
  __device__ Unit known() const {
    Unit unit{};
#pragma unroll
    for (int n = 0; n < Unit::kKnown; ++n) {
      unit.record[n] = __shfl_sync(~0u, record_, lane(from_, n));
      if constexpr (Format::kScaling == Scaling::kSideFloat) {
        unit.side[n] =
            reinterpret_cast<const float*>(__shfl_sync(~0u, reinterpret_cast<std::uint64_t>(scales_), lane(from_, n)));
      }
    }
    unit.valid = (valid_ >> tile_ * kTokens & 0xff) | (ends_ && tile_ + 1 == count_ ? kLastTile : 0);
    return unit;
  }

  // The lane that knows the n-th of the tokens that this one has to know, where `from` knows its own.
  static __device__ int lane(int from, int n) { return kBoth ? (from & ~2) + 2 * n : from; }

  // The list of which this lane holds what is to be known: of an item's two, one each in even and odd lanes.
  static __device__ int list() { return threadIdx.x % 2; }

  // Asks memory for it.
  template <typename Load = LoadFinal>
  __device__ Bounds bounds(BoundsPlace place, Load load = {}) const {
    return bounds_at(args_.source[list()], place, load);
  }
  // Of an item past the end it does not matter.
  __device__ BoundsPlace bounds_place(std::uint32_t item) const {
    if (item >= work_.count()) return {};
    return gpu::bounds_place(args_.source[list()], work_.row(item).token);
  }

  // Begins item_.
  __device__ void open(Bounds bounds) {
    const auto row = work_.row(item_);
    list_ = part_of(row_of(args_.source[list()], row.token, bounds), row.split, args_.splits, args_.by_splits);
    first_count_ = __shfl_sync(~0u, list_.count, 0);
    const auto slice = work_.slice(first_count_ + __shfl_sync(~0u, list_.count, 1));
    position_ = slice.begin + row_;
    end_ = slice.end;
    // At least one, so that an empty row is written too.
    left_ = max(1, (slice.end - slice.begin + kPanelRows - 1) / kPanelRows);
  }

  __device__ void request() {
    if (left_ == 0 && item_ < work_.count()) {
      item_ += work_.step();
      if (item_ < work_.count()) {
        open(next_bounds_);
        next_bounds_ = bounds(bounds_place(item_ + work_.step()));
      }
    }
    ask();
  }

  // Where the index of this lane's token in the next tiles stands: tile l / kTokens, token l % kTokens.
  __device__ const std::int32_t* place() {
    const int lane = threadIdx.x % 32, mine = lane / kTokens;
    const std::int32_t at = position_ + mine * kPanelRows + lane % kTokens;
    asked_source_ = at >= first_count_;
    const auto indices = reinterpret_cast<const std::int32_t*>(
        __shfl_sync(~0u, reinterpret_cast<std::uint64_t>(list_.indices), asked_source_));
    return mine < left_ && at < end_ ? indices + (at - (asked_source_ ? first_count_ : 0)) : nullptr;
  }

  template <typename Load = LoadFinal>
  __device__ void ask(Load load = {}) {
    index_ = place();
    asked_ = -1;
    if (index_) asked_ = load(index_);
    asked_count_ = left_ < kAhead ? left_ : kAhead;
    left_ -= asked_count_;
    position_ += kAhead * kPanelRows;
  }

  // Turns the indices asked for into addresses.
  __device__ void resolve() {
    count_ = asked_count_;
    ends_ = left_ == 0;
    const SourceArgs& source = args_.source[asked_source_];
    const bool valid = is_valid(source, asked_);
    valid_ = __ballot_sync(~0u, valid);
    record_ = 0;
    scales_ = nullptr;
    if (!valid) return;
    const Row row = locate<Format>(source, static_cast<std::uint32_t>(asked_));
    record_ = reinterpret_cast<std::uint64_t>(row.record);
    constexpr bool kApart = Format::kScaling == Scaling::kTailUe8m0 || Format::kScaling == Scaling::kSideFloat;
    if constexpr (kApart) scales_ = row.scales;
  }

  __device__ void ask_tail() {
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      if (scales_) tail_ = __ldg(reinterpret_cast<const uint2*>(scales_));
    }
  }

  const Args& args_;
  const Work& work_;
  const int row_;
  std::uint32_t item_;
  BoundsPlace place_{}, next_place_{};  // of the first item, of the one behind it
  Bounds bounds_{}, bounds_again_{};    // of the first item, before and behind griddepcontrol_wait()
  Bounds next_bounds_{};                // of the item behind item_
  Part list_{};
  std::int32_t first_count_ = 0, position_ = 0, end_ = 0;
  int left_ = 0;  // tiles of this item not yet asked for
  const std::int32_t* index_ = nullptr;
  std::int32_t asked_ = -1;                    // what it says
  std::int32_t said_ = -1, asked_again_ = -1;  // of the first, before and behind griddepcontrol_wait()
  int asked_source_ = 0, asked_count_ = 0, tile_ = 0, count_ = 0;
  int from_ = static_cast<int>(Lane::token());  // the lane that knows this one's token of tile_
  bool ends_ = false;                           // the tiles at hand end their item
  std::uint32_t valid_ = 0;
  std::uint64_t record_ = 0;
  const std::uint8_t* scales_ = nullptr;  // of a page's tail or a side tensor
  uint2 tail_{};
};

// ---- a record's pieces on their way --------------------------------------------------------------------------------------

// A warp's tokens between memory and the tile: the pieces of the unit that is loaded, and its scales. Most pieces wait in
// registers. A thread's wait for one load is a wait for all it has issued, so those of the right half travel to a place of the
// thread's own in shared memory instead: then each part is on its way while the other is converted.
enum class Way {
  kAside,       // as that
  kWordsApart,  // and 16-bit words behind codes go straight to their tile: copy_words()
  kTaken        // all travel to registers, of which there are enough for two units: take()
};
template <typename Format, bool kBoth, Way kWay = Way::kAside>
class Records {
  using Piece = Pieces<Format>;
  using Unit = cuda::Unit<kBoth>;
  static constexpr bool kWordsApart = kWay == Way::kWordsApart, kTaken = kWay == Way::kTaken;
  static_assert(!kTaken || (Piece::kWhole && Piece::kAside == 0));
  static constexpr int kCount = kWordsApart ? Piece::kCodes : Piece::kCount;  // pieces of the common way
  static constexpr int kFirstAside = Piece::kCount - Piece::kAside;           // the first that waits aside
  static constexpr int upto(int to) { return to < kCount ? to : kCount; }

 public:
  // `aside`: shared memory of this thread, 16 bytes every kAsideStride.
  __device__ Records(std::uint32_t row, std::uint32_t aside) : aside_(aside) {
    const std::uint32_t token = Lane::token() & ~2u, chunk = Lane::chunk(), second = Lane::is_second();
    codes_from_ = second * kPanelColumns + chunk * 16;
    codes_ = second * kPanelBytes + chunk_offset(row + token, 2 * chunk);
    single_ = chunk_offset(row + Lane::token(), 2 * chunk);
    // Odd tokens take the halves of a panel the other way round: eight lanes write eight banks.
    const std::uint32_t half = second ^ token % 2;
    words_from_ = half * 64 + chunk * 16;
    words_ = chunk_offset(row + token, half * 4 + chunk);
  }

  // Asks for pieces [kFrom, kTo) of a unit. Adds `zero` to the addresses.
  template <int kFrom, int kTo>
  __device__ void load(const Unit& unit, std::uint32_t zero = 0) {
    if (is_void(unit)) return;
    const Sources sources(*this, unit, zero);
    each<kFrom, upto(kTo)>([&]<int kPiece>() {
      const auto [from, there] = sources.template of<kPiece>();
      if constexpr (kPiece >= kFirstAside) {
        ptx::cp_async_16(slot(kPiece), from, there ? 16 : 0);
      } else {
        uint4& to = coming_[Piece::place(kPiece)];
        to = {0, 0, 0, 0};
        if (there) to = ptx::ld_global_nc_no_allocate(from);
      }
    });
    if constexpr (upto(kTo) > kFirstAside) ptx::cp_async_commit_group();
  }

  // Returns 0 when the pieces that travel to registers are there.
  __device__ std::uint32_t loaded() const { return ptx::zero_behind(coming_[Piece::kFlight - Piece::kAside - 1].x); }

  // Has L2 ask for a unit's records, 128 bytes by a lane at a time.
  __device__ void prefetch(const Unit& unit, bool when) const {
#pragma unroll
    for (int from = 0; from < Format::kRecordBytes; from += 512) {
      const std::uint32_t at = from + Lane::chunk() * 128;
      ptx::prefetch_l2(pointer(unit.own() + at), when && unit.own() != 0 && at < Format::kRecordBytes);
    }
  }

  // Words straight to the tile at `keys`, for finish_words().
  __device__ void copy_words(const Unit& unit, std::uint32_t keys) const {
    const Sources sources(*this, unit, 0);
    each<Piece::kCodes, Piece::kCount>([&]<int kPiece>() {
      const auto [from, there] = sources.template of<kPiece>();
      ptx::cp_async_16(word_place<kPiece>(keys), from, there ? 16 : 0);
    });
    ptx::cp_async_commit_group();
  }
  // Waits for them.
  __device__ void finish_words(bool nan_to_zero, std::uint32_t keys) const {
    ptx::cp_async_wait_all();
    if (!nan_to_zero) return;
    each<Piece::kCodes, Piece::kCount>([&]<int kPiece>() {
      const std::uint32_t place = word_place<kPiece>(keys);
      ptx::st_shared(place, drop_nans(ptx::ld_shared(place)));
    });
  }

  // Asks for the scales of a unit; they belong to the pieces converted after the next use_scales().
  __device__ void load_scales(const Unit& unit) {
    next_ = {};
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) next_ = unit.tail;
    if constexpr (kFloatScales && kBoth) {
      const auto of = [&](int n) {
        const float* scales = float_scales(unit.record[n], unit.side[n]);
        const std::uint32_t at = kPerLane * Lane::chunk() + (kPerLane > 1 && Lane::is_second() ? 1 : 0);
        return unit.record[n] != 0 ? __float_as_uint(__ldg(scales + at)) : 0;
      };
      next_ = {of(0), of(1)};
    } else if constexpr (kFloatScales) {
      const float* scales = float_scales(unit.record[0], unit.side[0]) + kPerLane * Lane::chunk();
      if (unit.record[0] != 0) {
        next_ = {__float_as_uint(__ldg(scales)), kPerLane > 1 ? __float_as_uint(__ldg(scales + 1)) : 0};
      }
    }
  }
  __device__ void use_scales() {
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) use_scales(next_);
    if constexpr (kFloatScales) {
      const std::uint32_t x = split_scale(__uint_as_float(next_.x), Format::kFlavour);
      const std::uint32_t y = kBoth || kPerLane > 1 ? split_scale(__uint_as_float(next_.y), Format::kFlavour) : x;
      if constexpr (kBoth) {
        scales_ = {x, y};
      } else {
        exchange(Lane::is_second() ? y : x, Lane::is_second() ? x : y);
      }
    }
  }
  // `tail`: a Stream's, or the scale bytes of this lane's token.
  __device__ void use_scales(uint2 tail) {
    static_assert(Format::kScaling != Scaling::kTailUe8m0 || Piece::kCodes == 7);
    if constexpr (kBoth) {
      scales_ = tail;
    } else {
      exchange(tail_scales(tail.x, tail.y, Lane::is_second()), tail_scales(tail.x, tail.y, !Lane::is_second()));
    }
  }

  // Takes what has come, so that the next unit can be asked for before this one is converted.
  __device__ void take() {
#pragma unroll
    for (int k = 0; k < Piece::kFlight; ++k) taken_[k] = coming_[k];
  }

  // Takes what lies aside and is to be converted to registers, for convert(). Returns 0 when it is there.
  __device__ std::uint32_t fetch(const Unit& unit) {
    if (is_void(unit)) return 0;
    std::uint32_t there = 0;
    if constexpr (Piece::kAside > 0) ptx::cp_async_wait_all();
    each<kFirstAside, kBoth ? Piece::kCount : Piece::kCodes>([&]<int kPiece>() {
      uint4& to = at_hand(kPiece);
      to = ptx::ld_shared(slot(kPiece));
      there |= to.x;
    });
    return ptx::zero_behind(there);
  }

  // Converts pieces [kFrom, kTo) of the unit, behind fetch(), and stores them in the tile at address `keys`.
  template <int kFrom, int kTo>
  __device__ void convert(const Unit& unit, bool nan_to_zero, std::uint32_t keys) {
    constexpr int kCodesTo = kTo < Piece::kCodes ? kTo : Piece::kCodes;
    if (is_void(unit)) {  // nothing was asked for
      each<kFrom, kTo>([&]<int kPiece>() {
        if constexpr (kPiece < Piece::kCodes) {
          ptx::st_shared(code_place<kPiece>(keys, 0), uint4{});
          ptx::st_shared(code_place<kPiece>(keys, 1), uint4{});
        } else {
          ptx::st_shared(word_place<kPiece>(keys), uint4{});
        }
      });
      return;
    }
    if constexpr (kFrom < kCodesTo) {
      const auto is_slow = [&] {
        std::uint32_t slow = 0;
        each<kFrom, kCodesTo>([&]<int kPiece>() { slow |= nan_codes(at_hand(kPiece)); });
        return __any_sync(~0u, ((slow & kNanCodes) | slow_scales<kFrom, kCodesTo>()) != 0);
      };
      const auto store = [&] {
        each<kFrom, kCodesTo>([&]<int kPiece>() {
          const uint4 x = at_hand(kPiece);
          const Multiplier by = multiplier(kPiece);
          ptx::st_shared(code_place<kPiece>(keys, 0), uint4{scaled<false>(x.x, by), scaled<true>(x.x, by),
                                                            scaled<false>(x.y, by), scaled<true>(x.y, by)});
          ptx::st_shared(code_place<kPiece>(keys, 1), uint4{scaled<false>(x.z, by), scaled<true>(x.z, by),
                                                            scaled<false>(x.w, by), scaled<true>(x.w, by)});
        });
      };
      // Where registers are enough, what has been stored may prove wrong: nothing waits for the answer.
      constexpr bool kAskFirst = !kBoth && Piece::kAside > 0;
      const bool known_slow = kAskFirst && is_slow();
      if (!known_slow) store();
      if (known_slow || (!kAskFirst && is_slow())) convert_slowly(unit, kFrom, kCodesTo, nan_to_zero, keys);
    }
    each<(kFrom > Piece::kCodes ? kFrom : Piece::kCodes), upto(kTo)>([&]<int kPiece>() {
      if constexpr (!kBoth && kPiece >= kFirstAside) at_hand(kPiece) = ptx::ld_shared(slot(kPiece));
      const uint4 x = at_hand(kPiece);
      ptx::st_shared(word_place<kPiece>(keys), nan_to_zero ? drop_nans(x) : x);
    });
  }

 private:
  // Units without a valid token are frequent enough to be looked for where few heads leave the time.
  static __device__ bool is_void(const Unit& unit) { return kBoth && (unit.valid & 0xff) == 0; }

  static constexpr bool kFloatScales =
      Format::kScaling == Scaling::kSideFloat || Format::kScaling == Scaling::kInlineFloat;
  // Of these those that a lane of a token's four reads: of a pair of panels.
  static constexpr int kPerLane = Format::kScaling == Scaling::kSideFloat ? 2 : 1;
  static_assert(!kFloatScales || (Piece::kCodes == 8 && kPerLane * Format::kScaleTile == 2 * kPanelColumns));

  // Pieces of codes come in pairs, of the lane's two tokens; if their number is odd, the last one is of its own token alone: of
  // one panel of all 8 tokens.
  static constexpr int kPaired = Piece::kCodes & ~1;
  static constexpr bool is_single(int piece) { return kPaired <= piece && piece < Piece::kCodes; }

  static __device__ const std::uint8_t* pointer(std::uint64_t address) {
    return reinterpret_cast<const std::uint8_t*>(address);
  }

  // Where a unit's pieces are read. What a piece's number adds to these addresses is known to the compiler, and they
  // are not, so that the loads share them: a register that another address is to be made in must wait until the load before
  // has been taken.
  struct Sources {
    const std::uint8_t *codes[2], *words[2], *single;
    bool there[2], single_there;
    __device__ Sources(const Records& its, const Unit& unit, std::uint32_t zero) {
      std::uint64_t records[2];
      unit.records(records);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        there[n] = records[n] != 0;
        codes[n] = ptx::opaque(pointer(records[n] + (its.codes_from_ + zero)));
        words[n] = ptx::opaque(pointer(records[n] + (its.words_from_ + zero)));
      }
      single_there = unit.own() != 0;
      single = ptx::opaque(pointer(unit.own() + (Lane::chunk() * 16 + zero)));
    }
    struct Source {
      const std::uint8_t* from;
      bool there;
    };
    template <int kPiece>
    __device__ Source of() const {
      constexpr int kWord = kPiece - Piece::kCodes;
      if constexpr (kWord >= 0) {
        return {words[kWord % 2] + (Format::kRopeOffset + kWord / 2 * kPanelRowBytes), there[kWord % 2]};
      } else if constexpr (is_single(kPiece)) {
        return {single + kPiece * kPanelColumns, single_there};
      } else {
        return {codes[kPiece % 2] + kPiece / 2 * (2 * kPanelColumns), there[kPiece % 2]};
      }
    }
  };

  // And where in a tile they belong. The second token is two rows below the first: 256 bytes, and another swizzle.
  static constexpr std::uint32_t kSecondToken = 2 * kPanelRowBytes | 2 * 16;
  template <int kPiece>
  __device__ std::uint32_t code_place(std::uint32_t keys, std::uint32_t chunk) const {
    if constexpr (is_single(kPiece)) return keys + (single_ ^ chunk * 16) + kPiece * kPanelBytes;
    return keys + (codes_ ^ (kPiece % 2 * kSecondToken + chunk * 16)) + kPiece / 2 * (2 * kPanelBytes);
  }
  template <int kPiece>
  __device__ std::uint32_t word_place(std::uint32_t keys) const {
    constexpr int kWord = kPiece - Piece::kCodes;
    return keys + (words_ ^ kWord % 2 * kSecondToken) + Piece::panel(kPiece) * kPanelBytes;
  }

  // body.operator()<i>() for i in [kFrom, kTo).
  template <int kFrom, int kTo, typename Body>
  static __device__ void each(Body&& body) {
    if constexpr (kFrom < kTo) {
      [&]<int... kOffset>(std::integer_sequence<int, kOffset...>) {
        (body.template operator()<kFrom + kOffset>(), ...);
      }
      (std::make_integer_sequence<int, kTo - kFrom>());
    }
  }

  // By the definition, from memory again, a code at a time: for NaN codes and scales that the fast arithmetic cannot hold.
  __device__ void convert_slowly(const Unit& unit, int from, int to, bool nan_to_zero, std::uint32_t keys) const {
    const std::uint32_t second = Lane::is_second();
    std::uint64_t records[2];
    unit.records(records);
    std::uint64_t sides[2] = {};
    if constexpr (Format::kScaling == Scaling::kSideFloat) unit.sides(sides);
#pragma unroll 1
    for (int k = from * 4; k < to * 4; ++k) {
      const int piece = k / 4, i = k % 4;
      const bool single = is_single(piece);
      const std::uint32_t n = single ? second : piece % 2, panel = single ? piece : piece / 2 * 2 + second;
      const std::uint64_t record = n ? records[1] : records[0];
      uint2 pairs{};
      if (record != 0) {
        float scale;
        if constexpr (kFloatScales) {
          const auto side = reinterpret_cast<const float*>(n ? sides[1] : sides[0]);
          scale = __ldg(float_scales(record, side) + panel * kPanelColumns / Format::kScaleTile);
        } else {
          scale = ue8m0_to_float(scale_byte(n, single ? 3 : piece / 2));
        }
        std::uint32_t word =
            __ldg(reinterpret_cast<const std::uint32_t*>(record + panel * kPanelColumns + Lane::chunk() * 16) + i);
#pragma unroll 1
        for (int code = 0; code < 4; ++code, word >>= 8) {
          const std::uint32_t element = slow_element<Format>(word & 0xff, scale, nan_to_zero) << 16;
          pairs.x = __funnelshift_r(pairs.x, pairs.y, 16);
          pairs.y = (pairs.y >> 16) | element;
        }
      }
      const std::uint32_t place =
          single ? piece * kPanelBytes + single_ : piece / 2 * (2 * kPanelBytes) + (codes_ ^ n * kSecondToken);
      ptx::st_shared(keys + (place ^ i / 2 * 16) + i % 2 * 8, pairs);
    }
  }

  template <bool kHigh>
  static __device__ std::uint32_t scaled(std::uint32_t word, const Multiplier& by) {
    return cuda::scaled<Format::kScaling, kHigh>(word, by);
  }

  // A token's float scales.
  static __device__ const float* float_scales(std::uint64_t record, const float* side) {
    if constexpr (Format::kScaling == Scaling::kSideFloat) return side;
    return reinterpret_cast<const float*>(record + Format::kNope);
  }

  // mine, others: the scales of this lane's token, of its own panels and of its partner's.
  __device__ void exchange(std::uint32_t mine, std::uint32_t others) {
    const std::uint32_t got = Lane::partners(others);
    scales_ = Lane::is_second() ? uint2{got, mine} : uint2{mine, got};
  }
  __device__ std::uint32_t scale_byte(std::uint32_t token, int k) const {
    return (token ? scales_.y : scales_.x) >> (k * 8) & 0xff;
  }
  __device__ Multiplier multiplier(int piece) const {
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      if (is_single(piece)) return ue8m0_multiplier(scale_byte(Lane::is_second(), 3));
      return ue8m0_multiplier(scale_byte(piece % 2, piece / 2));
    }
    return float_multiplier(__shfl_sync(~0u, piece % 2 ? scales_.y : scales_.x, piece / 2, 4));
  }

  // Non-zero if a scale of pieces [kFrom, kTo) is beyond the fast arithmetic.
  template <int kFrom, int kTo>
  __device__ std::uint32_t slow_scales() const {
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      std::uint32_t tops = 0;
      for (int piece = kFrom; piece < kTo; ++piece) tops |= 0x80u << (is_single(piece) ? 3 : piece / 2) * 8;
      return large_scales(scales_.x, tops) | large_scales(scales_.y, tops);
    } else {  // of any piece: each lane looks at its own
      return (scales_.x & kLargeScale) == kLargeScale || (scales_.y & kLargeScale) == kLargeScale;
    }
  }

  static __device__ std::uint32_t nan_codes(const uint4& x) {
    constexpr Fp8 kFlavour = Format::kFlavour;
    return cuda::nan_codes<kFlavour>(x.x) | cuda::nan_codes<kFlavour>(x.y) | cuda::nan_codes<kFlavour>(x.z) |
           cuda::nan_codes<kFlavour>(x.w);
  }

  __device__ std::uint32_t slot(int piece) const { return aside_ + (piece - kFirstAside) * kAsideStride; }

  __device__ uint4& at_hand(int piece) { return kTaken ? taken_[Piece::place(piece)] : coming_[Piece::place(piece)]; }

  uint4 coming_[Piece::kFlight] = {}, taken_[kTaken ? Piece::kFlight : 1];
  uint2 scales_{}, next_{};  // as multiplier() wants them, a word of each of the two tokens; as they were read
  std::uint32_t codes_from_, codes_, single_, words_from_, words_, aside_;
};

}  // namespace pasa::cuda
