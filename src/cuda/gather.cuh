// The converter warps: index -> page -> record -> bf16 tile in shared memory, whatever the KV format.
//
// Four lanes share a token; a warp takes 8 tokens of a tile. A token's record is loaded straight to registers in 16-byte
// pieces, and the piece of the next tile is asked for as soon as the register that will hold it has been converted, so a
// whole tile is always on its way from memory while the one before is converted: no raw ring in shared memory, no wait for
// a free tile before the next load starts. Indices, page numbers and scale bytes run up to eight tiles ahead, one lane for
// each of a warp's next 32 tokens.
//
// e4m3 becomes bf16 without conversion instructions: sign, exponent and mantissa are moved into place, which reads as the
// value times 2^-120, and the multiplication by 2^120 times the scale, in bf16 pairs, makes it exact (subnormals included)
// for power-of-two scales; a float scale is split in two bf16 so that the product rounds once. NaN codes and scales beyond
// this arithmetic are found by a cheap test and converted by core/number.h itself.
#pragma once

#include <cstdint>

#include "core/format.h"
#include "core/number.h"
#include "cuda/args.h"
#include "cuda/ptx.cuh"
#include "cuda/tile.cuh"

namespace pasa::cuda {

// How a format's record falls into 16-byte pieces: lane j (of a token's four) takes of every panel's codes bytes
// [16j, 16j + 16), of its 16-bit words two pieces.
template <typename Format>
struct Pieces {
  static constexpr int kCodes = Format::kNope / kPanelColumns;      // one piece a panel
  static constexpr int kWords = 2 * Format::kRope / kPanelColumns;  // two
  static constexpr int kCount = kCodes + kWords, kPanels = kCodes + kWords / 2;
  // Pieces in flight: the whole record where it fits the registers, else half of it.
  static constexpr int kFlight = kCount <= 10 ? kCount : kCount / 2;
  static constexpr int kLeft = kCodes ? 4 : 8;  // pieces that make panels 0 to 3
  static_assert(kPanels == Format::kDim / kPanelColumns && (kCodes == 0 || kCodes >= 4));

