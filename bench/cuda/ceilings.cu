// The loops behind ceilings.h: each runs a few times between events, the best counts.
#include "bench/cuda/ceilings.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/device.h"

namespace pasa::bench {
namespace {

using cuda::check;

__global__ void read_all(const uint4* from, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    // volatile down to the machine, or a load that nobody uses would go
    asm volatile("{ .reg .u32 a, b, c, d; ld.volatile.global.v4.u32 {a, b, c, d}, [%0]; }" ::"l"(from + i));
  }
}

__global__ void copy_all(const uint4* from, uint4* to, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = __ldg(from + i);
}

__device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Records as a packed page holds them: 576 bytes and, in the page's tail, 8 of scales. A warp takes eight records at a time,
// nine 16-byte loads a lane.
constexpr int kRecord = 576, kTail = 8, kPage = 256, kPageBytes = kPage * (kRecord + kTail);
__global__ void __launch_bounds__(512)
    gather(const std::uint8_t* pool, std::uint64_t records, int per_warp, std::uint64_t seed, std::uint32_t* sink) {
  const int lane = threadIdx.x % 32;
  const std::uint64_t warp = (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  std::uint32_t sum = 0;
  for (int i = 0; i < per_warp; i += 8) {
    const std::uint64_t mine = mix(seed + warp * 4096 + i + lane % 8) % records;  // lane j < 8 draws record j
    const std::uint64_t page = mine / kPage * kPageBytes, place = mine % kPage;
    uint4 x[9];
#pragma unroll
    for (int j = 0; j < 9; ++j) {
      const int chunk = j * 32 + lane, record = chunk / 36;
      const std::uint64_t at = __shfl_sync(~0u, page + place * kRecord, record);
      x[j] = __ldcg(reinterpret_cast<const uint4*>(pool + at) + chunk % 36);
    }
    if (lane < 8) {
      const uint2 scales = __ldcg(reinterpret_cast<const uint2*>(pool + page + kPage * kRecord + place * kTail));
      sum += scales.x ^ scales.y;
    }
#pragma unroll
    for (int j = 0; j < 9; ++j) sum += x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;  // keeps the loads
}

__global__ void __launch_bounds__(256) multiply(const std::uint32_t* random, int rounds, float* result) {
  std::uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = (random[threadIdx.x * 6 + i] & 0x807f807fu) | 0x3f003f00u;  // magnitudes 0.5 to 1
  for (int i = 0; i < 2; ++i) b[i] = (random[threadIdx.x * 6 + 4 + i] & 0x807f807fu) | 0x3f003f00u;
  float c[8][4] = {};
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  float sum = 0;
  for (const auto& tile : c) sum += tile[0] + tile[1] + tile[2] + tile[3];
  result[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void nothing() {}

int multiprocessors() {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  return cuda::device(index).sms;
}

template <typename Body>
double best_seconds(cudaStream_t stream, Body&& body) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  double best = 1e9;
  for (int i = 0; i < 6; ++i) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    body(i);
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (i > 0) best = std::min(best, milliseconds * 1e-3);
  }
  check(cudaGetLastError(), "ceilings");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace

void read_through_l2(const void* data, std::size_t bytes, cudaStream_t stream) {
  read_all<<<1024, 512, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16);
  check(cudaGetLastError(), "read_all");
}

double measure_gpu_gather_gbps(const void* pool, std::size_t pool_bytes, cudaStream_t stream) {
  constexpr int kPerWarp = 40;  // 132 SMs * 64 warps * 40 records: 338 k, as many as 293 rows of 1152 keys
  const unsigned blocks = static_cast<unsigned>(multiprocessors()) * 4;
  void* sink = nullptr;
  check(cudaMalloc(&sink, sizeof(std::uint32_t)), "cudaMalloc");
  const double seconds = best_seconds(stream, [&](int i) {
    gather<<<blocks, 512, 0, stream>>>(static_cast<const std::uint8_t*>(pool), pool_bytes / kPageBytes * kPage,
                                       kPerWarp, std::uint64_t{1} << (40 + i), static_cast<std::uint32_t*>(sink));
  });
  cudaFree(sink);
  return 1e-9 * blocks * 16.0 * kPerWarp * (kRecord + kTail) / seconds;
}

GpuCeilings measure_gpu_ceilings(const void* pool, std::size_t pool_bytes, cudaStream_t stream) {
  GpuCeilings c;
  const auto sms = static_cast<unsigned>(multiprocessors());
  const std::size_t half = std::min<std::size_t>(pool_bytes, std::size_t{2} << 30);
  void* room = nullptr;
  check(cudaMalloc(&room, half), "cudaMalloc");

  const double copy = best_seconds(stream, [&](int) {
    copy_all<<<sms * 4, 512, 0, stream>>>(static_cast<const uint4*>(pool), static_cast<uint4*>(room), half / 16);
  });
  c.copy_gbps = 2e-9 * static_cast<double>(half / 16 * 16) / copy;

  c.gather_gbps = measure_gpu_gather_gbps(pool, pool_bytes, stream);

  constexpr int kRounds = 4096;
  const double multiplied = best_seconds(stream, [&](int) {
    multiply<<<sms * 4, 256, 0, stream>>>(static_cast<const std::uint32_t*>(pool), kRounds, static_cast<float*>(room));
  });
  c.mma_tflops = 1e-12 * sms * 4.0 * 8 * kRounds * 8 * 2 * 16 * 8 * 16 / multiplied;

  constexpr int kChain = 200;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < kChain; ++i) nothing<<<1, 32, 0, stream>>>();
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  c.launch_us =
      1e6 / kChain * best_seconds(stream, [&](int) { check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"); });
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaFree(room);
  return c;
}

}  // namespace pasa::bench
