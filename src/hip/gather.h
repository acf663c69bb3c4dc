// Bringing 16 tokens of a wave into the tile: index -> page -> bytes -> 16-bit. Every format ends as 16-bit rows in LDS, dequantised
// once, so the kernel behind it knows no formats.
//
// A wave owns 16 rows of the tile and works on them in two steps: start() issues loads into registers, which stay in flight
// while the tile before is computed with; finish() converts and writes the rows. 16-bit rows need no conversion: their
// start() does nothing and finish() loads straight into LDS. In both, a row is one instruction of 64 lanes; its base
// address comes from the lane that worked it out, four lanes a token.
#pragma once

#include <type_traits>

#include "core/format.h"
#include "core/gpu_args.h"
#include "hip/isa.h"

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

using namespace gpu;

constexpr int kRows = 16;  // of a wave

// Which row four lanes see to, and the first of a row's lanes. 16 lanes have rows that are four apart: stores of 16 bytes a
// lane then meet no bank twice.
constexpr int row_of_lane(int lane) { return 4 * (lane >> 2 & 3) + (lane >> 4); }
constexpr int lane_of_row(int row) { return 16 * (row & 3) + 4 * (row >> 2); }

// What an invalid token reads: a key of zeros with scales of zero. Its score is masked, its value counts 0 times 0.
__attribute__((device)) const u8 kZeroRecord[2048] = {};

template <int Dim>
struct TileShape {
  static constexpr int kTokens = 64;
  // 16 bytes of padding: then 16 rows at the same column, and the rows of a transposing read, lie in different banks.
  static constexpr int kRowBytes = 2 * Dim + 16;
};

// The token of this lane.
struct Token {
  const u8* record;
  const u8* scales;
  bool valid;
};

template <typename Format>
inline Token locate(const SourceArgs& source, int index, bool listed) {
  const bool valid = listed && is_valid(source, index);
  const Row row = gpu::locate<Format>(source, static_cast<u32>(index));
  const u8* record = valid ? row.record : kZeroRecord;
  if constexpr (Format::kScaling == Scaling::kInlineFloat) return {record, record + Format::kNope, valid};
  return {record, valid ? row.scales : kZeroRecord, valid};
}

// Where a wave writes: its 16 rows of the tile, and 16 x 8 floats for scales that only it uses.
template <int RowBytes>
struct Rows {
  static constexpr int kRowBytes = RowBytes;
  Lds<u8>* tile;
  Lds<float>* scales;
};

// Calls body(i, pointer of row i) for all rows. A scalar register that a lane was read into may not be an address for the
// next five instructions, so the pointers are fetched eight at a time, ahead of their use.
template <typename Body>
inline void for_each_row(const u8* pointer, Body&& body) {
  constexpr int kBatch = 8;
#pragma unroll
  for (int first = 0; first < kRows; first += kBatch) {
    const Global<u8>* rows[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) rows[i] = pointer_of_lane(pointer, lane_of_row(first + i));
    __builtin_amdgcn_sched_barrier(0);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) body(first + i, rows[i]);
  }
}

// ---- 16-bit formats --------------------------------------------------------------------------------------------------

// Ahead: start() may write the rows already, since they are not those of the tile before.
template <typename Format, bool Ahead>
struct Gather16 {
  static constexpr int kWide = 1024;                           // bytes that 64 lanes move at once
  static constexpr bool kTail = Format::kRecordBytes > kWide;  // 576 dims: the last 128 bytes, 4 lanes a row
  struct InFlight {
    Token token;
    u32x4 tail[2];
  };

