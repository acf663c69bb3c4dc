// What a GPU kernel is told: the Problem, made plain once per run. The attention kernels of src/cuda and src/hip take an Args
// by value.
//
// The one idea: what the host can decide, it decides here (widths in 32 bits, page division as a multiplication, where
// partial results go), and what only the device knows (list lengths) is asked for through part_of(), which is
// core/problem.h's row_range() and split_range() in 32-bit arithmetic. Plain data and constexpr functions, compiled by the
// host's and the devices' compilers; tests/core/gpu_args_test.cpp holds them against core/problem.h.
#pragma once

#include <bit>
#include <cstdint>

#include "core/format.h"

namespace pasa {
struct Problem;
struct Plan;
struct Reduce;
}  // namespace pasa

namespace pasa::gpu {

// Unsigned division by a number known in advance, exact for every dividend below 2^31: with s = ceil(log2 d) and
// m = floor(2^(31+s) / d) + 1, n * m / 2^(31+s) exceeds n / d by less than 1 / d. The dividend is doubled so that the
// product's high word is the quotient before the shift.
struct Divider {
  std::uint32_t multiplier = 0x80000001u, shift = 0;  // by 1
};

constexpr Divider make_divider(std::uint32_t divisor) {
  const auto shift = static_cast<std::uint32_t>(std::bit_width(divisor - 1));
  return {static_cast<std::uint32_t>((std::uint64_t{1} << (31 + shift)) / divisor + 1), shift};
}

constexpr std::uint32_t divide(std::uint32_t dividend, Divider by) {
  return static_cast<std::uint32_t>((std::uint64_t{dividend << 1} * by.multiplier) >> 32) >> by.shift;
}

struct SourceArgs {
  const std::uint8_t* kv;  // page b starts at kv + b * page_stride
  std::int64_t page_stride;
  const std::uint8_t* scales;  // uniform fp8: float [slots, D/64], scale_stride bytes apart
  std::int64_t scale_stride;
  const std::uint8_t* pe;  // formats of two pieces: the last 64 components, pe_stride bytes apart
  std::int64_t pe_stride;
  const std::int32_t* indices;
  const std::int32_t* indptr;   // ragged: [lists + 1]; else nullptr
  const std::int32_t* lengths;  // rectangular: [lists] or nullptr
  std::int32_t queries;         // rows that share a list
  Divider by_queries;
  std::int64_t index_stride;  // rectangular: entries between two rows
  std::int32_t entries;       // what clamps a row: nnz (ragged) or width
  std::uint32_t slots;        // valid indices are [0, slots)
  std::uint32_t page_tokens;
  Divider page;  // by page_tokens
  pasa_kv_format format;
  std::int32_t alignment;  // bytes, 1..16: what kv, pe, their strides and the record size are all multiples of
};

// Per row, part and head, unnormalised and without the sink: acc [T, S, H, 512], m and l [T, S, H] as in core/softmax.h.
struct Partials {
  float *acc, *m, *l;
};

struct Args {
  const std::uint16_t* q;    // [T, H, D], bf16 or f16
  std::int64_t q_stride[2];  // elements between tokens, heads
  std::int64_t tokens;
  std::int32_t heads, dim;
  std::int32_t source_count;
  SourceArgs source[2];
  float scale_log2;   // kv_scale * softmax_scale * log2 e, applied to the f32 scores
  float value_scale;  // kv_scale, applied to acc and out
  const float* sink;  // [H] or nullptr
  std::int32_t splits;
  Divider by_splits;
  bool nan_to_zero, f16;  // f16: q and out
  bool partial;           // splits > 1 (or asked for): write `partials`, not out
  Partials partials;
  std::uint16_t* out;  // [T, H, 512]
  std::int64_t out_stride[2];
  float* lse;  // [T, H] or nullptr
  std::int64_t lse_stride[2];
  float* max_logits;  // [T, H] or nullptr
  std::int64_t max_logits_stride[2];
};

// The entries of one list that one part of a row works on.
struct Part {
  const std::int32_t* indices;
  std::int32_t count;
};

constexpr std::int32_t clamp(std::int32_t x, std::int32_t low, std::int32_t high) {
  return x < low ? low : x > high ? high : x;
}

// What memory says of a list: ragged, the entries that it lies between; rectangular, 0 and its length.
struct Bounds {
  std::int32_t begin, end;
  constexpr bool operator==(const Bounds&) const = default;
};

constexpr Bounds bounds_of(const SourceArgs& source, std::int64_t token) {
  const std::int64_t list = divide(static_cast<std::uint32_t>(token), source.by_queries);
  if (source.indptr) return {source.indptr[list], source.indptr[list + 1]};
  return {0, source.lengths ? source.lengths[list] : source.entries};
}

// The same in two steps, for who reads memory by `load`: where it is said; nullptr where it is not, and stands for 0 and all entries.
struct BoundsPlace {
  const std::int32_t *begin, *end;
};

constexpr BoundsPlace bounds_place(const SourceArgs& source, std::int64_t token) {
  const std::int64_t list = divide(static_cast<std::uint32_t>(token), source.by_queries);
  if (source.indptr) return {source.indptr + list, source.indptr + list + 1};
  return {nullptr, source.lengths ? source.lengths + list : nullptr};
}

template <typename Load>
constexpr Bounds bounds_at(const SourceArgs& source, BoundsPlace place, Load load) {
  return {place.begin ? load(place.begin) : 0, place.end ? load(place.end) : source.entries};
}

// A row's whole list, as far as the row sees it.
constexpr Part row_of(const SourceArgs& source, std::int64_t token, Bounds bounds) {
  const std::int64_t list = divide(static_cast<std::uint32_t>(token), source.by_queries);
  const auto unseen = static_cast<std::int32_t>((list + 1) * source.queries - 1 - token);
  const std::int32_t begin = clamp(bounds.begin, 0, source.entries);
  const std::int32_t count = clamp(bounds.end, begin, source.entries) - begin;
  return {source.indices + (source.indptr ? begin : list * source.index_stride), clamp(count - unseen, 0, count)};
}
constexpr Part row_of(const SourceArgs& source, std::int64_t token) {
  return row_of(source, token, bounds_of(source, token));
}

// Entries [i*c, (i+1)*c) of a row's list, c = ceil(count / splits); parts beyond the end are empty.
constexpr Part part_of(Part row, int split, int splits, Divider by_splits) {
  if (splits == 1) return row;
  const auto whole = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(row.count), by_splits));
  const std::int64_t chunk = whole + (whole * splits < row.count ? 1 : 0);
  const std::int64_t begin = chunk * split < row.count ? chunk * split : row.count;
  const std::int64_t end = begin + chunk < row.count ? begin + chunk : row.count;
  return {row.indices + begin, static_cast<std::int32_t>(end - begin)};
}

