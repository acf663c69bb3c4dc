// Cache writing and reading after the checks: what a call is, where a slot's bytes are, and how numbers become bytes and
// back. The loops over tokens and dimensions are a device's own business (cpu.cpp, ops_cuda.cu); every formula is here, in
// core/quantize.h and in convert.h, and is compiled for both.
#pragma once

#include <cstdint>

#include "core/format.h"
#include "core/quantize.h"
#include "ops/convert.h"

namespace pasa::ops {

// A read-only integer tensor of either width.
struct Ints {
  const std::int32_t* narrow = nullptr;
  const std::int64_t* wide = nullptr;
  constexpr std::int64_t operator[](std::int64_t i) const { return wide ? wide[i] : narrow[i]; }
  constexpr bool given() const { return narrow || wide; }
};

struct Cache {
  pasa_kv_format format;
  int dim;
  std::uint8_t* kv;
  std::int64_t page_stride;  // bytes
  std::uint32_t block_size;
  std::int64_t slots;
  std::uint8_t* scales;       // uniform fp8: float [slots, D/64]
  std::int64_t scale_stride;  // bytes
  int alignment;              // of every record: 1..16 bytes
};

// The bytes of one slot. `scales` points at kScales floats, or at UE8M0 bytes and their pad byte.
struct Spot {
  std::uint8_t* record;
  std::uint8_t* scales;
};

template <typename Format>
constexpr Spot locate(const Cache& cache, std::uint32_t page, std::uint32_t place) {
  std::uint8_t* base = cache.kv + page * cache.page_stride;
  Spot spot{base + std::int64_t{place} * Format::kRecordBytes, nullptr};
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    spot.scales =
        base + std::int64_t{cache.block_size} * Format::kRecordBytes + std::int64_t{place} * Format::kTailBytes;
  }
  if constexpr (Format::kScaling == Scaling::kInlineFloat) spot.scales = spot.record + Format::kNope;
  if constexpr (Format::kScaling == Scaling::kSideFloat) spot.scales = cache.scales + page * cache.scale_stride;
  return spot;
}

template <typename Format>
constexpr Spot locate(const Cache& cache, std::int64_t slot) {
  const auto index = static_cast<std::uint32_t>(slot);  // slots fit 31 bits
  return locate<Format>(cache, index / cache.block_size, index % cache.block_size);
}

// ---- writing

struct CacheWrite {
  Cache cache;
  const std::uint16_t* k;  // [n, D]
  std::int64_t k_stride;   // elements
  int k_alignment;         // of every row: 2..16 bytes
  Ints slot_mapping;       // [tokens]
  std::int64_t tokens;
  V32Scale v32_scale;
};

// The scale of a group of codes in the two forms a writer needs: what is stored, and what makes a code of a number.
struct GroupScale {
  float stored;  // a float, or the exponent byte
  float factor;  // rescale() divides by it, or multiplies where it is a power of two, which is exact
};

// What raise_amax() of core/quantize.h does, on the bits of the magnitudes: they are ordered as the numbers are, and integers
// need no branch. An amax is 0 at first and may be infinity until amax_of() reads it.
constexpr std::uint32_t raise_amax_bits(std::uint32_t amax, float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
  const std::uint32_t magnitude = bits & (bits > 0x7f800000u ? 0u : ~0u);  // NaN does not count
  return magnitude > amax ? magnitude : amax;
}

template <typename Format>
constexpr float amax_of(std::uint32_t bits) {
  constexpr float largest = Format::kScaling == Scaling::kTailUe8m0 ? kMaxBf16 : kMaxFloat;
  return bits == 0x7f800000u ? largest : std::bit_cast<float>(bits);
}