  template <typename R>
  static void start(InFlight& f, const Token& token, const R& rows, bool direct) {
    f.token = token;
    if constexpr (Ahead) load(f, rows, direct);
  }
  template <typename R>
  static void finish(InFlight& f, const R& rows, bool direct, bool) {
    if constexpr (!Ahead) load(f, rows, direct);
    wait_loads();
    if constexpr (kTail) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<Lds<u32x4>*>(rows.tile + row_of_lane(lane_id()) * R::kRowBytes + tail_at(half)) =
            f.tail[half];
      }
    }
  }

 private:
  static int tail_at(int half) { return kWide + 64 * half + 16 * (lane_id() & 3); }

  template <typename R>
  static void load(InFlight& f, const R& rows, bool direct) {
    const int lane = lane_id();
    if (direct) {
      const u32 offset = lane_offset(16 * static_cast<u32>(lane));
      for_each_row(f.token.record, [&](int i, const Global<u8>* row) {
        if constexpr (Ahead) {
          copy_to_lds_unwatched(row, offset, rows.tile, i * R::kRowBytes);
        } else {
          copy_to_lds(row, offset, rows.tile + i * R::kRowBytes);
        }
      });
    } else {
#pragma unroll 4
      for (int i = 0; i < kRows; ++i) {
        const auto value = load_any<u32x4>(
            reinterpret_cast<const u8*>(readlane(reinterpret_cast<u64>(f.token.record), lane_of_row(i))) + 16 * lane);
        *reinterpret_cast<Lds<u32x4>*>(rows.tile + i * R::kRowBytes + 16 * lane) = value;
      }
    }
    if constexpr (kTail) {
#pragma unroll
      for (int half = 0; half < 2; ++half) f.tail[half] = load_any<u32x4>(f.token.record + tail_at(half));
    }
  }
};

// ---- fp8 formats -----------------------------------------------------------------------------------------------------

// Eight codes of the lane -> eight bf16 at the lane's place of the row.
template <typename Format, bool Ahead>
inline u32x4 dequantise(u32x2 codes, float scale) {
  u32x4 r;
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {  // exact: 4 significant bits times a power of two
    r[0] = fp8_to_bf16<false>(codes[0], scale);
    r[1] = fp8_to_bf16<true>(codes[0], scale);
    r[2] = fp8_to_bf16<false>(codes[1], scale);
    r[3] = fp8_to_bf16<true>(codes[1], scale);
  } else if constexpr (Format::kFlavour == Fp8::kE4m3fn) {  // code * scale in float, rounded once
    f32x2 x[4] = {fp8_to_float<false>(codes[0]), fp8_to_float<true>(codes[0]), fp8_to_float<false>(codes[1]),
                  fp8_to_float<true>(codes[1])};
    // Step by step where registers are scarce: else the compiler lets each conversion wait for the one before.
    if constexpr (Ahead) __builtin_amdgcn_sched_barrier(0);
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] *= scale;
    if constexpr (Ahead) __builtin_amdgcn_sched_barrier(0);
#pragma unroll
    for (int k = 0; k < 4; ++k) r[k] = bits(to_bf16(x[k]));
  } else {
    // No instruction reads fnuz on gfx950. As fp16, sign and seven bits in place are the value times 2^-7, subnormals too;
    // `scale` brings the 2^7. The caller mends the one NaN code. (Read as OCP, a code is twice its value, but for the largest,
    // +-240: NaN there, and in every group whose scale follows from its largest magnitude.)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const u32 four = codes[k];  // a copy: clang casts the bits of a vector's first element, whichever is named
      const auto odd = __builtin_bit_cast(i16x2, four), even = __builtin_bit_cast(i16x2, four << 8);
      constexpr u32 kMask = 0xbf80bf80;
      const u32 high = __builtin_bit_cast(u32, odd >> 1) & kMask, low = __builtin_bit_cast(u32, even >> 1) & kMask;
      r[2 * k] = bits(to_bf16(f32x2{multiply_f16<false>(low, scale), multiply_f16<false>(high, scale)}));
      r[2 * k + 1] = bits(to_bf16(f32x2{multiply_f16<true>(low, scale), multiply_f16<true>(high, scale)}));
    }
  }
  return r;
}

// The eight scales of the lane's token that it passes on (two of uniform and tail formats, one of the inline format).
template <typename Format, bool Ahead>
struct GatherFp8 {
  static constexpr bool kFnuz = Format::kFlavour == Fp8::kE4m3fnuz;
  struct InFlight {
    u32x2 codes[kRows];
    u32x2 scales;
    u32x4 rope[2];
  };

