// A shortcut of the Python package: are the tensors of a call described as those of an earlier call? Then the problem that
// the earlier one left needs only their addresses. torch shows its tensors to C code (DLPack's exchange API, from torch 2.10
// on) in some tens of nanoseconds each; asked in Python, each takes ten times that.
//
// The library links neither Python nor torch: the package (python/pasa/_tensor.py) hands in the functions that are needed.
#include <cstddef>
#include <cstdint>

#include "pasa/pasa.h"

namespace {

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
  return view.device == 1 ? PASA_CPU : view.device == 2 ? PASA_CUDA : view.device == 10 ? PASA_HIP : -1;
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

}  // namespace

extern "C" {

// What is needed of Python and torch. Called with Python's lock held.
struct pasa_python {
  void* (*item)(void* tuple, std::ptrdiff_t index);  // borrowed
  void* (*type)(void* object);                       // a new reference
  void (*release)(void* object);
  int (*view)(void* tensor, View* view);  // of these types only; otherwise than 0: a Python exception is set
  void *tensor, *parameter;
  void* none;
};

// Writes the addresses of a tuple of tensors into the pasa_tensors at these offsets of a problem, if every tensor is
// described as there; None stands for an absent one and, with an offset of -1, for one that the call makes. Returns 1 if
// so, 0 if not, -1 if Python has an exception; then nothing is written.
PASA_API int pasa_python_rebind(const pasa_python* python, void* tuple, const std::int32_t* offsets, std::int32_t count,
                                char* problem) {
  constexpr int kMost = 32;
  void* addresses[kMost];
  if (count > kMost) return 0;
  for (int i = 0; i < count; ++i) {
    void* const object = python->item(tuple, i);
    const auto* tensor = offsets[i] < 0 ? nullptr : reinterpret_cast<const pasa_tensor*>(problem + offsets[i]);
    addresses[i] = nullptr;
    if (object == python->none) {
      if (tensor && tensor->rank != 0) return 0;
      continue;
    }
    if (!object || !tensor) return object ? 0 : -1;
    void* const type = python->type(object);
    python->release(type);
    if (type != python->tensor && type != python->parameter) return 0;
    View view{};
    if (python->view(object, &view) != 0) return -1;
    if (!describes(*tensor, view)) return 0;
    addresses[i] = view.data + view.byte_offset;
  }
  for (int i = 0; i < count; ++i) {
    if (offsets[i] >= 0) reinterpret_cast<pasa_tensor*>(problem + offsets[i])->data = addresses[i];
  }
  return 1;
}

}  // extern "C"
