// pasa in C++20: RAII plans, exceptions and typed views over the C ABI of pasa.h. Header-only; nothing here computes.
//
//     pasa::Problem p;                                             // zeroed, struct_size set
//     p.q = pasa::tensor(q.data(), PASA_BF16, {T, H, 512});
//     p.main = {.format = PASA_KV_FP8_DS_MLA,
//               .kv = pasa::tensor(cache.data(), PASA_U8, {blocks, 64, 584}),
//               .indices = pasa::tensor(slots.data(), PASA_I32, {T, topk})};
//     p.out = pasa::tensor(out.data(), PASA_BF16, {T, H, 512});
//     pasa::attend(p);                                             // plan, workspace, run
//
// In a serving loop make the Plan and the workspace once and call plan.run(p, workspace) per layer. Every failure is a
// pasa::Error that carries the status and the C message.
#ifndef PASA_PASA_HPP
#define PASA_PASA_HPP

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "pasa/pasa.h"

namespace pasa {

class Error : public std::runtime_error {
 public:
  explicit Error(pasa_status status) : std::runtime_error(pasa_last_error()), status_(status) {}
  pasa_status status() const noexcept { return status_; }

 private:
  pasa_status status_;
};

inline void check(pasa_status status) {
  if (status != PASA_OK) throw Error(status);
}

struct Problem : pasa_problem {
  Problem() : pasa_problem{} { struct_size = sizeof(pasa_problem); }
};

// A view of data [shape]; strides in elements, dense row-major if not given.
inline pasa_tensor tensor(const void* data, pasa_dtype dtype, std::initializer_list<std::int64_t> shape,
                          std::initializer_list<std::int64_t> strides = {}, pasa_device_type device = PASA_CPU,
                          std::int32_t device_index = 0) {
  if (shape.size() == 0 || shape.size() > 4 || (strides.size() != 0 && strides.size() != shape.size())) {
    throw std::invalid_argument("pasa::tensor: expected 1 to 4 sizes and no strides or as many");
  }
  pasa_tensor t{};
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.rank = static_cast<std::int32_t>(shape.size());
  t.device = device;
  t.device_index = device_index;
  std::int64_t dense = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    t.shape[i] = shape.begin()[i];
    t.stride[i] = strides.size() != 0 ? strides.begin()[i] : dense;
    dense *= t.shape[i];
  }
  return t;
}

// What pasa_plan_create decided. Move-only; made once a step, run once a layer.
class Plan {
 public:
  explicit Plan(const pasa_problem& problem) {
    pasa_plan* plan = nullptr;
    check(pasa_plan_create(&problem, &plan));
    plan_.reset(plan);
  }
  std::size_t workspace_bytes() const noexcept { return pasa_plan_workspace_bytes(plan_.get()); }
  int splits() const noexcept { return pasa_plan_splits(plan_.get()); }
  bool is_partial() const noexcept { return pasa_plan_is_partial(plan_.get()) != 0; }
  std::string kernel() const { return pasa_plan_kernel(plan_.get()); }
  std::string summary() const { return pasa_plan_summary(plan_.get()); }

  // workspace: at least workspace_bytes(), on the problem's device, 256-byte aligned.
  void run(const pasa_problem& problem, std::span<std::byte> workspace, pasa_stream stream = nullptr) const {
    check(pasa_run(plan_.get(), &problem, workspace.data(), workspace.size(), stream));
  }

 private:
  struct Destroy {
    void operator()(pasa_plan* plan) const noexcept { pasa_plan_destroy(plan); }
  };
  std::unique_ptr<pasa_plan, Destroy> plan_;
};

// Host memory aligned as a workspace must be.
class HostWorkspace {
 public:
  explicit HostWorkspace(std::size_t bytes) : bytes_(bytes) {
    if (bytes != 0) data_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{256})));
  }
  std::span<std::byte> span() const noexcept { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept { ::operator delete (p, std::align_val_t{256}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_;
};

// Plan, workspace and run in one call, for tensors in host memory.
inline void attend(const pasa_problem& problem) {
  const Plan plan(problem);
  const HostWorkspace workspace(plan.workspace_bytes());
  plan.run(problem, workspace.span());
}

// Throws for malformed lists; returns the number of invalid indices, which are legal.
inline std::int64_t validate(const pasa_problem& problem) {
  std::int64_t skipped = 0;
  check(pasa_validate(&problem, &skipped));
  return skipped;
}

inline void reduce(pasa_reduce_problem problem, pasa_stream stream = nullptr) {
  problem.struct_size = sizeof problem;
  check(pasa_reduce(&problem, stream));
}

// Every kernel of the library and what it says to a problem (nullptr: to this machine).
inline std::vector<pasa_kernel_info> kernels(const pasa_problem* problem = nullptr) {
  std::vector<pasa_kernel_info> infos(static_cast<std::size_t>(pasa_kernel_count()));
  for (std::size_t i = 0; i < infos.size(); ++i) {
    infos[i].struct_size = sizeof(pasa_kernel_info);
    check(pasa_get_kernel_info(static_cast<std::int32_t>(i), problem, &infos[i]));
  }
  return infos;
}

}  // namespace pasa

#endif
