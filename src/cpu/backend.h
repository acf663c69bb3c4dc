// From a Kernel to a row of the library's table of backends.
#pragma once

#include "core/backend.h"
#include "cpu/kernel.h"

namespace pasa::cpu {

void make_plan(const Kernel& kernel, const Problem& problem, Plan& plan);
void run_plan(const Kernel& kernel, const Problem& problem, const Plan& plan, void* workspace);
void reduce(const Reduce& reduce, void* stream);
std::string machine(const Problem& problem);  // Backend::machine

template <const Kernel& kKernel>
constexpr Backend backend(std::string_view name, std::string (*unavailable)(), std::string (*decline)(const Problem&)) {
  return {
      .name = name,
      .device = PASA_CPU,
      .unavailable = unavailable,
      .decline = decline,
      .plan = [](const Problem& p, Plan& plan) { make_plan(kKernel, p, plan); },
      .run = [](const Problem& p, const Plan& plan, void* workspace, void*) { run_plan(kKernel, p, plan, workspace); },
      .reduce = reduce,
      .machine = machine,
  };
}

}  // namespace pasa::cpu
