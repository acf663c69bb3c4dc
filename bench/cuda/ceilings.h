// What this GPU can do at most in the parts of sparse attention, measured in the run that divides by it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace pasa::bench {

struct GpuCeilings {
  double copy_gbps = 0;    // 16-byte loads and stores, bytes read plus bytes written
  double gather_gbps = 0;  // 584-byte records in random order from the pool, read only
  double mma_tflops = 0;   // mma.sync m16n8k16 bf16, operands in registers, random data
  double launch_us = 0;    // an empty kernel in a chain of them, replayed as a graph
};

// bf16 matrix rate of an H200 on random data, as recorded 2026-11-29 with a library's 8192^3 product in a burst: what wgmma
// reaches and mma.sync does not.
constexpr double kMatmulTflops = 772;

// `pool` holds pool_bytes >= 2^30 of random bytes.
GpuCeilings measure_gpu_ceilings(const void* pool, std::size_t pool_bytes, cudaStream_t stream);

// The second of them alone; contents do not matter.
double measure_gpu_gather_gbps(const void* pool, std::size_t pool_bytes, cudaStream_t stream);

// Reads memory, so that L2 holds it and nothing else.
void read_through_l2(const void* data, std::size_t bytes, cudaStream_t stream);

}  // namespace pasa::bench
