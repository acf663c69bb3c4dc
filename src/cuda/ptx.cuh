// One thin function per PTX instruction that the Hopper kernels use, named after it. Nothing here knows about attention.
//
// Shared memory is addressed by its 32-bit window address: smem_address() of a pointer, or map_to_rank() of that for the same
// place in another block of the cluster. docs: the PTX ISA of CUDA 13, sections by instruction name.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/tile.cuh"

namespace pasa::cuda::ptx {

__device__ inline std::uint32_t smem_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier: phases that complete when `count` arrivals and all announced bytes are in -------------------------------

__device__ inline void mbarrier_init(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the cluster and to the copy engine.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the phase of this parity.
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- order, barriers, clusters -----------------------------------------------------------------------------------------

// Earlier ordinary accesses of this thread come before later ones of the tensor cores and the copy engine.
__device__ inline void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int kBarrier, int kThreads>
__device__ inline void bar_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

__device__ inline void barrier_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void barrier_cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ inline std::uint32_t cluster_ctarank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline std::uint32_t map_to_rank(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- loads and stores --------------------------------------------------------------------------------------------------

// 16 bytes that are read once: not kept in L1.
__device__ inline uint4 ld_global_nc_no_allocate(const void* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

__device__ inline void st_shared(std::uint32_t to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ inline void st_shared(std::uint32_t to, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void st_shared(std::uint32_t to, uint2 x) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x.x), "r"(x.y) : "memory");
}
__device__ inline void st_shared(std::uint32_t to, float2 x) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x.x), "f"(x.y) : "memory");
}

__device__ inline uint4 ld_shared(std::uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

__device__ inline float4 ld_shared_cluster4(std::uint32_t from) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
__device__ inline float2 ld_shared_cluster2(std::uint32_t from) {
  float2 x;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

// Four 8 x 8 matrices of 16-bit elements; lane l holds the address of row l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4(std::uint32_t row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                   std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// 16 bytes to shared memory behind this thread's back, zeros if `bytes` is 0; waited for by groups.
__device__ inline void cp_async_16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// One box of a tensor map (a __grid_constant__ of the kernel) to shared memory; the barrier counts the bytes.
__device__ inline void cp_async_bulk_tensor_3d(std::uint32_t to, const void* map, int x, int y, int z,
                                               std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
__device__ inline void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Kernels that this one's stream successor overlaps with: it may start, it waits for this one's end by itself.
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- arithmetic --------------------------------------------------------------------------------------------------------

__device__ inline float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Bytes of x picked by the selector's four digits; a digit of 8 + i gives byte i's sign, eight times.
template <std::uint32_t kSelector>
__device__ inline std::uint32_t prmt(std::uint32_t x) {
  std::uint32_t y;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(x), "n"(kSelector));
  return y;
}

// {low, high} rounded to bf16.
__device__ inline std::uint32_t cvt_bf16x2(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline std::uint32_t mul_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ inline std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

// A value the compiler cannot trace: what follows from it is computed here, not kept in registers from outside a loop.
__device__ inline std::uint32_t opaque(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// True in one lane of the (whole) warp; cheaper than asking for the lane's number.
__device__ inline bool elect_sync() {
  std::uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(elected));
  return elected != 0;
}

// A value that is the same in the whole warp, and known to be.
__device__ inline std::uint32_t uniform(std::uint32_t x) { return __shfl_sync(~0u, x, 0); }

// ---- wgmma: a warpgroup's matrix product; the accumulator is the usual m64 fragment: thread (warp w, lane l) holds in
// d[4j + 2r + c] row 16w + l/4 + 8r, column 8j + 2(l%4) + c --------------------------------------------------------------

// Before the first wgmma and after registers that one reads were written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kPending groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Binds the fragment to this place: nothing that reads or writes it moves across. Goes behind every wait.
template <int kSize>
__device__ inline void wgmma_touch(float (&d)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d[64, 64] (+)= A[64, 16] B[16, 64]; a and b are low words of descriptors (tile.cuh).
template <int kTransposeB>
__device__ inline void wgmma_m64n64k16(float (&d)[32], std::uint32_t a, std::uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"
      "mov.b64 a, {%32, %34};\nmov.b64 b, {%33, %34};\n"
      "setp.ne.b32 p, %35, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, a, b, p, 1, 1, 0, %36;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), "n"(kTransposeB));
}

// d[64, 128] (+)= A[64, 16] B[16, 128]; d's registers are those of a larger fragment from kFrom on.
template <int kTransposeB, int kFrom, int kSize>
__device__ inline void wgmma_m64n128k16(float (&d)[kSize], std::uint32_t a, std::uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"
      "mov.b64 a, {%64, %66};\nmov.b64 b, {%65, %66};\n"
      "setp.ne.b32 p, %67, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, a, b, p, 1, 1, 0, %68;\n}\n"
      : "+f"(d[kFrom]), "+f"(d[kFrom + 1]), "+f"(d[kFrom + 2]), "+f"(d[kFrom + 3]), "+f"(d[kFrom + 4]),
        "+f"(d[kFrom + 5]), "+f"(d[kFrom + 6]), "+f"(d[kFrom + 7]), "+f"(d[kFrom + 8]), "+f"(d[kFrom + 9]),
        "+f"(d[kFrom + 10]), "+f"(d[kFrom + 11]), "+f"(d[kFrom + 12]), "+f"(d[kFrom + 13]), "+f"(d[kFrom + 14]),
        "+f"(d[kFrom + 15]), "+f"(d[kFrom + 16]), "+f"(d[kFrom + 17]), "+f"(d[kFrom + 18]), "+f"(d[kFrom + 19]),
        "+f"(d[kFrom + 20]), "+f"(d[kFrom + 21]), "+f"(d[kFrom + 22]), "+f"(d[kFrom + 23]), "+f"(d[kFrom + 24]),
        "+f"(d[kFrom + 25]), "+f"(d[kFrom + 26]), "+f"(d[kFrom + 27]), "+f"(d[kFrom + 28]), "+f"(d[kFrom + 29]),
        "+f"(d[kFrom + 30]), "+f"(d[kFrom + 31]), "+f"(d[kFrom + 32]), "+f"(d[kFrom + 33]), "+f"(d[kFrom + 34]),
        "+f"(d[kFrom + 35]), "+f"(d[kFrom + 36]), "+f"(d[kFrom + 37]), "+f"(d[kFrom + 38]), "+f"(d[kFrom + 39]),
        "+f"(d[kFrom + 40]), "+f"(d[kFrom + 41]), "+f"(d[kFrom + 42]), "+f"(d[kFrom + 43]), "+f"(d[kFrom + 44]),
        "+f"(d[kFrom + 45]), "+f"(d[kFrom + 46]), "+f"(d[kFrom + 47]), "+f"(d[kFrom + 48]), "+f"(d[kFrom + 49]),
        "+f"(d[kFrom + 50]), "+f"(d[kFrom + 51]), "+f"(d[kFrom + 52]), "+f"(d[kFrom + 53]), "+f"(d[kFrom + 54]),
        "+f"(d[kFrom + 55]), "+f"(d[kFrom + 56]), "+f"(d[kFrom + 57]), "+f"(d[kFrom + 58]), "+f"(d[kFrom + 59]),
        "+f"(d[kFrom + 60]), "+f"(d[kFrom + 61]), "+f"(d[kFrom + 62]), "+f"(d[kFrom + 63])
      : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), "n"(kTransposeB));
}

}  // namespace pasa::cuda::ptx
