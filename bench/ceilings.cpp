// The loops behind ceilings.h. Each runs on all threads of one OpenMP team between two barriers, several times; the best
// run counts, for a ceiling is what the machine can do. Wide instructions stand in functions with a target attribute, so
// this file is compiled for the baseline and asks the CPU before it calls them.
#include "bench/ceilings.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <sys/mman.h>

namespace pasa::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Hides a register from the optimiser: the loop around it can be neither folded nor hoisted.
#if defined(__x86_64__)
#define KEEP(v) asm volatile("" : "+v"(v))
#else
#define KEEP(v) asm volatile("" : "+w"(v))
#endif

int team(int threads) { return threads > 0 ? threads : omp_get_max_threads(); }

// work / seconds of the best run; body(thread) does `work` units on each thread.
double best_rate(int threads, double work, const std::function<void(int)>& body) {
  constexpr int kRuns = 9;
  double best = 0;
  Clock::time_point start;
#pragma omp parallel num_threads(threads)
  {
    body(omp_get_thread_num());  // warm up
    for (int run = 0; run < kRuns; ++run) {
#pragma omp barrier
#pragma omp master
      start = Clock::now();
#pragma omp barrier
      body(omp_get_thread_num());
#pragma omp barrier
#pragma omp master
      best = std::max(best, work * threads / std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  return best;
}

// The multiply-adds of `loops` rounds over eight independent sums (16 of the wider units: latency 4, two a cycle).
using V4 __attribute__((vector_size(16))) = float;
void portable_loop(int loops) {
  V4 sum[8] = {};
  V4 x = {0.5f, 0.5f, 0.5f, 0.5f};
  KEEP(x);
  for (int i = 0; i < loops; ++i) {
#pragma GCC unroll 8
    for (V4& s : sum) {
      s = s * x + x;
      KEEP(s);
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void avx2_loop(int loops) {
  __m256 sum[12];
  for (auto& s : sum) s = _mm256_set1_ps(1.0f);
  __m256 x = _mm256_set1_ps(0.5f);
  KEEP(x);
  for (int i = 0; i < loops; ++i) {
#pragma GCC unroll 12
    for (auto& s : sum) {
      s = _mm256_fmadd_ps(s, x, x);
      KEEP(s);
    }
  }
}

__attribute__((target("avx512f"))) void avx512_loop(int loops) {
  __m512 sum[16];
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  __m512 x = _mm512_set1_ps(0.5f);
  KEEP(x);
  for (int i = 0; i < loops; ++i) {
#pragma GCC unroll 16
    for (auto& s : sum) {
      s = _mm512_fmadd_ps(s, x, x);
      KEEP(s);
    }
  }
}

__attribute__((target("avx512f,avx512bf16"))) void avx512_bf16_loop(int loops) {
  __m512 sum[16];
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  auto x = (__m512bh)_mm512_set1_epi32(0x3f003f00);
  KEEP(x);
  for (int i = 0; i < loops; ++i) {
#pragma GCC unroll 16
    for (auto& s : sum) {
      s = _mm512_dpbf16_ps(s, x, x);
      KEEP(s);
    }
  }
}

// Tiles are written as assembly: compilers of every age take it, and no header decides which state is kept.
void configure_tiles() {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  asm volatile("tilezero %tmm0\n tilezero %tmm1\n tilezero %tmm2\n tilezero %tmm3");
  asm volatile("tilezero %tmm4\n tilezero %tmm5\n tilezero %tmm6\n tilezero %tmm7");
}

void amx_loop(int loops) {
  configure_tiles();
  for (int i = 0; i < loops; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm7, %tmm4, %tmm1\n"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
}

// 2 x 2 sums, their operands loaded from 16 KiB.
void amx_loaded_loop(int loops) {
  configure_tiles();
  alignas(64) static thread_local std::uint8_t operands[16 << 10];
  for (int i = 0; i < loops; ++i) {
    asm volatile(
        "tileloadd (%0,%1), %%tmm4\n tileloadd 1024(%0,%1), %%tmm6\n tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
        "tileloadd 2048(%0,%1), %%tmm7\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
        "tileloadd 3072(%0,%1), %%tmm5\n tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::"r"(
            operands + i % 4 * 4096),
        "r"(std::int64_t{64})
        : "memory");
  }
  asm volatile("tilerelease");
}

// The CPU has tiles, and Linux lets this process use them (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18).
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (1u << 22)) == 0 || (d & (1u << 24)) == 0) return false;
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
#endif

}  // namespace

Ceilings measure_ceilings(int threads) {
  Ceilings result{};
  result.threads = team(threads);
  constexpr int kLoops = 200000;
  const auto gflops = [&](double flops_per_loop, int loops, void (*loop)(int)) {
    return best_rate(result.threads, flops_per_loop * loops, [&](int) { loop(loops); }) * 1e-9;
  };
  result.portable_gflops = gflops(8 * 4 * 2, kLoops, portable_loop);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    result.avx2_gflops = gflops(12 * 8 * 2, kLoops, avx2_loop);
  }
  if (__builtin_cpu_supports("avx512f")) result.avx512_gflops = gflops(16 * 16 * 2, kLoops, avx512_loop);
  if (__builtin_cpu_supports("avx512bf16")) {
    result.avx512_bf16_gflops = gflops(16 * 32 * 2, kLoops, avx512_bf16_loop);
  }
  if (has_amx()) {
    constexpr double kFlops = 4 * 16 * 16 * 32 * 2;
    result.amx_gflops = gflops(kFlops, kLoops / 20, amx_loop);
    result.amx_loaded_gflops = gflops(kFlops, kLoops / 20, amx_loaded_loop);
  }
#endif
  return result;
}

double measure_gather_gbps(const std::uint8_t* pool, std::int64_t pool_bytes, int row_bytes, int threads) {
  constexpr std::size_t kRows = 1 << 14;
  const std::int64_t rows = pool_bytes / row_bytes;
  if (rows < 1) return 0;
  const int count = team(threads);
  std::vector<std::int64_t> offsets(kRows * static_cast<std::size_t>(count));
  std::uint64_t state = 88172645463325252u;
  for (auto& offset : offsets) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    offset = static_cast<std::int64_t>(state % static_cast<std::uint64_t>(rows)) * row_bytes;
  }
  return best_rate(count, static_cast<double>(kRows) * row_bytes,
                   [&](int thread) {
                     alignas(64) std::uint8_t row[64];
                     for (std::size_t i = 0; i < kRows; ++i) {
                       const std::uint8_t* from = pool + offsets[static_cast<std::size_t>(thread) * kRows + i];
                       // Line by line into one line of L1; the last one ends with the row.
                       for (int at = 0; at < row_bytes; at += 64) {
                         std::memcpy(row, from + std::max(0, std::min(at, row_bytes - 64)), 64);
                         asm volatile("" ::"r"(row) : "memory");
                       }
                     }
                   }) *
         1e-9;
}

double measure_gather_gbps(int row_bytes, std::int64_t pool_bytes, int threads) {
  // 2 MiB pages where the system grants them: else a large pool measures the page walker.
  const auto bytes = static_cast<std::size_t>(pool_bytes + (2 << 20)) & ~((std::size_t{2} << 20) - 1);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  const std::unique_ptr<void, std::function<void(void*)>> owner(memory, [&](void* p) { munmap(p, bytes); });
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return measure_gather_gbps(static_cast<const std::uint8_t*>(memory), pool_bytes, row_bytes, threads);
}

}  // namespace pasa::bench
