// A shortcut of the Python package: are the tensors of a call described as those of an earlier call? Then the problem that
// the earlier one left needs only their addresses, and its plan is run. torch shows its tensors to C code (DLPack's exchange
// API, from torch 2.10 on) in some tens of nanoseconds each; asked in Python, each takes ten times that.
//
// The library links neither Python nor torch: the package (python/pasa/_tensor.py) hands in the functions that are needed.
#include <cstddef>
#include <cstdint>

#include "pasa/pasa.h"

namespace pasa::python {

// DLPack's view of a tensor.
struct View {
  char* data;
  std::int32_t device, device_index;
  std::int32_t rank;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  const std::int64_t* shape;
  const std::int64_t* stride;
  std::uint64_t byte_offset;
};

enum : std::int32_t { kHost = 1, kCuda = 2, kRocm = 10 };  // DLPack's devices

// What is needed of Python and torch. view takes tensors of these two types; a result of view and stream other than 0 says
// that a Python exception is set.
struct Functions {
  void* (*item)(void* tuple, std::ptrdiff_t index);  // borrowed
  void* (*type)(void* object);                       // a new reference
  void (*release)(void* object);
  void* (*unlock)();  // lets other threads of Python run
  void (*lock)(void* thread);
  int (*view)(void* tensor, View* view);
  int (*stream)(std::int32_t device, std::int32_t device_index, void** stream);  // the current one
  void *tensor, *parameter;
  void* none;
};

// A prepared call.
struct Call {
  const Functions* functions;
  const pasa_plan* plan;
  char* problem;
  void* workspace;
  std::size_t workspace_bytes;
  const std::int32_t*
      offsets;  // of pasa_tensors in the problem, in the order of the tuples; -1: the call makes this one
  std::int32_t count;
  std::int32_t device, device_index;
};

enum Outcome : int { kBound = 0, kException = -1, kOther = -2 };  // kException: Python has one

namespace {

int dtype_of(const View& view) {
  switch (view.lanes == 1 ? view.code << 8 | view.bits : -1) {
    case 0 << 8 | 8:
      return PASA_I8;
    case 0 << 8 | 32:
      return PASA_I32;
    case 0 << 8 | 64:
      return PASA_I64;
    case 1 << 8 | 8:
      return PASA_U8;
    case 2 << 8 | 16:
      return PASA_F16;
    case 2 << 8 | 32:
      return PASA_F32;
    case 4 << 8 | 16:
      return PASA_BF16;
    case 10 << 8 | 8:
      return PASA_F8_E4M3FN;
    case 11 << 8 | 8:
      return PASA_F8_E4M3FNUZ;
    default:
      return -1;
  }
}

int device_of(const View& view) {
  return view.device == kHost ? PASA_CPU : view.device == kCuda ? PASA_CUDA : view.device == kRocm ? PASA_HIP : -1;
}

bool describes(const pasa_tensor& tensor, const View& view) {
  if (tensor.rank != view.rank || tensor.dtype != dtype_of(view) || tensor.device != device_of(view)) return false;
  if (tensor.device != PASA_CPU && tensor.device_index != view.device_index) return false;
  bool empty = false;
  for (int i = 0; i < view.rank; ++i) {
    if (tensor.shape[i] != view.shape[i] || tensor.stride[i] != view.stride[i]) return false;
    empty = empty || view.shape[i] == 0;
  }
  return view.data != nullptr || empty;  // torch's "meta" tensors pass for host tensors without memory
}

// Writes the tensors' addresses into the problem if each is described as the one there; None stands for an absent one.
Outcome bind(const Call& call, void* tuple) {
  constexpr int kMost = 32;
  void* addresses[kMost];
  const Functions& functions = *call.functions;
  const auto tensor_at = [&](int i) {
    return call.offsets[i] < 0 ? nullptr : reinterpret_cast<pasa_tensor*>(call.problem + call.offsets[i]);
  };
  if (call.count > kMost) return kOther;
  for (int i = 0; i < call.count; ++i) {
    void* const object = functions.item(tuple, i);
    if (!object) return kException;
    const pasa_tensor* const tensor = tensor_at(i);
    addresses[i] = nullptr;
    if (object == functions.none) {
      if (tensor && tensor->rank != 0) return kOther;
      continue;
    }
    if (!tensor) return kOther;
    void* const type = functions.type(object);
    functions.release(type);
    if (type != functions.tensor && type != functions.parameter) return kOther;
    View view{};
    if (functions.view(object, &view) != 0) return kException;
    if (!describes(*tensor, view)) return kOther;
    addresses[i] = view.data + view.byte_offset;
  }
  for (int i = 0; i < call.count; ++i) {
    if (pasa_tensor* const tensor = tensor_at(i)) tensor->data = addresses[i];
  }
  return kBound;
}

}  // namespace
}  // namespace pasa::python

using namespace pasa::python;

// Both need Python's lock. A negative outcome: nothing was written or run.
extern "C" {

PASA_API int pasa_python_bind(const Call* call, void* tuple) { return bind(*call, tuple); }

// Binds a tuple, unless it is None, and runs the plan on the current stream. Returns an Outcome below 0 or a pasa_status.
PASA_API int pasa_python_run(const Call* call, void* tuple) {
  const Functions& functions = *call->functions;
  void* stream = nullptr;
  if (tuple != functions.none) {
    if (const Outcome outcome = bind(*call, tuple); outcome != kBound) return outcome;
  }
  if (call->device != kHost && functions.stream(call->device, call->device_index, &stream) != 0) return kException;
  void* const thread = functions.unlock();
  const auto* const problem = reinterpret_cast<const pasa_problem*>(call->problem);
  const pasa_status status = pasa_run(call->plan, problem, call->workspace, call->workspace_bytes, stream);
  functions.lock(thread);
  return status;
}

}  // extern "C"
