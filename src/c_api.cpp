// The extern "C" code of the operator: each call checks its pointers, calls the library and turns an Error into a status
// and this thread's last error. Nothing else happens here.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/backend.h"
#include "core/guard.h"
#include "core/problem.h"
#include "core/tuning.h"
#include "pasa/pasa.h"

struct pasa_plan : pasa::Plan {
  pasa_problem planned;  // its checks serve every run that differs in addresses alone
};

namespace pasa {
namespace {

constexpr std::size_t kMessageBytes = 1024;
thread_local char last_error[kMessageBytes];

constexpr const char* kStatusNames[] = {"ok",          "device",    "dtype",       "rank",    "shape",
                                        "stride",      "alignment", "combination", "range",   "value",
                                        "unsupported", "overflow",  "memory",      "internal"};

bool explain_wanted() {
  static const bool kWanted = [] {
    const char* value = std::getenv("PASA_EXPLAIN");
    return value != nullptr && *value != '\0' && *value != '0';
  }();
  return kWanted;
}

void make_plan(const Problem& problem, Plan& plan) {
  const Backend& backend = choose(problem);
  plan.backend = &backend;
  plan.shape = problem;
  Problem tuned = problem;
  const std::string tuning = apply_tuning(tuning_table(), backend, tuned);
  backend.plan(tuned, plan);
  plan.partial = problem.skip_reduce && plan.splits > 1;
  plan.summary = concat(backend.name, ": ", plan.summary, ", workspace ", plan.workspace_bytes, " bytes",
                        tuning.empty() ? "" : "; ", tuning);
  if (explain_wanted()) std::fprintf(stderr, "pasa: %s\n", plan.summary.c_str());
}

// What a run needs beyond what a plan checks.
void require_fit(const Plan& plan, const Problem& problem, const void* workspace, std::size_t bytes) {
  require(PASA_ERROR_COMBINATION, plan.shape == problem, "plan was made for a problem of another shape, expected one ",
          "with equal tokens, heads, dims, dtypes, formats, page sizes, list forms, device, splits and flags");
  const std::string reason = plan.backend->decline(problem);
  require(PASA_ERROR_UNSUPPORTED, reason.empty(), "plan's kernel ", plan.backend->name, ": ", reason);
  if (problem.tokens == 0) return;
  if (plan.partial) {
    require(PASA_ERROR_COMBINATION, problem.acc && problem.m && problem.l, "acc, m or l is absent, expected all three ",
            "with skip_reduce and ", plan.splits, " splits");
    require(PASA_ERROR_COMBINATION, !problem.out, "out is given, expected none with skip_reduce and ", plan.splits,
            " splits");
    require(PASA_ERROR_COMBINATION, !problem.lse && !problem.max_logits,
            "lse or max_logits is given, expected neither with skip_reduce and ", plan.splits, " splits");
    require(PASA_ERROR_SHAPE, problem.acc_splits == plan.splits, "acc has ", problem.acc_splits, " splits, expected ",
            plan.splits);
  } else {
    require(PASA_ERROR_COMBINATION, problem.out, "out is absent, expected a tensor");
  }
  require(PASA_ERROR_MEMORY, bytes >= plan.workspace_bytes, "workspace is ", bytes, " bytes, expected at least ",
          plan.workspace_bytes);
  require(PASA_ERROR_MEMORY, plan.workspace_bytes == 0 || workspace != nullptr, "workspace is NULL, expected ",
          plan.workspace_bytes, " bytes");
  require(PASA_ERROR_ALIGNMENT, reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0 || plan.workspace_bytes == 0,
          "workspace is at ", workspace, ", expected a multiple of 256");
}

// Truncates to the field.
template <std::size_t N>
void copy_text(char (&field)[N], std::string_view text) {
  const std::size_t size = text.size() < N ? text.size() : N - 1;
  std::memcpy(field, text.data(), size);
  field[size] = '\0';
}

}  // namespace

pasa_status fail(pasa_status status, const char* text) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s: %s", kStatusNames[status], text);
  return status;
}

}  // namespace pasa

