// What compute-sanitizer's racecheck makes of an arrival for a warp: 32 lanes write a word each, another warp reads them behind
// an mbarrier. tests/cuda/run_on_gpu.sh runs it under racecheck.
//
//   racecheck_pattern lanes   every lane arrives
//   racecheck_pattern warp    __syncwarp, then one lane arrives for all: what the Hopper kernels do (fragment.cuh, release())
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

__device__ std::uint32_t address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__global__ void hand_over(bool every_lane, int* out) {
  __shared__ int data[32];
  __shared__ alignas(8) std::uint64_t barrier;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&barrier)), "r"(every_lane ? 32 : 1)
                 : "memory");
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = 3 * lane;
    __syncwarp();
    if (every_lane || lane == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&barrier)) : "memory");
    }
  } else {
    asm volatile(
        "{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra wait;\n}\n" ::"r"(
            address(&barrier))
        : "memory");
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
