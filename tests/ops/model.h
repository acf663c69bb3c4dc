// What the tests of the operations share: views, memory with canaries, and models of the number formats that are written
// from the specification (a search over all codes, exact comparisons in double) and use nothing of the library.
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "pasa/ops.h"
#include "tests/rig.h"

namespace pasa::test {

template <typename T>
constexpr pasa_dtype dtype_of() {
  if constexpr (std::is_same_v<T, std::int64_t>) return PASA_I64;
  if constexpr (std::is_same_v<T, std::int32_t>) return PASA_I32;
  if constexpr (std::is_same_v<T, float>) return PASA_F32;
  if constexpr (std::is_same_v<T, std::uint16_t>) return PASA_BF16;
  return PASA_U8;
}

template <typename T>
pasa_tensor view(const std::vector<T>& data, std::initializer_list<std::int64_t> shape) {
  return dense(const_cast<T*>(data.data()), dtype_of<T>(), shape);
}
template <typename T>
pasa_tensor view(const std::vector<T>& data) {
  return view(data, {static_cast<std::int64_t>(data.size())});
}

template <typename Args>
Args make() {
  Args args{};
  args.struct_size = sizeof args;
  return args;
}

// ---- numbers

enum class Flavour { kFn, kFnuz };

inline double fp8_value(Flavour f, int code) {
  const bool fnuz = f == Flavour::kFnuz;
  if (fnuz ? code == 0x80 : (code & 0x7f) == 0x7f) return std::nan("");
  const int bias = fnuz ? 8 : 7, exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, 1 - bias) : std::ldexp(1 + mantissa / 8.0, exponent - bias);
  return code & 0x80 ? -magnitude : magnitude;
}

// The nearest of all codes, the even one of two; the sign of a zero is x's where the flavour has one.
inline std::uint8_t fp8_code(Flavour f, double x) {
  const bool fnuz = f == Flavour::kFnuz;
  if (std::isnan(x)) return fnuz ? 0x80 : 0x7f;
  const double limit = fnuz ? 240 : 448, magnitude = std::min(std::fabs(x), limit);
  int best = 0;
  double distance = magnitude;
  for (int code = 1; code < 128; ++code) {
    const double value = fp8_value(f, code);
    if (std::isnan(value)) continue;
    const double d = std::fabs(value - magnitude);
    if (d < distance || (d == distance && code % 2 == 0)) {
      best = code;
      distance = d;
    }
  }
  if (std::signbit(x) && (best != 0 || !fnuz)) best |= 0x80;
  return static_cast<std::uint8_t>(best);
}

inline float bf16_value(std::uint16_t word) {
  const std::uint32_t bits = std::uint32_t{word} << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Nearest even, through the sums of two halves of the float; NaN as the library makes it (quiet, positive from a code).
inline std::uint16_t bf16_word(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  const std::uint32_t low = bits & 0xffff, high = bits >> 16;
  return static_cast<std::uint16_t>(high + (low > 0x8000 || (low == 0x8000 && (high & 1))));
}

// ---- quantisers: amax over the finite components, infinities counting as the largest finite number

inline double amax_of(const std::uint16_t* k, int count, double largest) {
  double amax = 0;
  for (int i = 0; i < count; ++i) {
    const double x = std::fabs(static_cast<double>(bf16_value(k[i])));
    if (!std::isnan(x)) amax = std::max(amax, std::min(x, largest));
  }
  return amax;
}

// 448 codes and 64 bf16; tail: 7 exponents and 0.
inline void model_ds_mla(const std::uint16_t* k, std::uint8_t* record, std::uint8_t* tail) {
  const double largest_bf16 = std::ldexp(255.0 / 128, 127);
  for (int group = 0; group < 7; ++group) {
    const double a = std::max(amax_of(k + 64 * group, 64, largest_bf16), static_cast<double>(1e-4f));
    int e = -200;
    while (a > std::ldexp(448.0, e)) ++e;
    tail[group] = static_cast<std::uint8_t>(std::min(std::max(e + 127, 0), 254));
    for (int d = 64 * group; d < 64 * (group + 1); ++d) {
      record[d] = fp8_code(Flavour::kFn, std::ldexp(static_cast<double>(bf16_value(k[d])), -e));
    }
  }
  tail[7] = 0;
  std::memcpy(record + 448, k + 448, 128);
}

inline void model_groups(Flavour f, const std::uint16_t* k, int group_size, double floor, bool power_of_two,
                         std::uint8_t* codes, float* scales) {
  const double largest_float = std::ldexp(2 - std::ldexp(1.0, -23), 127);
  const float limit = f == Flavour::kFn ? 448.0f : 240.0f;
  for (int group = 0; group < 512 / group_size; ++group) {
    const auto a = static_cast<float>(amax_of(k + group_size * group, group_size, largest_float));
    float scale = 0;
    if (power_of_two) {
      const double ratio = std::max(a / limit, 1e-4f);
      int e = -200;
      while (ratio > std::ldexp(1.0, e)) ++e;
      scale = static_cast<float>(std::ldexp(1.0, e));
    } else if (floor == 0) {
      scale = std::max(a / limit, 0x1p-126f);
    } else {
      scale = std::max(a, static_cast<float>(floor)) / limit;
    }
    scales[group] = scale;
    for (int d = group_size * group; d < group_size * (group + 1); ++d)
      codes[d] = fp8_code(f, bf16_value(k[d]) / scale);
  }
}

inline void model_uniform(Flavour f, const std::uint16_t* k, std::uint8_t* codes, float* scales) {
  model_groups(f, k, 64, 1e-12, false, codes, scales);
}

inline void model_v32(bool power_of_two, const std::uint16_t* k, std::uint8_t* record) {
  float scales[4];
  model_groups(Flavour::kFn, k, 128, 0, power_of_two, record, scales);
  std::memcpy(record + 512, scales, 16);
  std::memcpy(record + 528, k + 512, 128);
}

// ---- bytes

inline std::uint32_t crc32(const void* data, std::size_t size) {
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < size; ++i) {
    crc ^= static_cast<const std::uint8_t*>(data)[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

// Address space that is backed on first touch: for pools of many GiB.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::runtime_error("mmap");
  }
  ~Sparse() { munmap(data_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

// The golden vector of the specification: (((37 d) mod 101) - 50) / 16 * 2^-(d div 64), exact in bf16.
inline std::vector<std::uint16_t> golden_key(int dim) {
  std::vector<std::uint16_t> k;
  for (int d = 0; d < dim; ++d)
    k.push_back(bf16_word(static_cast<float>(std::ldexp((37 * d % 101 - 50) / 16.0, -(d / 64)))));
  return k;
}

}  // namespace pasa::test
