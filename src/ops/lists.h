// Addresses and index lists after the checks. A builder is a struct with row(t): how many candidates row t has, and what
// candidate j is (an index, or -1). With kCompact the row keeps only its indices >= 0. How rows get behind each other is the
// same for every builder and stands once per device (cpu.cpp, ops_cuda.cu).
//
// Counting is in 64 bits, so that no length or position a caller's tensor may hold can wrap.
#pragma once

#include <cstdint>

#include "ops/cache.h"

namespace pasa::ops {

constexpr std::int64_t kMaxSlot = INT32_MAX;

constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}
// Of a position and of a divisor up to 2^31: one 32-bit division. A negative position has no quotient worth having.
constexpr std::int64_t quotient(std::int64_t count, std::int64_t divisor) {
  return static_cast<std::uint32_t>(count) / static_cast<std::uint32_t>(divisor);
}

// A position beyond 31 bits counts as none. The number of tokens up to the largest fits 32 bits without a sign.
constexpr std::int64_t sane(std::int64_t position) { return position < 0 || position > kMaxSlot ? -1 : position; }

struct Paging {
  const std::int32_t* table = nullptr;  // [requests, columns]
  std::int64_t stride = 0, requests = 0, columns = 0;
  std::int64_t block_size = 1, num_blocks = 0, base = 0;
  bool ring = false;

  constexpr std::int32_t slot(std::int64_t request, std::int64_t entry) const {
    if (request < 0 || request >= requests || entry < 0 || entry > kMaxSlot || columns == 0) return -1;
    std::int64_t column = quotient(entry, block_size);
    const std::int64_t place = entry - column * block_size;
    if (ring) column %= columns;
    if (column >= columns) return -1;
    const std::int64_t block = table[request * stride + column];
    if (block < 0 || (num_blocks > 0 && block >= num_blocks)) return -1;
    const std::int64_t slot = base + block * block_size + place;
    return slot <= kMaxSlot ? static_cast<std::int32_t>(slot) : -1;
  }
};

// A row's request: token_to_req[t], or t.
struct Requests {
  const std::int32_t* token_to_req = nullptr;
  constexpr std::int64_t operator[](std::int64_t t) const { return token_to_req ? token_to_req[t] : t; }
};

// ---- element by element

struct Slots {
  Ints positions;  // [count]
  std::int64_t count, width;
  Requests requests;
  Paging paging;
  std::int64_t ratio;
  std::int32_t* narrow;  // one of the two
  std::int64_t* wide;

  constexpr void operator()(std::int64_t i) const {
    const std::int64_t position = sane(positions[i]), entry = quotient(position, ratio);
    const bool none = position < 0 || (entry + 1) * ratio != position + 1;
    const std::int32_t slot = none ? -1 : paging.slot(requests[i / width], entry);
    if (wide) {
      wide[i] = slot;
    } else {
      narrow[i] = slot;
    }
  }
};

struct TokenCounts {
  Ints positions;
  std::int64_t count;
  std::int64_t window, ratio, most;  // ratio 0: no compressed entries
  std::int32_t *n_window, *n_compressed;

  constexpr void operator()(std::int64_t i) const {
    const std::int64_t context = sane(positions[i]) + 1;
    n_window[i] = static_cast<std::int32_t>(smaller(context, window));
    n_compressed[i] = ratio == 0 ? 0 : static_cast<std::int32_t>(smaller(quotient(context, ratio), most));
  }
};

// ---- builders

struct Lists {
  std::int32_t* indices;
  std::int32_t* indptr;              // ragged; else nullptr
  std::int32_t* lengths;             // or nullptr
  std::int64_t rows, width, stride;  // width, stride: rectangular
};

struct Queries {
  Ints positions;
  Requests requests;
  const std::uint8_t* is_valid = nullptr;
  // Tokens that row t sees, itself included; 0 if it is padding.
  constexpr std::int64_t context(std::int64_t t) const { return is_valid && !is_valid[t] ? 0 : sane(positions[t]) + 1; }
};

// (a) of the index builders: the first lengths[t] entries of a dense row.
struct FromDense {
  static constexpr bool kCompact = false;
  const std::int32_t* indices;
  std::int64_t width;
  const std::int32_t* lengths;
  std::int64_t num_rows;  // -1: not known

