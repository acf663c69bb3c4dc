// The running softmax in base 2, its merge, the sink, and what lse means. The same few lines serve every backend's
// epilogue and the merge of split rows; docs/math.md derives them.
#pragma once

#include <cmath>

#include "core/number.h"

namespace pasa {

// Over some keys: m = max s2, l = sum 2^(s2 - m), with s2 = score * log2 e. No key: m = -inf, l = 0.
struct Partial {
  float m;
  float l;
};

// The weight of a partial sum with maximum m when the common maximum is `top` >= m. Never NaN: an empty part has weight 0
// even if the common maximum is -inf too.
constexpr float merge_weight(float m, float top) { return m == -kInfinity ? 0.0f : std::exp2(m - top); }

// Finishes a row from its maximum and sum over all keys: out = acc * scale(), where acc = sum 2^(s2 - m) v.
struct Finish {
  float scale;  // factor for acc; 0 if the row is empty or the sink is +inf
  float lse;    // natural, without the sink; -inf for an empty row
};

// sink is in natural units; -inf means no sink. Any key with a NaN score makes l NaN and with it the row.
constexpr Finish finish(float m, float l, float sink) {
  if (l == 0.0f) return {0.0f, -kInfinity};
  const float lse = kLn2 * (m + std::log2(l));
  const float sink2 = sink * kLog2e;
  if (sink2 == kInfinity) return {0.0f, lse};
  // A common maximum keeps both exponents <= 0; max() in this order lets a NaN sink through to the denominator.
  const float top = sink2 > m ? sink2 : m;
  const float weight = merge_weight(m, top);
  return {weight / (l * weight + std::exp2(sink2 - top)), lse};
}

}  // namespace pasa