template <typename Format>
constexpr GroupScale group_scale(std::uint32_t amax_bits, V32Scale v32) {
  const float amax = amax_of<Format>(amax_bits);
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    const int exponent = ds_mla_exponent(amax);
    return {static_cast<float>(127 + exponent), ue8m0_to_float(static_cast<std::uint8_t>(127 - exponent))};
  } else {
    const float scale =
        Format::kScaling == Scaling::kInlineFloat ? v32_scale(v32, amax) : uniform_scale(Format::kFlavour, amax);
    return {scale, scale};
  }
}

// The number that a code is made of.
template <typename Format>
constexpr float rescale(float x, GroupScale scale) {
  return Format::kScaling == Scaling::kTailUe8m0 ? x * scale.factor : x / scale.factor;
}

template <typename Format>
constexpr std::uint8_t encode(float x, GroupScale scale) {
  return encode_fp8<Format::kFlavour>(rescale<Format>(x, scale));
}

template <typename Format>
constexpr void store_scale(Spot spot, int group, GroupScale scale) {
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    spot.scales[group] = static_cast<std::uint8_t>(scale.stored);
    if (group == 0) spot.scales[Format::kTailBytes - 1] = 0;
  } else {
    reinterpret_cast<float*>(spot.scales)[group] = scale.stored;
  }
}

// ---- reading

struct CacheGather {
  Cache cache;
  std::uint16_t* out;          // [n, D] or [R, max_tokens, D]
  std::int64_t out_stride[2];  // elements between requests, tokens; by slot list only [1]
  int out_alignment;           // of every row: 2..16 bytes
  Word16 word;                 // of out
  bool nan_to_zero;
  std::int64_t max_tokens;  // rows of out (a request's, if by sequence)
  Ints slots;               // by slot list
  std::int64_t requests;    // by sequence
  const std::int32_t *seq_lens, *gather_lens;
  const std::int32_t* block_table;
  std::int64_t table_stride, columns, offset;
};

// The tokens of one request: rows offset + i of its part of out, for i in [begin, end).
struct GatherRange {
  std::int64_t first;  // position of i = 0; may be negative
  std::int64_t begin, end;
};

constexpr GatherRange gather_range(const CacheGather& call, std::int64_t request) {
  const std::int64_t seq = call.seq_lens[request];
  const std::int64_t wanted = call.gather_lens ? call.gather_lens[request] : seq;
  const std::int64_t first = seq - wanted, room = call.max_tokens - call.offset;
  return {first, first < 0 ? -first : 0, wanted < room ? wanted : room};
}

// The page of a position, or -1.
constexpr std::int64_t page_of(const CacheGather& call, std::int64_t request, std::uint32_t position) {
  const std::uint32_t column = position / call.cache.block_size;
  if (column >= call.columns) return -1;
  const std::int64_t page = call.block_table[request * call.table_stride + column];
  return page >= 0 && page * call.cache.block_size < call.cache.slots ? page : -1;
}

template <typename Format>
constexpr float load_scale(Spot spot, int group) {
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) return ue8m0_to_float(spot.scales[group]);
  return reinterpret_cast<const float*>(spot.scales)[group];
}

// A quantised component as a 16-bit number.
template <typename Format, Word16 Out>
constexpr std::uint16_t dequantize(std::uint8_t code, float scale, bool nan_to_zero) {
  const float x = decode_fp8<Format::kFlavour>(code) * scale;
  const std::uint16_t nan = nan_to_zero ? 0 : encode_word<Out>(kNan);  // devices differ in the NaN that a product gives
  return is_nan(x) ? nan : encode_word<Out>(x);
}

// A component stored as a 16-bit number; the same type keeps its bits.
template <typename Format, Word16 Out>
constexpr std::uint16_t convert(std::uint16_t word, bool nan_to_zero) {
  constexpr unsigned infinity = Format::kWord == Word16::kBf16 ? 0x7f80 : 0x7c00;
  if (nan_to_zero && (word & 0x7fffu) > infinity) return 0;
  if constexpr (Format::kWord == Out) return word;
  return encode_word<Out>(decode_word<Format::kWord>(word));
}

}  // namespace pasa::ops