  struct Row {
    std::int64_t count;
    const std::int32_t* data;
    std::int64_t num_rows;
    constexpr std::int32_t operator[](std::int64_t j) const {
      const std::int32_t index = data[j];
      return num_rows >= 0 && (index < 0 || index >= num_rows) ? -1 : index;
    }
  };
  constexpr Row row(std::int64_t t) const { return {clamp(lengths[t], 0, width), indices + t * width, num_rows}; }
};

// (b): an indexer's picks as slots, those without a slot left out.
struct FromTopk {
  static constexpr bool kCompact = true;
  const std::int32_t* topk;
  std::int64_t width, stride;
  Requests requests;
  const std::uint8_t* is_valid;
  Paging paging;

  struct Row {
    std::int64_t count;
    const std::int32_t* data;
    std::int64_t request;
    const Paging* paging;
    constexpr std::int32_t operator[](std::int64_t j) const { return paging->slot(request, data[j]); }
  };
  constexpr Row row(std::int64_t t) const {
    const bool valid = !is_valid || is_valid[t];
    return {valid ? width : 0, topk + t * stride, requests[t], &paging};
  }
};

// (c): top-k and window as rows of a prefill workspace.
struct Combine {
  static constexpr bool kCompact = false;
  const std::int32_t* topk_indices;
  std::int64_t width, stride;
  const std::int32_t *query_start_loc, *seq_lens, *gather_lens;
  std::int64_t requests;
  std::int64_t window, ratio, topk, rows_per_request, compressed_rows;

  struct Row {
    std::int64_t count, top;  // top of them are compressed entries
    std::int64_t listed;      // columns of data
    const std::int32_t* data;
    std::int64_t begin;  // the request's first workspace row
    std::int64_t
        first_token;  // row within the request of the window's oldest token; below `compressed` if not gathered
    std::int64_t compressed, rows;  // N, M
    constexpr std::int32_t operator[](std::int64_t j) const {
      if (j < top) {
        const std::int64_t entry = j < listed ? data[j] : -1;
        return entry < 0 || entry >= compressed ? -1 : static_cast<std::int32_t>(begin + entry);
      }
      const std::int64_t at = first_token + j - top;
      return at < compressed || at >= rows ? -1 : static_cast<std::int32_t>(begin + at);
    }
  };

  constexpr Row row(std::int64_t t) const {
    const std::int64_t base = requests > 0 ? query_start_loc[0] : 0;
    if (requests == 0 || t + base >= query_start_loc[requests]) return {};
    std::int64_t low = 0, high = requests;  // the last request whose first query is not behind t
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (query_start_loc[middle] - base <= t ? low : high) = middle;
    }
    const std::int64_t begin = query_start_loc[low], end = query_start_loc[low + 1], seq = seq_lens[low];
    const std::int64_t position = sane(seq - (end - begin) + (t + base - begin));
    if (position < 0) return {};
    const std::int64_t top = smaller(quotient(position + 1, ratio), topk), tail = smaller(position + 1, window);
    const std::int64_t oldest = position + 1 - tail, gathered_from = seq - gather_lens[low];
    return {top + tail,
            top,
            width,
            topk_indices + t * stride,
            low * rows_per_request,
            compressed_rows + oldest - gathered_from,
            compressed_rows,
            rows_per_request};
  }
};

// (d) and (e): consecutive entries of the query's own request.
struct Consecutive {
  static constexpr bool kCompact = false;
  Queries queries;
  Paging paging;       // no table: entry numbers
  std::int64_t ratio;  // entries seen = context / ratio
  std::int64_t most;   // a list's limit
  bool newest;         // which of them: the last ones (window) or the first ones

  struct Row {
    std::int64_t count, request, first;
    const Paging* paging;
    constexpr std::int32_t operator[](std::int64_t j) const {
      return paging->table ? paging->slot(request, first + j) : static_cast<std::int32_t>(first + j);
    }
  };
  constexpr Row row(std::int64_t t) const {
    const std::int64_t seen = quotient(queries.context(t), ratio), count = smaller(seen, most);
    return {count, queries.requests[t], newest ? seen - count : 0, &paging};
  }
};

template <typename Builder>
struct List {
  Builder builder;
  Lists lists;
};

}  // namespace pasa::ops
