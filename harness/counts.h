// What a kernel costs in instructions, where a device executes them one by one and keeps no time (the emulator): counts of
// wave instructions by class, and from two runs of a problem the part that grows with its tokens and the part that does not.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "harness/case.h"

namespace pasa {

class Device;

struct Counts {
  enum Kind {
    kMatrix,
    kVector,
    kTranscendental,
    kLds,
    kMemory,
    kScalar,
    kWaits,         // waits, nops, barriers; so far they add up to all instructions
    kMatrixPasses,  // of 4 clocks
    kMemoryBytes,   // of vector memory instructions
    kLdsBytes,
    kLdsClocks,  // with bank conflicts
    kKinds
  };
  static constexpr std::string_view kNames[] = {"matrix",       "vector",    "transcendental", "lds",
                                                "memory",       "scalar",    "waits",          "matrix_passes",
                                                "memory_bytes", "lds_bytes", "lds_clocks"};
  std::array<double, kKinds> of{};

  double operator[](Kind kind) const { return of[kind]; }
  double instructions() const;
  // The instruction-level cost model, in clocks of a compute unit whose four SIMDs share the waves evenly. An instruction
  // takes a SIMD's pipe for 4 clocks, a matrix instruction for its passes, a transcendental for four; LDS serves 128 bytes a
  // clock. The pipes overlap perfectly, so the busiest one decides: a lower bound and a way to compare, not a time.
  double matrix_clocks() const { return of[kMatrixPasses]; }
  double vector_clocks() const { return of[kVector] + 4 * of[kTranscendental]; }
  double issue_clocks() const;  // the busiest pipe's

  Counts& operator+=(const Counts& other);
};
Counts operator-(const Counts& a, const Counts& b);
Counts operator*(const Counts& a, double factor);

// Of one row and split, all of its heads together.
struct Budget {
  std::string kernel, plan;
  std::int64_t rows = 0, listed = 0;  // rows times splits; entries of all lists
  Counts token;                       // grows by this with every listed token
  Counts fixed;                       // and has this besides
  Counts merge;                       // of one row, all splits and heads
  Counts total;                       // of the problem
};

// Runs the problem and once more with half of every list. The device must keep counts.
Budget count_budget(const Case& c, Device& device, const char* kernel);

}  // namespace pasa
