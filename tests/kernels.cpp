#include "tests/kernels.h"

#include <map>
#include <memory>

namespace pasa {
#ifdef PASA_TEST_AMX_EMULATED
extern const Backend kCpuAmxEmulated;
#endif

namespace test {
namespace {

Device& device_of(const Kernel& kernel) {
  static std::map<std::string, std::unique_ptr<Device>> open;
  std::unique_ptr<Device>& device = open[kernel.device];
  if (!device) device = open_device(kernel.device);
  return *device;
}

Plan plan_unlisted(const Backend& backend, const Problem& problem) {
  Plan plan;
  plan.backend = &backend;
  plan.shape = problem;
  backend.plan(problem, plan);
  plan.partial = problem.skip_reduce && plan.splits > 1;
  return plan;
}

Ran run_unlisted(const Backend& backend, const Case& c) {
  const Problem problem = check(c.problem, Stage::kRun);
  const Plan plan = plan_unlisted(backend, problem);
  const Memory workspace = Memory::anonymous(plan.workspace_bytes + 1);
  if (problem.tokens > 0) backend.run(problem, plan, workspace.data(), nullptr);
  return {plan.splits, plan.partial};
}

// The problem as it looks on the kernel's device, and with the kernel forced: enough to plan.
pasa_problem as_seen_by(const Kernel& kernel, const pasa_problem& problem) {
  pasa_problem seen = problem;
  const pasa_device_type device = kernel.device == "cuda" ? PASA_CUDA : kernel.device == "hip" ? PASA_HIP : PASA_CPU;
  for (const NamedTensor& named : input_tensors(seen)) named.tensor->device = device;
  for (const NamedTensor& named : output_tensors(seen)) named.tensor->device = device;
  seen.kernel = kernel.unlisted ? nullptr : kernel.name.c_str();
  return seen;
}

}  // namespace

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list;
    for (std::int32_t i = 0; i < pasa_kernel_count(); ++i) {
      pasa_kernel_info info{};
      info.struct_size = sizeof info;
      check_status(pasa_get_kernel_info(i, nullptr, &info));
      list.push_back({info.name, info.device, info.reason});
    }
#ifdef PASA_TEST_AMX_EMULATED
    list.push_back({std::string(kCpuAmxEmulated.name), "cpu", kCpuAmxEmulated.unavailable(), &kCpuAmxEmulated, 2e8});
#endif
#ifdef PASA_TEST_CUDA_EMULATED  // linked with tools/ptxemu: its kernels alone, the others have a program of their own
    std::erase_if(list, [](const Kernel& kernel) { return kernel.device != "cuda"; });
    for (Kernel& kernel : list) kernel.most_flops = 1e7;
#endif
    return list;
  }();
  return all;
}

std::vector<Kernel> runnable_kernels() {
  std::vector<Kernel> list;
  for (const Kernel& kernel : kernels()) {
    if (kernel.missing.empty()) list.push_back(kernel);
  }
  return list;
}

std::string refusal_of(const Kernel& kernel, const pasa_problem& problem) {
  const Problem checked = check(as_seen_by(kernel, problem), Stage::kPlan);
  if (kernel.unlisted) return kernel.unlisted->decline(checked);
  for (std::size_t i = 0; i < backend_count(); ++i) {
    if (backend_at(i).name == kernel.name) return refusal(backend_at(i), checked);
  }
  return "no such kernel";
}

Ran plan_on(const Kernel& kernel, const pasa_problem& problem) {
  const pasa_problem seen = as_seen_by(kernel, problem);
  if (kernel.unlisted) {
    const Plan plan = plan_unlisted(*kernel.unlisted, check(seen, Stage::kPlan));
    return {plan.splits, plan.partial};
  }
  pasa_plan* plan = nullptr;
  check_status(pasa_plan_create(&seen, &plan));
  const Ran decided{pasa_plan_splits(plan), pasa_plan_is_partial(plan) != 0};
  pasa_plan_destroy(plan);
  return decided;
}

Ran run_on(const Kernel& kernel, Case& c) {
  if (kernel.unlisted) {
    poison_outputs(c);
    return run_unlisted(*kernel.unlisted, c);
  }
  c.problem.kernel = kernel.name.c_str();
  Device& device = device_of(kernel);
  Placed placed(c, device);
  placed.poison_outputs();
  Runner runner(placed.problem(), device);
  runner.run();
  device.synchronize();
  placed.fetch_outputs();
  c.problem.kernel = nullptr;
  return {runner.splits(), pasa_plan_is_partial(runner.plan()) != 0};
}

std::vector<std::byte> output_bits(const Case& c) {
  std::vector<std::byte> bits;
  pasa_problem problem = c.problem;
  for (const NamedTensor& named : output_tensors(problem)) {
    const pasa_tensor& t = *named.tensor;
    if (t.rank == 0 || element_count(t) == 0) continue;
    // Rows are contiguous in their last dimension; the dimensions before it may have gaps.
    const auto element = static_cast<std::int64_t>(dtype_bytes(t.dtype));
    std::int64_t at[4] = {};
    const int last = t.rank - 1;
    for (bool more = true; more;) {
      std::int64_t offset = 0;
      for (int i = 0; i < last; ++i) offset += at[i] * t.stride[i];
      for (std::int64_t j = 0; j < t.shape[last]; ++j) {
        const auto* from = static_cast<const std::byte*>(t.data) + (offset + j * t.stride[last]) * element;
        bits.insert(bits.end(), from, from + element);
      }
      more = false;
      for (int i = last - 1; i >= 0 && !more; --i) {
        more = ++at[i] < t.shape[i];
        if (!more) at[i] = 0;
      }
    }
  }
  return bits;
}

}  // namespace test
}  // namespace pasa
