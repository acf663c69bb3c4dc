// Every kernel of the library as the attention tests see it: a name to force, a device to put the tensors on, and the reason
// if this machine cannot run it. A kernel that is no row of the table (an emulation, linked only into tests) is run by hand.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/backend.h"
#include "harness/case.h"
#include "harness/device.h"

namespace pasa::test {

struct Kernel {
  std::string name;
  std::string device;   // "cpu", "cuda"
  std::string missing;  // why this machine cannot run it; empty if it can
  const Backend* unlisted = nullptr;
  double most_flops = 1e15;  // of a problem that the quick list gives it: emulated ones pay for every instruction
};

inline std::ostream& operator<<(std::ostream& out, const Kernel& kernel) { return out << kernel.name; }

// In the table's order, then the unlisted ones.
const std::vector<Kernel>& kernels();
// Those this machine runs.
std::vector<Kernel> runnable_kernels();

// Empty if the kernel serves the problem, else its reason.
std::string refusal_of(const Kernel& kernel, const pasa_problem& problem);

struct Ran {
  int splits = 0;
  bool partial = false;
};
// What a plan for the problem decides.
Ran plan_on(const Kernel& kernel, const pasa_problem& problem);
// Poisons the case's outputs, runs it on the kernel and brings the outputs home. The rest of the problem (splits, threads,
// flags) is taken as it stands. Throws Error.
Ran run_on(const Kernel& kernel, Case& c);

// The bytes of out, lse, max_logits, acc, m, l, whichever are present.
std::vector<std::byte> output_bits(const Case& c);

}  // namespace pasa::test