constexpr Part part_of(const Args& args, int source, std::int64_t token, int split) {
  return part_of(row_of(args.source[source], token), split, args.splits, args.by_splits);
}

constexpr bool is_valid(const SourceArgs& source, std::int32_t slot) {
  return static_cast<std::uint32_t>(slot) < source.slots;  // a negative slot is a large one
}

// Where the bytes of a valid slot are.
template <typename Format>
constexpr Row locate(const SourceArgs& source, std::uint32_t slot) {
  const std::uint32_t page = divide(slot, source.page), place = slot - page * source.page_tokens;
  const std::uint8_t* base = source.kv + page * source.page_stride;
  Row row{base + std::uint64_t{place} * Format::kRecordBytes};
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    row.scales =
        base + std::uint64_t{source.page_tokens} * Format::kRecordBytes + std::uint64_t{place} * Format::kTailBytes;
  }
  if constexpr (Format::kScaling == Scaling::kSideFloat) row.scales = source.scales + slot * source.scale_stride;
  if constexpr (Format::kTwoPieces) row.pe = source.pe + slot * source.pe_stride;
  return row;
}

// Element offset of (token, head) in a tensor with these two strides.
constexpr std::int64_t at(const std::int64_t (&stride)[2], std::int64_t token, int head) {
  return token * stride[0] + head * stride[1];
}

// Index of (token, split, head) in m and l; times 512 in acc.
constexpr std::int64_t partial_at(const Args& args, std::int64_t token, int split, int head) {
  return (token * args.splits + split) * args.heads + head;
}

// Merging partials of any number of splits into out, lse and max_logits, with the sink folded in once.
struct MergeArgs {
  Partials partials;  // [T, S, H, ...]
  std::int64_t tokens;
  std::int32_t heads, splits;
  const float* sink;
  void* out;
  pasa_dtype out_dtype;  // bf16, f16 or f32
  std::int64_t out_stride[2];
  float* lse;
  std::int64_t lse_stride[2];
  float* max_logits;
  std::int64_t max_logits_stride[2];
};

// Host only. Bytes of workspace for the partials of a plan with this many splits; 0 where nothing is split or, with
// skip_reduce, the caller brings the room.
std::size_t partials_bytes(const Problem& problem, int splits);

// Host only. Partials go to the caller's tensors if the plan is partial, else to the workspace.
Args make_args(const Problem& problem, const Plan& plan, void* workspace);
MergeArgs make_merge_args(const Args& args);
MergeArgs make_merge_args(const Reduce& problem);

}  // namespace pasa::gpu
