// The ordered table of kernels: the first row that does not refuse a problem serves it. A kernel asked for by name (or by
// prefix, "cpu") is the only one considered; then a refusal is an error, never a silent fallback.
#include <string>

#include "core/backend.h"

namespace pasa {

#ifdef PASA_WITH_CUDA
extern const Backend kCudaSm90Prefill, kCudaSm90, kCudaSm90Many, kCudaSm90Few, kCudaGeneral;
#endif
#ifdef PASA_WITH_HIP
extern const Backend kHipGfx950, kHipGeneral;
#endif
extern const Backend kCpuAmx, kCpuAvx512Bf16, kCpuAvx512, kCpuAvx2, kCpuPortable, kReference;

namespace {

const Backend* const kTable[] = {
#ifdef PASA_WITH_CUDA
    &kCudaSm90Prefill, &kCudaSm90,      &kCudaSm90Many, &kCudaSm90Few, &kCudaGeneral,
#endif
#ifdef PASA_WITH_HIP
    &kHipGfx950,       &kHipGeneral,
#endif
#if defined(__x86_64__)
    &kCpuAmx,          &kCpuAvx512Bf16, &kCpuAvx512,    &kCpuAvx2,
#endif
    &kCpuPortable,     &kReference,
};

// "cpu:amx" or its prefix "cpu".
bool is_named(const Backend& backend, std::string_view name) {
  return backend.name == name || (backend.name.starts_with(name) && backend.name[name.size()] == ':');
}

}  // namespace

std::size_t backend_count() { return std::size(kTable); }
const Backend& backend_at(std::size_t index) { return *kTable[index]; }

std::string refusal(const Backend& backend, const Problem& problem) {
  if (!problem.kernel.empty() && !is_named(backend, problem.kernel)) return "not the kernel asked for";
  if (backend.device != problem.device) {
    return concat("it computes on ", device_name(backend.device), ", the tensors are on ", device_name(problem.device));
  }
  if (!backend.on_request.empty() && problem.kernel != backend.name) {
    return concat("only if asked for by name: ", backend.on_request);
  }
  std::string reason = backend.unavailable();
  return reason.empty() ? backend.decline(problem) : reason;
}

const Backend& choose(const Problem& problem) {
  std::string reasons;
  bool known = problem.kernel.empty();
  for (const Backend* backend : kTable) {
    const std::string reason = refusal(*backend, problem);
    if (reason.empty()) return *backend;
    if (!problem.kernel.empty() && !is_named(*backend, problem.kernel)) continue;
    known = true;
    reasons += concat(reasons.empty() ? "" : "; ", backend->name, ": ", reason);
  }
  if (!known) {
    for (const Backend* backend : kTable) reasons += concat(reasons.empty() ? "" : ", ", backend->name);
    throw Error(PASA_ERROR_UNSUPPORTED, concat("kernel is '", problem.kernel, "', expected one of ", reasons));
  }
  throw Error(PASA_ERROR_UNSUPPORTED,
              concat(problem.kernel.empty() ? "no kernel serves this problem: " : "kernel ", reasons));
}

}  // namespace pasa
