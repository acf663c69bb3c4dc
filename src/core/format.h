// KV-cache formats: one struct each, every number derived from a few, so that a byte offset stands nowhere else.
//
// A key is kNope quantised components followed by kRope 16-bit ones (a 16-bit format has only the latter); a pool is pages
// of page_tokens slots, page_stride bytes apart (a flat pool has page_tokens = 1). Two functions tell where a slot's bytes
// and scales are, `element` what they mean. docs/formats.md shows the same with worked examples.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "core/number.h"
#include "pasa/pasa.h"

namespace pasa {

constexpr int kValueDim = 512;  // the value is the first 512 components of the key, in every format
constexpr int kMaxDim = 576;
constexpr int kPeDim = kMaxDim - kValueDim;  // the RoPE components of a key of 576: only the score sees them

enum class Scaling : std::uint8_t {
  kNone,        // every tile's scale is 1
  kSideFloat,   // float per kScaleTile dims in a separate tensor [slots, dims / kScaleTile]
  kTailUe8m0,   // UE8M0 bytes in the page's tail, kScaleBytes per slot
  kInlineFloat  // float per kScaleTile dims inside the record, behind the codes
};

enum class Word16 : std::uint8_t { kBf16, kF16 };

// The bytes of one slot: its record; for kSideFloat and kTailUe8m0 its scales; for kTwoPieces the last 64 components, which
// need not follow the others.
struct Row {
  const std::uint8_t* record;
  const std::uint8_t* scales;
  const std::uint8_t* pe;
};

// The common part: Derived only has constants.
template <int Nope, int Rope, Scaling S, int ScaleTile, Fp8 F = Fp8::kE4m3fn, Word16 W = Word16::kBf16>
struct Layout {
  static constexpr int kNope = Nope, kRope = Rope, kDim = Nope + Rope;
  static constexpr Scaling kScaling = S;
  static constexpr int kScaleTile = ScaleTile;  // dims that share a scale
  static constexpr int kScales = ScaleTile ? Nope / ScaleTile : 0;
  static constexpr Fp8 kFlavour = F;
  static constexpr Word16 kWord = W;
  static constexpr int kInlineScaleBytes = S == Scaling::kInlineFloat ? 4 * kScales : 0;
  static constexpr int kRopeOffset = Nope + kInlineScaleBytes;
  static constexpr int kRecordBytes = kRopeOffset + 2 * Rope;
  // 7 exponents and a pad byte that is written as 0 and never read
  static constexpr int kTailBytes = S == Scaling::kTailUe8m0 ? kScales + 1 : 0;
  static constexpr int kTokenBytes = kRecordBytes + kTailBytes;  // bytes a page holds per token
  static constexpr int kSideScaleBytes = S == Scaling::kSideFloat ? 4 * kScales : 0;
  static constexpr int kBytesRead = kRecordBytes + kTailBytes + kSideScaleBytes;  // by one query that selects the token
  // Flat pools of 576 may keep the last 64 components in a tensor of their own.
  static constexpr bool kTwoPieces = S == Scaling::kNone && kDim == kMaxDim;
  static constexpr int kPeBytes = kTwoPieces ? kRecordBytes / kMaxDim * kPeDim : 0;
  static constexpr int kFirstBytes = kRecordBytes - kPeBytes;  // of the record without them

  static constexpr std::int64_t record_offset(std::int64_t page_stride, std::int64_t page_tokens, std::int64_t slot) {
    return slot / page_tokens * page_stride + slot % page_tokens * kRecordBytes;
  }
  // Inside the page, behind all records: only kTailUe8m0.
  static constexpr std::int64_t tail_offset(std::int64_t page_stride, std::int64_t page_tokens, std::int64_t slot) {
    return slot / page_tokens * page_stride + page_tokens * kRecordBytes + slot % page_tokens * kTailBytes;
  }

  // The code or the word of component d.
  [[gnu::always_inline]] static constexpr const std::uint8_t* component(Row row, int d) {
    const int offset = d < Nope ? d : kRopeOffset + 2 * (d - Nope);
    return kTwoPieces && d >= kValueDim ? row.pe + (offset - kFirstBytes) : row.record + offset;
  }

  // The scale of `tile`, exactly as stored.
  static float scale(Row row, int tile) {
    if constexpr (S == Scaling::kTailUe8m0) return ue8m0_to_float(row.scales[tile]);
    float value = 1.0f;
    if constexpr (S == Scaling::kSideFloat) std::memcpy(&value, row.scales + 4 * tile, 4);
    if constexpr (S == Scaling::kInlineFloat) std::memcpy(&value, row.record + Nope + 4 * tile, 4);
    return value;
  }