  template <typename R>
  static void start(InFlight& f, const Token& token, const R&, bool) {
    const int lane = Format::kRope > 0 || kFnuz ? recomputed_lane_id() : lane_id(), quarter = lane & 3;
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      const u32 pair = load_any<u16>(token.scales + 2 * quarter);
      f.scales = {pair << 23, pair >> 8 << 23};  // exponents of floats; what the shift leaves of bit 8 is the sign
    } else if constexpr (Format::kScaling == Scaling::kSideFloat) {
      f.scales = load_any<u32x2>(token.scales + 8 * quarter);
    } else {
      f.scales = {load_any<u32>(token.scales + 4 * quarter), 0};
    }
    if constexpr (Format::kRope > 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f.rope[half] = load_any<u32x4>(token.record + Format::kRopeOffset + 64 * half + 16 * quarter);
      }
    }
    const u32 offset = lane_offset(8 * static_cast<u32>(lane));
    for_each_row(token.record,
                 [&](int i, const Global<u8>* row) { __builtin_memcpy(&f.codes[i], row + offset, sizeof f.codes[i]); });
  }

  template <typename R>
  static void finish(const InFlight& f, const R& rows, bool, bool valid) {
    const int lane = Format::kRope > 0 || kFnuz ? recomputed_lane_id() : lane_id(), token = row_of_lane(lane),
              quarter = lane & 3;
    wait_loads();       // once, instead of row by row: they are a tile old
    if (!any(valid)) {  // the end of a list: nothing to convert
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        *reinterpret_cast<Lds<u32x4>*>(rows.tile + i * R::kRowBytes + 16 * lane) = u32x4{};
      if constexpr (Format::kDim > 512) store_rope(rows, token, quarter, {});
      return;
    }
    constexpr int kScalesALane = Format::kScaling == Scaling::kInlineFloat ? 1 : 2;
#pragma unroll
    for (int i = 0; i < kScalesALane; ++i) {
      const u32 scale = f.scales[i];  // a copy: clang casts the bits of a vector's first element, whichever is named
      rows.scales[kRows * (kScalesALane * quarter + i) + token] =
          __builtin_bit_cast(float, scale) * (kFnuz ? 128.0f : 1.0f);
    }
    // 512 codes a row, also where only 448 are codes: the rest is overwritten by the 16-bit part below.
    const auto* scales = reinterpret_cast<const Lds<f32x4>*>(rows.scales + kRows * (8 * lane / Format::kScaleTile));
    [[maybe_unused]] i16x2 least = {0, 0};
#pragma unroll
    for (int first = 0; first < kRows; first += 4) {
      const f32x4 scale = scales[first / 4];
#pragma unroll
      for (int i = first; i < first + 4; ++i) {
        *reinterpret_cast<Lds<u32x4>*>(rows.tile + i * R::kRowBytes + 16 * lane) =
            dequantise<Format, Ahead>(f.codes[i], scale[i - first]);
        if constexpr (kFnuz) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const u32 four = f.codes[i][k];
            least = __builtin_elementwise_min(least, __builtin_bit_cast(i16x2, four));
            least = __builtin_elementwise_min(least, __builtin_bit_cast(i16x2, four << 8));
          }
        }
      }
    }
    if constexpr (kFnuz) {  // the upper code of a least pair is 0x80 if there is one
      const auto pairs = __builtin_bit_cast(u32, least);
      const auto upper = static_cast<int>(pairs), lower = static_cast<int>(pairs << 16);
      if (any((upper < lower ? upper : lower) >> 24 == -0x80)) mend_nan(f, rows);
    }
    if constexpr (Format::kRope > 0) store_rope(rows, token, quarter, f.rope);
  }

 private:
  template <typename R>
  static void store_rope(const R& rows, int token, int quarter, const u32x4 (&rope)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<Lds<u32x4>*>(rows.tile + token * R::kRowBytes + 2 * Format::kNope + 64 * half + 16 * quarter) =
          rope[half];
    }
  }

  template <typename R>
  static void mend_nan(const InFlight& f, const R& rows) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        if ((f.codes[i][d / 4] >> (d % 4 * 8) & 0xff) == 0x80) {
          *reinterpret_cast<Lds<u16>*>(rows.tile + i * R::kRowBytes + 16 * lane_id() + 2 * d) = 0x7fc0;
        }
      }
    }
  }
};

template <typename Format, bool Ahead>
using Gather = std::conditional_t<(Format::kNope > 0), GatherFp8<Format, Ahead>, Gather16<Format, Ahead>>;

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end
