// What compute-sanitizer's racecheck makes of an arrival for a warp: 32 lanes write a word each, another warp reads them behind
// an mbarrier. tests/cuda/run_on_gpu.sh runs it under racecheck.
//
//   racecheck_pattern lanes   every lane arrives
//   racecheck_pattern warp    one lane arrives for all, behind __syncwarp: release() of the Hopper kernels (fragment.cuh)
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

#include "cuda/fragment.cuh"

using namespace pasa::cuda;

__global__ void hand_over(bool every_lane, int* out) {
  __shared__ int data[32];
  __shared__ alignas(8) std::uint64_t place;
  const std::uint32_t barrier = ptx::smem_address(&place);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) ptx::mbarrier_init(barrier, every_lane ? 32 : 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = 3 * lane;
    every_lane ? ptx::mbarrier_arrive(barrier) : release(barrier);
  } else {
    ptx::mbarrier_wait(barrier, 0);
    out[lane] = data[31 - lane];
  }
}

int main(int count, char** arguments) {
  const std::string_view who = count == 2 ? arguments[1] : "";
  if (who != "lanes" && who != "warp") return std::puts("racecheck_pattern lanes|warp"), 2;
  int *out = nullptr, got[32] = {};
  if (cudaMalloc(&out, sizeof got) != cudaSuccess) return std::puts("no GPU"), 1;
  hand_over<<<1, 64>>>(who == "lanes", out);
  if (cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost) != cudaSuccess) return std::puts("failed"), 1;
  for (int i = 0; i < 32; ++i) {
    if (got[i] != 3 * (31 - i)) return std::puts("wrong"), 1;
  }
  return std::puts("right"), 0;
}
