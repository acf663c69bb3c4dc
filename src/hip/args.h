// What the HIP kernels are told: the Problem made plain, once per run. Compiled by the host and the device compiler, so it
// is plain data and constexpr functions; the lists are cut by the rule of core/problem.h, in 32 bits.
#pragma once

#include <bit>
#include <cstdint>

namespace pasa::hip {

// Unsigned division by a number known in advance, exact for dividends below 2^31: the multiplier is
// floor(2^(31 + shift) / d) + 1 with shift = ceil(log2 d); the dividend is doubled so that the quotient, before the shift,
// is the product's high word.
struct Divider {
  std::uint32_t multiplier, shift;
};
constexpr Divider make_divider(std::uint32_t divisor) {
  const auto shift = static_cast<std::uint32_t>(std::bit_width(divisor - 1));
  return {static_cast<std::uint32_t>((std::uint64_t{1} << (31 + shift)) / divisor + 1), shift};
}
constexpr std::uint32_t divide(std::uint32_t dividend, Divider by) {
  return static_cast<std::uint32_t>((std::uint64_t{dividend << 1} * by.multiplier) >> 32) >> by.shift;
}

struct SourceArgs {
  const std::uint8_t* kv;      // page b starts at kv + b * page_stride
  std::int64_t page_stride;    // bytes
  const std::uint8_t* scales;  // uniform fp8: float [slots, 8], scale_stride bytes apart
  std::int64_t scale_stride;
  const std::int32_t* indices;
  const std::int32_t* indptr;   // ragged: [T+1]; else nullptr
  const std::int32_t* lengths;  // rectangular: [T] or nullptr
  std::int64_t index_stride;    // rectangular: entries between two rows
  std::int32_t entries;         // what clamps a row: nnz (ragged) or width
  std::uint32_t slots;          // valid indices are [0, slots)
  std::uint32_t page_tokens;
  Divider page;          // by page_tokens
  std::int32_t format;   // pasa_kv_format; looked at by the kernels for mixed formats only
  std::int32_t aligned;  // every record starts at a multiple of 16 bytes: direct loads into LDS are possible
};

struct Args {
  const std::uint16_t* q;    // [T, H, D] bf16
  std::int64_t q_stride[2];  // elements between tokens, heads
  std::int32_t heads, source_count;
  SourceArgs source[2];
  float scale_log2;  // softmax_scale * log2 e
  std::int32_t nan_to_zero;
  std::int32_t splits;
  Divider by_splits;
  std::int32_t partial;  // write acc, m, l instead of out
  float *acc, *m, *l;    // [T, S, H, 512], [T, S, H], [T, S, H]
  const float* sink;     // [H] or nullptr
  std::uint16_t* out;    // [T, H, 512] bf16
  std::int64_t out_stride[2];
  float* lse;  // [T, H] or nullptr
  std::int64_t lse_stride[2];
  float* max_logits;  // likewise
  std::int64_t max_logits_stride[2];
};

// Merging partials, see reduce.hip.
struct ReduceArgs {
  const float *acc, *m, *l;
  std::int32_t heads, splits;
  const float* sink;
  void* out;
  std::int32_t out_dtype;  // pasa_dtype: BF16, F16 or F32
  std::int64_t out_stride[2];
  float* lse;
  std::int64_t lse_stride[2];
  float* max_logits;
  std::int64_t max_logits_stride[2];
};

// The entries of one list that one split of a row works on.
struct Part {
  const std::int32_t* indices;
  std::int32_t count;
};

constexpr Part part_of(const SourceArgs& source, std::int64_t token, std::int32_t split, std::int32_t splits,
                       Divider by_splits) {
  const auto clamp = [](std::int32_t x, std::int32_t low, std::int32_t high) {
    return x < low ? low : x > high ? high : x;
  };
  Part row{};
  if (source.indptr) {
    const std::int32_t begin = clamp(source.indptr[token], 0, source.entries);
    row = {source.indices + begin, clamp(source.indptr[token + 1], begin, source.entries) - begin};
  } else {
    const std::int32_t count = source.lengths ? clamp(source.lengths[token], 0, source.entries) : source.entries;
    row = {source.indices + token * source.index_stride, count};
  }
  if (splits == 1) return row;
  const auto whole = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(row.count), by_splits));
  const std::int64_t chunk = whole + (whole * splits < row.count ? 1 : 0);
  const std::int64_t begin = chunk * split < row.count ? chunk * split : row.count;
  const std::int64_t end = begin + chunk < row.count ? begin + chunk : row.count;
  return {row.indices + begin, static_cast<std::int32_t>(end - begin)};
}

}  // namespace pasa::hip
