// Merging two attention results. exp and log1p are written out, in double and from exact operations alone, so that every
// device gives the same bits; tests hold them to the C library's.
#pragma once

#include <bit>
#include <cstdint>

#include "core/format.h"
#include "core/number.h"

namespace pasa::ops {

// e^x for x <= 0: x = n ln 2 + r with |r| <= 0.35, then a Taylor series and 2^n.
constexpr double exp_of(double x) {
  if (!(x > -700.0)) return x == x ? 0.0 : x;
  const double n = (x * 0x1.71547652b82fep+0 + 0x1.8p52) - 0x1.8p52;
  const double r = (x - n * 0x1.62e42fefap-1) - n * 0x1.cf79abc9e3b39p-40;
  double sum = 1.0;
  for (int k = 14; k > 0; --k) sum = 1.0 + sum * r * (1.0 / k);
  return sum * std::bit_cast<double>(static_cast<std::uint64_t>(1023 + static_cast<std::int64_t>(n)) << 52);
}

// ln(1 + w) for 0 <= w <= 1: 2 artanh(s) with s = w / (2 + w) <= 1/3.
constexpr double log1p_of(double w) {
  const double s = w / (2.0 + w), s2 = s * s;
  double sum = 0.0;
  for (int k = 35; k > 0; k -= 2) sum = 1.0 / k + s2 * sum;
  return 2.0 * s * sum;
}

struct MergeWeights {
  float a, b;         // out = a * out_a + b * out_b
  bool use_a, use_b;  // a row without keys is not looked at, whatever it holds
  float lse;
};

constexpr MergeWeights merge_weights(float lse_a, float lse_b, float sink) {
  const auto empty = [](float lse) { return lse == kInfinity || lse == -kInfinity; };
  const bool use_a = !empty(lse_a), use_b = !empty(lse_b);
  if (!use_a && !use_b) return {0, 0, false, false, -kInfinity};
  // A NaN stands for itself in every comparison below and so reaches the result.
  const double a = lse_a, b = lse_b;
  const double top = !use_b || (use_a && a > b) ? a : b, low = top == a ? b : a;
  const double lse = use_a && use_b ? top + log1p_of(exp_of(low - top)) : top;
  if (sink == kInfinity) return {0, 0, false, false, static_cast<float>(lse)};
  const double peak = sink > top ? static_cast<double>(sink) : top;
  const double weight_a = use_a ? exp_of(a - peak) : 0.0, weight_b = use_b ? exp_of(b - peak) : 0.0;
  const double sum = weight_a + weight_b + (sink == -kInfinity ? 0.0 : exp_of(sink - peak));
  return {static_cast<float>(weight_a / sum), static_cast<float>(weight_b / sum), use_a, use_b,
          static_cast<float>(lse)};
}

// One NaN, where devices differ in the bits that arithmetic gives.
constexpr float canonical(float x) { return is_nan(x) ? kNan : x; }

// A [T, H, ...] tensor.
template <typename Data>
struct Rows {
  Data* data;
  std::int64_t stride[2];  // elements
  constexpr std::int64_t at(std::int64_t token, std::int64_t head) const {
    return token * stride[0] + head * stride[1];
  }
};

struct Merge {
  std::int64_t tokens, heads;
  Rows<const void> out_a, out_b;
  Rows<void> out;
  pasa_dtype dtype_a, dtype_b, dtype;  // BF16, F16 or F32
  Rows<const float> lse_a, lse_b;
  Rows<float> lse;  // data may be nullptr
  const float* sink;
  int alignment;  // of every row of 512: 2..16 bytes

  constexpr MergeWeights weights(std::int64_t t, std::int64_t h) const {
    return merge_weights(lse_a.data[lse_a.at(t, h)], lse_b.data[lse_b.at(t, h)], sink ? sink[h] : -kInfinity);
  }
};

constexpr float load(const void* data, pasa_dtype dtype, std::int64_t i) {
  if (dtype == PASA_F32) return static_cast<const float*>(data)[i];
  const std::uint16_t word = static_cast<const std::uint16_t*>(data)[i];
  return dtype == PASA_BF16 ? bf16_to_float(word) : f16_to_float(word);
}

constexpr void store(void* data, pasa_dtype dtype, std::int64_t i, float x) {
  if (dtype == PASA_F32) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<std::uint16_t*>(data)[i] = dtype == PASA_BF16 ? float_to_bf16(x) : float_to_f16(x);
  }
}

// A component; that of a row without keys is given as 0.
constexpr float merged(const MergeWeights& w, float a, float b) { return canonical(w.a * a + w.b * b); }

}  // namespace pasa::ops
