// The float64 reference on the GPU, for problems too large for the one on the CPU: the grids that run on the device, and the
// benchmark's own check. It shares no line with the kernels beyond core/'s definition of a byte, is written for clarity, and
// is itself compared with the CPU's (tests/cuda/gpu_test.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "pasa/pasa.h"

namespace pasa {

// Dense, on the device; lse and max_logits may be nullptr.
struct DeviceReference {
  float* out;         // [T, H, 512]
  float* lse;         // [T, H]
  float* max_logits;  // [T, H]
};

// Every pointer of the problem is device memory. Enqueues; throws Error.
void device_reference(const pasa_problem& problem, const DeviceReference& result, cudaStream_t stream);

// How far a result is from it, over the rows there are: written to the device as ErrorSums, added up by one kernel.
struct ErrorSums {
  double squared_error, squared_reference;  // of out
  float largest_error;                      // |got - want| of out; NaN or an unequal infinity counts as infinite
  float largest_lse_error;
};
// `sums` is device memory, zeroed by the call.
void sum_errors(const pasa_problem& problem, const DeviceReference& want, ErrorSums* sums, cudaStream_t stream);

}  // namespace pasa
