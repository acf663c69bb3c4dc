// A checked, normalised problem: what every backend works on. check() in problem.cpp is the only way to make one, so
// kernels trust it: formats are known, strides legal, sizes addressable.
//
// Only list *contents* are unchecked, because they may live on a device: an index outside [0, slots) is skipped, an indptr
// is clamped to [0, nnz], a length to [0, width]. row_range() is that rule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/format.h"

namespace pasa {

constexpr int kMaxSplits = 256;

// The part of a source that a plan depends on; a plan serves every problem with an equal shape.
struct SourceShape {
  pasa_kv_format format = PASA_KV_NONE;
  std::int64_t page_tokens = 1;  // slots per page; 1 for a flat pool
  bool ragged = false;
  bool pe_apart = false;  // the last 64 of 576 components are in a tensor of their own
  bool operator==(const SourceShape&) const = default;
};

struct Shape {
  std::int64_t tokens = 0;      // T: query rows
  int heads = 0;                // H
  int dim = 0;                  // D: 512 or 576
  Word16 word = Word16::kBf16;  // of q and out
  int queries_per_list = 1;     // above 1: rows share lists, cut causally; see row_range()
  int source_count = 1;
  SourceShape source[2];
  pasa_device_type device = PASA_CPU;
  int device_index = 0;
  int splits = 0;  // asked for; 0 = choose
  int block_h = 0;
  bool nan_to_zero = false, skip_reduce = false;
  int threads = 0;
  bool operator==(const Shape&) const = default;
};

struct Source {
  const std::uint8_t* kv = nullptr;      // page b starts at kv + b * page_stride
  std::int64_t page_stride = 0;          // bytes
  std::int64_t slots = 0;                // valid indices are [0, slots)
  const std::uint8_t* scales = nullptr;  // uniform fp8: float [slots, D/64]
  std::int64_t scale_stride = 0;         // bytes between the scales of two slots
  const std::uint8_t* pe = nullptr;      // formats of two pieces: where the last 64 components of slot 0 are
  std::int64_t pe_stride = 0;            // bytes between those of two slots
  const std::int32_t* indices = nullptr;
  const std::int32_t* indptr = nullptr;   // ragged: [lists + 1]; else nullptr
  const std::int32_t* lengths = nullptr;  // rectangular: [lists] or nullptr
  int queries_per_list = 1;               // there are T / queries_per_list lists
  std::int64_t nnz = 0;                   // ragged: entries of the index buffer
  std::int64_t width = 0;                 // rectangular: entries per row
  std::int64_t index_stride = 0;          // rectangular: entries between two rows
};

struct Problem : Shape {
  const std::uint16_t* q = nullptr;     // [T, H, D]
  std::int64_t q_stride[2] = {0, 0};    // elements between tokens, heads
  Source sources[2];                    // main, extra; source_count are used
  float scale_log2 = 0;                 // kv_scale * softmax_scale * log2 e
  float value_scale = 1;                // kv_scale, on every result that a value enters: out and acc
  const float* sink = nullptr;          // [H]
  std::uint16_t* out = nullptr;         // [T, H, 512]
  std::int64_t out_stride[2] = {0, 0};  // elements
  float* lse = nullptr;                 // [T, H]
  std::int64_t lse_stride[2] = {0, 0};
  float* max_logits = nullptr;  // [T, H]
  std::int64_t max_logits_stride[2] = {0, 0};
  float *acc = nullptr, *m = nullptr, *l = nullptr;  // [T, S, H, 512], [T, S, H], [T, S, H]
  std::int64_t acc_splits = 0;                       // S of the given partial tensors
  std::string_view kernel;                           // asked for; empty = choose

  // Average list length of a row, for planning: what can be known without reading device memory.
  std::int64_t average_keys(int index) const {
    const Source& s = sources[index];
    const std::int64_t lists = tokens / queries_per_list;
    if (source[index].ragged) return lists ? (s.nnz + lists - 1) / lists : 0;
    return s.width;
  }
  std::int64_t average_keys() const {  // of all sources
    std::int64_t keys = 0;
    for (int i = 0; i < source_count; ++i) keys += average_keys(i);
    return keys;
  }
};

// The entries of one row's list. Rows that share a list are the last tokens of its sequence: the n-th from the end does not
// see the last n entries.
struct IndexRow {
  const std::int32_t* data;
  std::int64_t count;
};

inline IndexRow row_range(const Source& s, std::int64_t t) {
  const std::int64_t list = t / s.queries_per_list, unseen = s.queries_per_list - 1 - t % s.queries_per_list;
  const auto clamp = [](std::int64_t x, std::int64_t low, std::int64_t high) {
    return x < low ? low : x > high ? high : x;
  };
  if (s.indptr) {
    const std::int64_t begin = clamp(s.indptr[list], 0, s.nnz), end = clamp(s.indptr[list + 1], begin, s.nnz);
    return {s.indices + begin, clamp(end - begin - unseen, 0, end - begin)};
  }
  const std::int64_t length = s.lengths ? clamp(s.lengths[list], 0, s.width) : s.width;
  const std::int64_t count = clamp(length - unseen, 0, length);
  return {count == 0 ? nullptr : s.indices + list * s.index_stride, count};
}

// Split i of S takes entries [i*c, (i+1)*c) of each source's list, c = ceil(count / S); splits beyond the end are empty.
inline IndexRow split_range(IndexRow row, int split, int splits) {
  const std::int64_t chunk = (row.count + splits - 1) / splits;
  const std::int64_t begin = chunk * split < row.count ? chunk * split : row.count;
  const std::int64_t end = begin + chunk < row.count ? begin + chunk : row.count;
  return {row.data + begin, end - begin};
}

// Where the bytes of a valid slot are.
template <typename Format>
Row locate(const Source& s, std::int64_t page_tokens, std::int64_t slot) {
  Row row{s.kv + Format::record_offset(s.page_stride, page_tokens, slot)};
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    row.scales = s.kv + Format::tail_offset(s.page_stride, page_tokens, slot);
  }
  if constexpr (Format::kScaling == Scaling::kSideFloat) row.scales = s.scales + slot * s.scale_stride;
  if constexpr (Format::kTwoPieces) row.pe = s.pe + slot * s.pe_stride;
  return row;
}

// What of dense MLA decode the problem needs, in words; empty if nothing: for kernels that read keys in one piece, take fp8
// rows of 512 and apply no kv_scale.
std::string mla_needs(const Problem& problem);

// Bytes that one query reads for each token it selects from this source.
int bytes_per_key(const Shape& shape, int source);

enum class Stage { kPlan, kRun };  // a plan may lack data pointers and outputs

// Throws Error on the first failing check, in the order of pasa_status. passed: a problem that has passed; of one that
// differs from it in addresses alone, only these are looked at.
Problem check(const pasa_problem& problem, Stage stage, const pasa_problem* passed = nullptr);

// Host memory only: throws PASA_ERROR_VALUE for a malformed indptr or length; returns the number of invalid indices.
std::int64_t validate(const Problem& problem);

// A merge of partials, checked.
struct Reduce {
  std::int64_t tokens, splits;
  int heads;
  const float *acc, *m, *l;
  const float* sink;
  void* out;
  pasa_dtype out_dtype;
  std::int64_t out_stride[2];
  float* lse;
  std::int64_t lse_stride[2];
  pasa_device_type device;
  int device_index;
};
Reduce check(const pasa_reduce_problem& problem);

}  // namespace pasa
