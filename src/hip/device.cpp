#include "hip/device.h"

#include <map>
#include <mutex>
#include <tuple>

#include "hip/code_objects.h"

namespace pasa::hip {
namespace {

constexpr int kReduceHeads = 16;  // heads of a work-group of reduce.hip

// nullptr: there is no such code, or the device does not load it.
Kernel find_kernel(int device, std::string_view file, std::string_view architecture, const char* name) {
  static std::mutex lock;
  static std::map<std::tuple<Driver*, int, std::string, std::string>, Kernel> known;
  const std::lock_guard guard(lock);
  const auto [found, fresh] = known.try_emplace({&driver(), device, std::string(architecture), name}, nullptr);
  for (const CodeObject& code : code_objects()) {
    if (!fresh || code.file != file || code.architecture != architecture) continue;
    found->second = driver().load(device, code.bytes, name);
  }
  return found->second;
}

std::string joined(Architectures names) {
  std::string text;
  for (std::string_view name : names) text += concat(text.empty() ? "" : " or ", name);
  return text;
}

}  // namespace

std::string_view architecture(int device) {
  for (const CodeObject& code : code_objects()) {
    if (code.file == "reduce" && find_kernel(device, "reduce", code.architecture, "reduce")) return code.architecture;
  }
  return "";
}

std::string machine(const Problem& problem) {
  const auto device = driver().device(problem.device_index);
  return concat(device.name, ", ", device.compute_units, " compute units");
}

std::string unavailable_on(int device, Architectures wanted) {
  if (const std::string reason = driver().unavailable(); !reason.empty()) return reason;
  if (device >= driver().device_count()) return concat("HIP device ", device, " of ", driver().device_count());
  const std::string_view found = architecture(device);
  if (std::ranges::find(wanted, found) != wanted.end()) return "";
  const std::string name = driver().device(device).name;
  if (!found.empty()) return concat(name, " is ", found, ", this kernel is for ", joined(wanted));
  const std::string version = driver().version();
  return concat(name, version.empty() ? "" : " with ", version, " does not load code for ", joined(wanted));
}

std::string unavailable(Architectures wanted) {
  std::string reason = driver().unavailable();
  for (int device = 0; reason.empty() && device < driver().device_count(); ++device) {
    if (unavailable_on(device, wanted).empty()) return "";
    if (device + 1 == driver().device_count()) reason = unavailable_on(device, wanted);
  }
  return reason;
}

std::string too_many(std::int64_t tokens) {
  constexpr std::int64_t kMost = INT32_MAX / kThreads;
  return tokens <= kMost ? "" : concat("T is ", tokens, ", expected at most ", kMost);
}

void launch(int device, std::string_view file, const char* kernel, Dim3 grid, std::span<const std::byte> arguments,
            void* stream) {
  if (grid.x == 0 || grid.y == 0) return;
  const Kernel loaded = find_kernel(device, file, architecture(device), kernel);
  require(PASA_ERROR_INTERNAL, loaded != nullptr, "internal: no code for kernel ", kernel);
  driver().launch(device, loaded, grid, {kThreads}, arguments, stream);
}

void launch_merge(int device, const gpu::MergeArgs& args, void* stream) {
  const auto heads = static_cast<std::uint32_t>(ceil_div(args.heads, kReduceHeads));
  launch(device, "reduce", "reduce", {static_cast<std::uint32_t>(args.tokens), heads}, args, stream);
}

void reduce(const Reduce& problem, void* stream) {
  const std::string reason = too_many(problem.tokens);
  require(PASA_ERROR_UNSUPPORTED, reason.empty(), "acc: ", reason);
  launch_merge(problem.device_index, gpu::make_merge_args(problem), stream);
}

}  // namespace pasa::hip