using namespace pasa;

extern "C" {

pasa_status pasa_plan_create(const pasa_problem* problem, pasa_plan** plan) {
  return guarded([&] {
    require_argument(problem, "problem");
    require_argument(plan, "plan");
    auto made = std::make_unique<pasa_plan>();
    make_plan(check(*problem, Stage::kPlan), *made);
    made->planned = *problem;
    *plan = made.release();
  });
}

void pasa_plan_destroy(pasa_plan* plan) { delete plan; }
size_t pasa_plan_workspace_bytes(const pasa_plan* plan) { return plan ? plan->workspace_bytes : 0; }
int32_t pasa_plan_splits(const pasa_plan* plan) { return plan ? plan->splits : 0; }
const char* pasa_plan_kernel(const pasa_plan* plan) { return plan ? plan->backend->name.data() : ""; }
const char* pasa_plan_summary(const pasa_plan* plan) { return plan ? plan->summary.c_str() : ""; }
int32_t pasa_plan_is_partial(const pasa_plan* plan) { return plan && plan->partial; }

pasa_status pasa_run(const pasa_plan* plan, const pasa_problem* problem, void* workspace, size_t workspace_bytes,
                     pasa_stream stream) {
  return guarded([&] {
    require_argument(plan, "plan");
    require_argument(problem, "problem");
    const Problem checked = check(*problem, Stage::kRun, &plan->planned);
    require_fit(*plan, checked, workspace, workspace_bytes);
    if (checked.tokens > 0) plan->backend->run(checked, *plan, workspace, stream);
  });
}

pasa_status pasa_reduce(const pasa_reduce_problem* problem, pasa_stream stream) {
  return guarded([&] {
    require_argument(problem, "problem");
    const Reduce reduce = check(*problem);
    for (std::size_t i = 0; i < backend_count(); ++i) {
      const Backend& backend = backend_at(i);
      if (backend.device != reduce.device || !backend.reduce || !backend.unavailable().empty()) continue;
      if (reduce.tokens > 0) backend.reduce(reduce, stream);
      return;
    }
    throw Error(PASA_ERROR_UNSUPPORTED, "acc is on a device that no kernel here serves");
  });
}

pasa_status pasa_validate(const pasa_problem* problem, int64_t* skipped) {
  return guarded([&] {
    require_argument(problem, "problem");
    const std::int64_t count = validate(check(*problem, Stage::kPlan));
    if (skipped) *skipped = count;
  });
}

int32_t pasa_kernel_count(void) { return static_cast<int32_t>(backend_count()); }

pasa_status pasa_get_kernel_info(int32_t index, const pasa_problem* problem, pasa_kernel_info* info) {
  return guarded([&] {
    require_argument(info, "info");
    require(PASA_ERROR_COMBINATION, info->struct_size == sizeof(pasa_kernel_info), "info.struct_size is ",
            info->struct_size, ", expected ", sizeof(pasa_kernel_info));
    require(PASA_ERROR_RANGE, index >= 0 && index < pasa_kernel_count(), "index is ", index, ", expected 0 to ",
            pasa_kernel_count() - 1);
    const Backend& backend = backend_at(static_cast<std::size_t>(index));
    const std::string missing = backend.unavailable();
    const std::string reason = problem ? refusal(backend, check(*problem, Stage::kPlan)) : missing;
    copy_text(info->name, backend.name);
    copy_text(info->device, device_name(backend.device));
    copy_text(info->reason, reason);
    info->available = missing.empty();
    info->accepts = problem != nullptr && reason.empty();
  });
}

const char* pasa_last_error(void) { return last_error; }
const char* pasa_status_name(pasa_status status) {
  return status >= 0 && static_cast<std::size_t>(status) < std::size(kStatusNames) ? kStatusNames[status] : "unknown";
}
const char* pasa_version(void) { return PASA_VERSION; }

}  // extern "C"