  static constexpr int panel(int piece) { return piece < kCodes ? piece : kCodes + (piece - kCodes) / 2; }
};

// ---- e4m3 to bf16 ------------------------------------------------------------------------------------------------------

// Two codes in place: bf16 pair of value * 2^-120. Bytes 0 and 1 of `word`, or 2 and 3.
template <int kPair>
__device__ inline std::uint32_t place(std::uint32_t word) {
  // Each byte with its sign spread over the byte above, moved up by 4: sssssseeeemmm0000, of which one s counts.
  return (ptx::prmt < kPair ? 0xb3a2 : 0x9180 > (word) << 4) & 0x87f087f0u;
}

// Non-zero if one of the four codes is NaN.
template <Fp8 kFlavour>
__device__ inline std::uint32_t nan_codes(std::uint32_t word) {
  if constexpr (kFlavour == Fp8::kE4m3fn) return ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
  return ~((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) & word & 0x80808080u;
}

// What multiplies a placed pair: `high` + `low`, each twice; low is 0 for power-of-two scales and then unused.
struct Multiplier {
  std::uint32_t high, low;
  bool plain;   // within the fast arithmetic
  float scale;  // for the other case
};

// The bias that placing adds: 2^120, or 2^119 where the same bits mean half the value.
constexpr int bias_of(Fp8 flavour) { return flavour == Fp8::kE4m3fn ? 120 : 119; }

__device__ inline Multiplier ue8m0_multiplier(std::uint32_t byte) {
  // bf16 exponent field byte + 120: within range up to byte 134, a scale of 128.
  return {byte * 0x00800080u + 0x3c003c00u, 0, byte <= 134, ue8m0_to_float(static_cast<std::uint8_t>(byte))};
}

__device__ inline Multiplier float_multiplier(float scale, Fp8 flavour) {
  const float lifted = scale * __uint_as_float(static_cast<std::uint32_t>(bias_of(flavour) + 127) << 23);
  const std::uint32_t high = ptx::cvt_bf16x2(lifted, lifted);
  const float rest = lifted - __uint_as_float(high << 16);
  return {high, ptx::cvt_bf16x2(rest, rest), fabsf(scale) < 128.0f, scale};
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

// ---- work: which tokens of which lists -----------------------------------------------------------------------------------

// A block's share of a row: positions [begin, end) of its two lists, one behind the other.
struct Share {
  Part list[2];
  std::int32_t begin, end;

  // At least one, so that an empty row is written too.
  constexpr int tiles() const { return end - begin > kPanelRows ? (end - begin + kPanelRows - 1) / kPanelRows : 1; }
};

// ---- the stream of a warp's tokens ---------------------------------------------------------------------------------------

// A warp's place in the grid of tiles: its 8 tokens start at row `row` of every kStep-th tile, from tile `first` of each
// item on.
struct Place {
  int row, first;
};

// One tile's 8 tokens of a warp, as its lanes see it: four lanes a token.
struct Unit {
  const std::uint8_t* record;  // nullptr: no such token, or an invalid index
  uint2 tail;                  // scale bytes from a page's tail
  const float* side;           // scales of a side tensor
  std::uint32_t valid;         // bit per token
};

// Yields a warp's units item after item. `Work` tells the items: count(), first(), step(), share(item).
template <typename Format, int kStep, typename Work>
class Stream {
 public:
  __device__ Stream(const Args& args, const Work& work, Place place)
      : args_(args), work_(work), place_(place), item_(work.first()) {
    if (item_ < work_.count()) open();
    request();
  }

  // The next unit; past the end one without tokens.
  __device__ Unit next() {
    if (unit_ == count_) {
      resolve();
      request();
      unit_ = 0;
    }
    const int lane = threadIdx.x % 32, from = unit_ * 8 + lane / 4;
    Unit unit{};
    unit.record = reinterpret_cast<const std::uint8_t*>(__shfl_sync(~0u, record_, from));
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      unit.tail = {__shfl_sync(~0u, tail_.x, from), __shfl_sync(~0u, tail_.y, from)};
    }
    if constexpr (Format::kScaling == Scaling::kSideFloat) {
      unit.side = reinterpret_cast<const float*>(__shfl_sync(~0u, side_, from));
    }
    unit.valid = valid_ >> (unit_ * 8) & 0xff;
    if (count_ != 0) ++unit_;
    return unit;
  }

 private:
  __device__ void open() {
    share_ = work_.share(item_);
    const int tiles = share_.tiles();
    left_ = tiles > place_.first ? (tiles - place_.first + kStep - 1) / kStep : 0;
    position_ = share_.begin + place_.first * kPanelRows + place_.row;
  }

  // Loads the indices of the next four units; lane l's is that of unit l / 8, token l % 8.
  __device__ void request() {
    while (left_ == 0 && item_ < work_.count()) {
      item_ += work_.step();
      if (item_ < work_.count()) open();
    }
    asked_count_ = left_ < 4 ? left_ : 4;
    const int lane = threadIdx.x % 32, mine = lane / 8;
    const std::int32_t at = position_ + mine * kStep * kPanelRows + lane % 8;
    asked_ = -1;
    asked_source_ = at >= share_.list[0].count;
    if (mine < asked_count_ && at < share_.end) {
      asked_ =
          __ldg(asked_source_ ? share_.list[1].indices + (at - share_.list[0].count) : share_.list[0].indices + at);
    }
    left_ -= asked_count_;
    position_ += 4 * kStep * kPanelRows;
  }

  // Turns the indices asked for into addresses.
  __device__ void resolve() {
    count_ = asked_count_;
    const SourceArgs& source = args_.source[asked_source_];
    const bool valid = is_valid(source, asked_);
    valid_ = __ballot_sync(~0u, valid);
    record_ = 0;
    if (!valid) return;
    const Row row = locate<Format>(source, static_cast<std::uint32_t>(asked_));
    record_ = reinterpret_cast<std::uint64_t>(row.record);
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) tail_ = __ldg(reinterpret_cast<const uint2*>(row.scales));
    if constexpr (Format::kScaling == Scaling::kSideFloat) side_ = reinterpret_cast<std::uint64_t>(row.scales);
  }

  const Args& args_;
  const Work& work_;
  const Place place_;
  std::uint32_t item_;
  Share share_{};
  int left_ = 0;  // units of this item not yet asked for
  std::int32_t position_ = 0;
  std::int32_t asked_ = -1;
  int asked_source_ = 0, asked_count_ = 0;
  int unit_ = 0, count_ = 0;
  std::uint32_t valid_ = 0;
  std::uint64_t record_ = 0, side_ = 0;
  uint2 tail_{};
};

// ---- a record's pieces in registers --------------------------------------------------------------------------------------

// A warp's tokens between memory and the tile: kFlight pieces of the unit that is loaded, its scales.
template <typename Format>
class Records {
  using Piece = Pieces<Format>;

 public:
  __device__ explicit Records(int row) {
    const std::uint32_t lane = threadIdx.x % 32, j = lane % 4, token = lane / 4;
    odd_ = (token & 1) * 64;
    codes_ = chunk_offset(row + token, 2 * j);
    // Even tokens take the left half of a panel first, odd ones the right half: eight lanes write eight banks.
    words_ = chunk_offset(row + token, (token & 1) * 4 + j);
    lane_bytes_ = j * 16;
  }

