// The definition of the operator, in float64: what every other kernel is compared with.
#pragma once

#include "core/problem.h"

namespace pasa {

// out [T, H, 512], lse [T, H] (natural, without the sink), max_logits [T, H]: contiguous, overwritten; the last two may be
// nullptr. The problem's own outputs are not touched.
void reference_attention(const Problem& problem, float* out, float* lse, float* max_logits);

}  // namespace pasa
