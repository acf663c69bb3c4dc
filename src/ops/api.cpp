// The extern "C" code of ops.h: check, then hand the call to the device its tensors are on.
#include "core/guard.h"
#include "ops/check.h"
#include "ops/run.h"
#include "pasa/ops.h"

namespace pasa::ops {
namespace {

template <typename Call>
void run(const Checked<Call>& checked, [[maybe_unused]] pasa_stream stream) {
  if (checked.place.device == PASA_CPU) return run_cpu(checked.call);
#ifdef PASA_WITH_CUDA
  if (checked.place.device == PASA_CUDA) return run_cuda(checked.call, checked.place.index, stream);
#endif
  throw Error(PASA_ERROR_UNSUPPORTED, "the tensors are on a device that this library was built without");
}

template <typename Args>
pasa_status call(const Args* args, pasa_stream stream) noexcept {
  return guarded([&] {
    require_argument(args, "args");
    run(check(*args), stream);
  });
}

}  // namespace
}  // namespace pasa::ops

using pasa::ops::call;

extern "C" {

pasa_status pasa_cache_write(const pasa_cache_write_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_cache_gather(const pasa_cache_gather_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_slots(const pasa_slots_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_token_counts(const pasa_token_counts_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_list_dense(const pasa_list_dense_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_list_topk(const pasa_list_topk_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_list_combine(const pasa_list_combine_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_list_compressed(const pasa_list_compressed_args* args, pasa_stream stream) {
  return call(args, stream);
}
pasa_status pasa_list_window(const pasa_list_window_args* args, pasa_stream stream) { return call(args, stream); }
pasa_status pasa_merge(const pasa_merge_args* args, pasa_stream stream) { return call(args, stream); }

}  // extern "C"
