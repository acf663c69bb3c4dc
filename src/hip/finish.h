// core/softmax.h's finish() with the device's exp2 and log2: a row's factor and lse from its maximum and sum.
#pragma once

#include "core/number.h"
#include "hip/isa.h"

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

struct Finish {
  float scale;  // factor for acc; 0 if the row is empty or the sink is +inf
  float lse;    // natural, without the sink; -inf for an empty row
};

inline Finish finish(float m, float l, float sink) {
  if (l == 0.0f) return {0.0f, kMinusInf};
  const float lse = kLn2 * (m + log2_fast(l)), sink2 = sink * kLog2e;
  if (sink2 == kInfinity) return {0.0f, lse};
  const float top = sink2 > m ? sink2 : m;  // in this order a NaN sink gets into the denominator
  const float weight = m == kMinusInf ? 0.0f : exp2_fast(m - top);
  return {weight * reciprocal(l * weight + exp2_fast(sink2 - top)), lse};
}

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end
