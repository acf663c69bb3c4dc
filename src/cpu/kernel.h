// What a CPU kernel is and what it sees of the rest: one share of the work, the share's keys as addresses, and where its
// results go. Kernels stand in files of their own, one for each instruction set, compiled with that set's flags; all other
// code of src/cpu is compiled for the baseline. Everything declared here is therefore either plain data or an ordinary
// function of a baseline file: no inline function may end up in two objects, one of them unfit for an older CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"

namespace pasa::cpu {

// One share of the work: the keys of one split of one query row, for the heads [head, head + heads).
struct Part {
  std::int64_t row;
  int split, splits;
  int head, heads;
  // [heads, 512], [heads], [heads]: where a partial result is wanted. nullptr: the problem's out, lse, max_logits.
  float *acc, *m, *l;
};

// Some of a part's keys: the first `main` rows are the main source's, the others the extra one's.
struct Keys {
  int count, main;
};

// Walks a part's valid keys, main source first. Invalid indices end here: a kernel never sees a hole.
class KeyList {
 public:
  KeyList(const Problem& problem, const Part& part);
  // Writes the addresses of the next keys to rows[0, capacity).
  Keys next(Row* rows, int capacity);
  std::int64_t entries() const { return source_[0].count + source_[1].count; }  // valid or not, before the first next()

 private:
  struct Source {
    const std::int32_t* indices = nullptr;
    std::int64_t at = 0, count = 0;
    std::uint64_t slots = 0;
    const std::uint8_t* kv = nullptr;
    const std::uint8_t* scales = nullptr;
    const std::uint8_t* pe = nullptr;
    std::int64_t page_stride = 0, record_bytes = 0, scales_page_stride = 0, scale_bytes = 0, pe_stride = 0;
    std::uint64_t page_tokens = 1, reciprocal = 0;  // reciprocal: 2^64 / page_tokens, rounded up; 0 for flat pools
  };
  static Source open(const Problem& problem, const Part& part, int source);
  static int fill(Source& source, Row* rows, int capacity);
  Source source_[2];
};

// Ends a part. ref and l are the heads' softmax state, l = sum 2^(s2 - ref) for any ref near the maximum; top is the exact
// maximum. Writes lse and max_logits, or m and l, and into scale the factor that turns acc = sum 2^(s2 - ref) v into the
// result; a factor of 0 means +0 whatever acc holds.
void finish_heads(const Problem& problem, const Part& part, const float* ref, const float* top, const float* l,
                  float* scale);

struct Kernel {
  std::size_t (*scratch_bytes)(const Shape&);  // what one thread needs
  void (*attend)(const Problem&, const Part&, std::byte* scratch);
  int max_heads;  // of a part
};

}  // namespace pasa::cpu
