// What the checks ask of a pasa_tensor, and the words in which they report one. Only the description is looked at, never the
// data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "pasa/pasa.h"

namespace pasa {

// ---- words for messages; only formatted when a check fails

struct Dims {
  const pasa_tensor& t;
};
inline std::ostream& operator<<(std::ostream& out, Dims d) {
  out << '[';
  for (int i = 0; i < d.t.rank; ++i) out << (i ? ", " : "") << d.t.shape[i];
  return out << ']';
}

constexpr std::string_view kDtypeNames[] = {"none", "bf16",      "f16",         "f32", "u8",
                                            "i8",   "f8_e4m3fn", "f8_e4m3fnuz", "i32", "i64"};
struct Dtype {
  pasa_dtype value;
};
inline std::ostream& operator<<(std::ostream& out, Dtype d) {
  const auto index = static_cast<std::size_t>(d.value);
  return out << (index < std::size(kDtypeNames) ? kDtypeNames[index] : "an unknown dtype");
}

struct Place {
  pasa_device_type device;
  int index;
};
inline std::ostream& operator<<(std::ostream& out, Place p) {
  constexpr std::string_view names[] = {"cpu", "cuda", "hip"};
  out << (p.device >= PASA_CPU && p.device <= PASA_HIP ? names[p.device] : "an unknown device");
  if (p.device != PASA_CPU) out << ':' << p.index;
  return out;
}

// ---- tensors

inline bool present(const pasa_tensor& t) { return t.rank != 0; }

inline std::int64_t element_bytes(pasa_dtype dtype) {
  switch (dtype) {
    case PASA_BF16:
    case PASA_F16:
      return 2;
    case PASA_F32:
    case PASA_I32:
      return 4;
    case PASA_I64:
      return 8;
    default:
      return 1;
  }
}

inline bool empty(const pasa_tensor& t) {
  return std::any_of(t.shape, t.shape + t.rank, [](std::int64_t n) { return n == 0; });
}

// Equal but for the address.
inline bool described_alike(const pasa_tensor& a, const pasa_tensor& b) {
  if (a.rank != b.rank) return false;
  if (!present(a)) return true;
  return a.dtype == b.dtype && a.device == b.device && a.device_index == b.device_index &&
         std::equal(a.shape, a.shape + a.rank, b.shape) && std::equal(a.stride, a.stride + a.rank, b.stride);
}

// Strides of dimensions of size 1 mean nothing.
inline bool contiguous_from(const pasa_tensor& t, int first) {
  std::int64_t want = 1;
  for (int i = t.rank - 1; i >= first; --i) {
    if (t.shape[i] != 1 && t.stride[i] != want) return false;
    want *= t.shape[i];
  }
  return true;
}

// No two elements share an address: each stride clears the extent of all dimensions with smaller ones.
inline bool overlaps_itself(const pasa_tensor& t) {
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 1) continue;
    std::int64_t extent = 1;
    for (int j = 0; j < t.rank; ++j) {
      const bool inner = t.stride[j] < t.stride[i] || (t.stride[j] == t.stride[i] && j > i);
      if (inner) extent += t.stride[j] * (t.shape[j] - 1);
    }
    if (t.stride[i] < extent) return true;
  }
  return false;
}

// Whether every element's byte offset fits 62 bits, so that sums of a few such products stay in range.
inline bool addressable(const pasa_tensor& t) {
  for (int i = 0; i < t.rank; ++i) {
    std::int64_t span = 0;
    if (__builtin_mul_overflow(t.stride[i], t.shape[i], &span) || span > std::int64_t{1} << 59) return false;
  }
  return true;
}

inline bool negative_stride(const pasa_tensor& t) {
  return std::any_of(t.stride, t.stride + t.rank, [](std::int64_t s) { return s < 0; });
}

}  // namespace pasa
