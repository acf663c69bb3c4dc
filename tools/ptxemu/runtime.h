// The emulator in place of the CUDA runtime library: linked into a program before libcudart, it defines the runtime functions
// that the program uses. Device memory is host memory, every call completes before it returns, and a kernel is found by name
// in the PTX files of PTXEMU_PTX (directories, separated by colons; the build has its own default).
//
// More in the environment: PTXEMU_SEED=n, PTXEMU_THREADS=n, PTXEMU_RACES=0, PTXEMU_TRACE=1, PTXEMU_STATS=1 (a line a launch).
#pragma once

#include <map>
#include <string>

#include "tools/ptxemu/ptxemu.h"

namespace ptxemu {

Options& runtime_options();

struct Counts {
  Stats stats;
  std::uint64_t launches = 0, blocks = 0;
};
// By kernel, since the last call.
std::map<std::string, Counts> take_counts();

}  // namespace ptxemu
