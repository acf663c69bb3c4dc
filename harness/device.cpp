#include "harness/device.h"

#include <charconv>
#include <cstring>

#include "core/error.h"

namespace pasa {

void check_status(pasa_status status) {
  if (status == PASA_OK) return;
  std::string_view text = pasa_last_error();
  const std::string prefix = std::string(pasa_status_name(status)) + ": ";
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  throw Error(status, std::string(text));
}

std::vector<std::string> device_names() {
  std::vector<std::string> names = hip_device_names();
  for (int i = cuda_device_count() - 1; i >= 0; --i) names.insert(names.begin(), "cuda:" + std::to_string(i));
  names.emplace_back("cpu");
  return names;
}

std::unique_ptr<Device> open_device(std::string_view name) {
  if (name == "auto") return open_device(device_names().front());
  if (name == "cpu") return open_cpu();
  if (std::unique_ptr<Device> device = open_hip(name)) return device;
  int index = -1;
  if (name == "cuda") index = 0;
  if (name.starts_with("cuda:")) {
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), index);
    if (error != std::errc() || end != name.data() + name.size()) index = -1;
  }
  std::string present;
  for (const std::string& device : device_names()) present += (present.empty() ? "" : ", ") + device;
  for (const std::string& device : emulated_device_names()) present += ", " + device;
  require(PASA_ERROR_DEVICE, index >= 0 && index < cuda_device_count(), "device '", name,
          "' is not there, this machine has ", present);
  return open_cuda(index);
}

namespace {

// A pool with wide gaps between its pages is moved page by page; everything else at once.
void move(const pasa_tensor& host, void* device,
          const std::function<void(std::byte* host, std::byte* device, std::size_t)>& copy) {
  const std::size_t bytes = span_bytes(host);
  auto* base = static_cast<std::byte*>(host.data);
  auto* target = static_cast<std::byte*>(device);
  const std::size_t dense = static_cast<std::size_t>(element_count(host)) * dtype_bytes(host.dtype);
  if (bytes <= 2 * dense + (std::size_t{1} << 20)) {
    if (bytes) copy(base, target, bytes);
    return;
  }
  for (std::span<std::byte> run : contiguous_runs(host)) copy(run.data(), target + (run.data() - base), run.size());
}

}  // namespace

Placed::Placed(Case& c, Device& device) : case_(c), device_(device), problem_(c.problem) {
  if (device.type() == PASA_CPU) return;
  std::vector<NamedTensor> inputs = input_tensors(problem_), outputs = output_tensors(problem_);
  const auto place = [&](pasa_tensor& tensor) {
    tensor.device = device.type();
    tensor.device_index = device.index();
    const pasa_tensor host = tensor;
    if (!host.data) return;
    buffers_.push_back(device.allocate(span_bytes(host)));
    tensor.data = buffers_.back().get();
    move(host, tensor.data, [&](std::byte* from, std::byte* to, std::size_t bytes) { device.upload(to, from, bytes); });
  };
  for (const auto& [name, tensor] : inputs) place(*tensor);
  for (const auto& [name, tensor] : outputs) place(*tensor);
  device.synchronize();
}

void Placed::poison_outputs() {
  if (device_.type() == PASA_CPU) return pasa::poison_outputs(case_);
  pasa_problem host = case_.problem;
  const std::vector<NamedTensor> from = output_tensors(host), to = output_tensors(problem_);
  for (std::size_t i = 0; i < from.size(); ++i) {
    move(*from[i].tensor, to[i].tensor->data,
         [&](std::byte*, std::byte* device, std::size_t bytes) { device_.fill(device, 0xff, bytes); });
  }
}

void Placed::fetch_outputs() {
  if (device_.type() == PASA_CPU) return;
  device_.synchronize();
  pasa_problem host = case_.problem;
  const std::vector<NamedTensor> to = output_tensors(host), from = output_tensors(problem_);
  for (std::size_t i = 0; i < to.size(); ++i) {
    move(*to[i].tensor, from[i].tensor->data,
         [&](std::byte* memory, std::byte* device, std::size_t bytes) { device_.download(memory, device, bytes); });
  }
}

Runner::Runner(const pasa_problem& problem, Device& device) : problem_(problem), device_(device) {
  check_status(pasa_plan_create(&problem, &plan_));
  workspace_bytes_ = pasa_plan_workspace_bytes(plan_);
  try {
    if (workspace_bytes_) {
      workspace_ = device.allocate(workspace_bytes_);
      device.fill(workspace_.get(), 0xff, workspace_bytes_);  // its contents must not matter
    }
  } catch (...) {
    pasa_plan_destroy(plan_);
    throw;
  }
}

Runner::~Runner() { pasa_plan_destroy(plan_); }

void Runner::run() { check_status(pasa_run(plan_, &problem_, workspace_.get(), workspace_bytes_, device_.stream())); }

void prepare_partials(Case& c, const Device& device) {
  if (!(c.problem.flags & PASA_SKIP_REDUCE)) return;
  pasa_problem problem = c.problem;  // as it will be on the device, without data
  for (const auto& [name, tensor] : input_tensors(problem)) {
    tensor->device = device.type();
    tensor->device_index = device.index();
  }
  for (const auto& [name, tensor] : output_tensors(problem)) *tensor = {};
  pasa_plan* plan = nullptr;
  check_status(pasa_plan_create(&problem, &plan));
  const bool partial = pasa_plan_is_partial(plan) != 0;
  const int splits = pasa_plan_splits(plan);
  pasa_plan_destroy(plan);
  if (partial) add_partials(c, splits);
}

}  // namespace pasa