  // Component d of the key, dequantised in float (code * scale rounds once if the scale is not a power of two).
  static float element(Row row, int d) {
    if (d < Nope) {
      if constexpr (Nope > 0) return fp8_to_float(F, *component(row, d)) * scale(row, d / ScaleTile);
    }
    std::uint16_t word;
    std::memcpy(&word, component(row, d), 2);
    return W == Word16::kBf16 ? bf16_to_float(word) : f16_to_float(word);
  }
};

template <int Dim>
struct Bf16 : Layout<0, Dim, Scaling::kNone, 0> {};
template <int Dim>
struct F16 : Layout<0, Dim, Scaling::kNone, 0, Fp8::kE4m3fn, Word16::kF16> {};
template <Fp8 F>
struct UniformFp8 : Layout<512, 0, Scaling::kSideFloat, 64, F> {};
template <Fp8 F>
struct DenseFp8 : Layout<576, 0, Scaling::kNone, 64, F> {};  // one scale for the whole pool: pasa_problem's kv_scale
struct Fp8DsMla : Layout<448, 64, Scaling::kTailUe8m0, 64> {};
struct Fp8V32 : Layout<512, 64, Scaling::kInlineFloat, 128> {};
using PackedBf16 = Bf16<512>;  // the same bytes as a flat pool; only the pages differ

static_assert(Fp8DsMla::kTokenBytes == 584 && Fp8V32::kTokenBytes == 656 &&
              UniformFp8<Fp8::kE4m3fn>::kBytesRead == 544);

// What the checks and the planner need to know about a format at run time.
struct FormatInfo {
  pasa_kv_format format;
  std::string_view name;  // as in case files
  bool paged;             // rank 3 [blocks, page, ...] instead of [slots, D]
  bool bytes;             // the tensor's element is a byte (fp8 code or raw record)
  bool side_scales;       // with D = 512
  int dim;                // 0: 512 or 576, whatever q has
  int alignment;          // bytes, of the base address and of page and row strides

  constexpr bool has_side_scales(std::int64_t key_dim) const { return side_scales && key_dim == kValueDim; }
};

constexpr FormatInfo kFormats[] = {
    {PASA_KV_BF16, "bf16", false, false, false, 0, 2},
    {PASA_KV_F16, "f16", false, false, false, 0, 2},
    {PASA_KV_FP8_E4M3FN, "fp8_e4m3fn", false, true, true, 0, 1},
    {PASA_KV_FP8_E4M3FNUZ, "fp8_e4m3fnuz", false, true, true, 0, 1},
    {PASA_KV_FP8_DS_MLA, "fp8_ds_mla", true, true, false, 512, 8},
    {PASA_KV_PACKED_BF16, "packed_bf16", true, false, false, 512, 2},
    {PASA_KV_FP8_V32, "fp8_v32", true, true, false, 576, 4},
};

// nullptr for a value that is no format.
constexpr const FormatInfo* find_format(pasa_kv_format format) {
  for (const FormatInfo& info : kFormats) {
    if (info.format == format) return &info;
  }
  return nullptr;
}

// The one switch from a value to a type: calls body.template operator()<Format>().
template <typename Body>
decltype(auto) with_format(pasa_kv_format format, int dim, Body&& body) {
  switch (format) {
    case PASA_KV_BF16:
      return dim == 512 ? body.template operator()<Bf16<512>>() : body.template operator()<Bf16<576>>();
    case PASA_KV_F16:
      return dim == 512 ? body.template operator()<F16<512>>() : body.template operator()<F16<576>>();
    case PASA_KV_FP8_E4M3FN:
      return dim == 512 ? body.template operator()<UniformFp8<Fp8::kE4m3fn>>()
                        : body.template operator()<DenseFp8<Fp8::kE4m3fn>>();
    case PASA_KV_FP8_E4M3FNUZ:
      return dim == 512 ? body.template operator()<UniformFp8<Fp8::kE4m3fnuz>>()
                        : body.template operator()<DenseFp8<Fp8::kE4m3fnuz>>();
    case PASA_KV_FP8_DS_MLA:
      return body.template operator()<Fp8DsMla>();
    case PASA_KV_PACKED_BF16:
      return body.template operator()<PackedBf16>();
    case PASA_KV_FP8_V32:
      return body.template operator()<Fp8V32>();
    case PASA_KV_NONE:
      break;
  }
  throw Error(PASA_ERROR_INTERNAL, "no such KV format");
}

}  // namespace pasa