  // Asks for piece kPiece of a unit (into the register that piece kPiece - kFlight of it may leave).
  template <int kPiece>
  __device__ void load(const Unit& unit) {
    uint4& to = data_[kPiece % Piece::kFlight];
    to = {0, 0, 0, 0};
    if (!unit.record) return;
    std::uint32_t offset = lane_bytes_;
    if constexpr (kPiece < Piece::kCodes) {
      offset += kPiece * kPanelColumns;
    } else {
      constexpr int kWord = kPiece - Piece::kCodes;
      offset += Format::kRopeOffset + kWord / 2 * kPanelRowBytes + (odd_ ^ (kWord % 2 * 64));
    }
    to = ptx::ld_global_nc_no_allocate(unit.record + offset);
  }

  // Asks for the scales of a unit; they belong to the pieces loaded after use() of the one before.
  __device__ void load_scales(const Unit& unit) {
    next_ = {};
    const int j = threadIdx.x % 4;
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) next_ = unit.tail;
    if constexpr (Format::kScaling == Scaling::kSideFloat) {
      if (unit.record)
        next_ = {__float_as_uint(__ldg(unit.side + 2 * j)), __float_as_uint(__ldg(unit.side + 2 * j + 1))};
    }
    if constexpr (Format::kScaling == Scaling::kInlineFloat) {
      if (unit.record) next_.x = __ldg(reinterpret_cast<const std::uint32_t*>(unit.record + Format::kNope) + j);
    }
  }
  __device__ void use_scales() { scales_ = next_; }

  // Converts piece kPiece and hands it to store(offset in the tile, 16 or 8 bytes).
  template <int kPiece, typename Store>
  __device__ void convert(bool nan_to_zero, Store&& store) const {
    const uint4 x = data_[kPiece % Piece::kFlight];
    constexpr std::uint32_t kPanelAt = Piece::panel(kPiece) * kPanelBytes;
    if constexpr (kPiece >= Piece::kCodes) {
      constexpr std::uint32_t kHalf = (kPiece - Piece::kCodes) % 2 * 64;
      const std::uint32_t at = kPanelAt + (words_ ^ kHalf);
      if (nan_to_zero) {
        store(at, uint4{drop_nans(x.x), drop_nans(x.y), drop_nans(x.z), drop_nans(x.w)});
      } else {
        store(at, x);
      }
    } else {
      const Multiplier by = multiplier<kPiece>();
      constexpr Fp8 kFlavour = Format::kFlavour;
      const std::uint32_t nans =
          nan_codes<kFlavour>(x.x) | nan_codes<kFlavour>(x.y) | nan_codes<kFlavour>(x.z) | nan_codes<kFlavour>(x.w);
      if (by.plain && nans == 0) {
        store(kPanelAt + codes_, uint4{scaled<0>(x.x, by), scaled<1>(x.x, by), scaled<0>(x.y, by), scaled<1>(x.y, by)});
        store(kPanelAt + (codes_ ^ 16),
              uint4{scaled<0>(x.z, by), scaled<1>(x.z, by), scaled<0>(x.w, by), scaled<1>(x.w, by)});
      } else {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
          std::uint32_t word = i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
          uint2 pairs{};
#pragma unroll 1
          for (int k = 0; k < 4; ++k) {
            const std::uint32_t element = slow_element<Format>(word & 0xff, by.scale, nan_to_zero) << 16;
            pairs.x = __funnelshift_r(pairs.x, pairs.y, 16);
            pairs.y = (pairs.y >> 16) | element;
            word >>= 8;
          }
          store(kPanelAt + (codes_ ^ (i / 2 * 16)) + i % 2 * 8, pairs);
        }
      }
    }
  }

 private:
  template <int kPair>
  static __device__ std::uint32_t scaled(std::uint32_t word, const Multiplier& by) {
    const std::uint32_t placed = place<kPair>(word);
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) return ptx::mul_bf16x2(placed, by.high);
    return ptx::fma_bf16x2(placed, by.high, ptx::mul_bf16x2(placed, by.low));
  }

  template <int kPiece>
  __device__ Multiplier multiplier() const {
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      const std::uint32_t word = kPiece < 4 ? scales_.x : scales_.y;
      return ue8m0_multiplier(word >> (kPiece % 4 * 8) & 0xff);
    }
    constexpr int kScale = kPiece * kPanelColumns / (Format::kScaleTile ? Format::kScaleTile : 1);
    constexpr int kPerLane = Format::kScaling == Scaling::kSideFloat ? 2 : 1;
    const std::uint32_t mine = kScale % kPerLane ? scales_.y : scales_.x;
    return float_multiplier(__uint_as_float(__shfl_sync(~0u, mine, kScale / kPerLane, 4)), Format::kFlavour);
  }

  uint4 data_[Piece::kFlight];
  uint2 scales_{}, next_{};
  std::uint32_t odd_, codes_, words_, lane_bytes_;
};

}  // namespace pasa::cuda
