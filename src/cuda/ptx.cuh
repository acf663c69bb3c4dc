// One thin function per PTX instruction that the Hopper kernels use, named after it. Nothing here knows about attention.
//
// Shared memory is addressed by its 32-bit window address: smem_address() of a pointer, or map_to_rank() of that for the same
// place in another block of the cluster. docs: the PTX ISA of CUDA 13, sections by instruction name.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/format.h"
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

// At a barrier of any block of the cluster (map_to_rank). No release at cluster scope: that would wait for all of this thread's
// stores to memory, and says no more where only reads, which are over, are to be known of.
__device__ inline void mbarrier_arrive_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
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

__device__ inline void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same for threads that may meet from several places of the code: bar.sync is barrier.sync.aligned.
template <int kBarrier, int kThreads>
__device__ inline void barrier_sync() {
  asm volatile("barrier.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// bar.sync that also tells everyone whether `mine` holds in any of the threads.
template <int kBarrier, int kThreads>
__device__ inline bool bar_red_or(bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.s32 q, %1, 0;\n"
      "bar.red.or.pred p, %2, %3, q;\n"
      "selp.s32 %0, 1, 0, p;\n}\n"
      : "=r"(any)
      : "r"(static_cast<int>(mine)), "n"(kBarrier), "n"(kThreads)
      : "memory");
  return any != 0;
}

__device__ inline void barrier_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void barrier_cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ inline std::uint32_t map_to_rank(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// This block's rank in its cluster, its cluster's number, and how many there are, along x.
__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t x;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return x;
}
__device__ inline std::uint32_t cluster_index() {
  std::uint32_t x;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(x));
  return x;
}
__device__ inline std::uint32_t cluster_count() {
  std::uint32_t x;
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(x));
  return x;
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
__device__ inline void st_shared_byte(std::uint32_t to, std::uint32_t x) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(x) : "memory");
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

// To the shared memory of a block of the cluster, behind this thread's back; a barrier of that block counts the bytes.
__device__ inline void st_async(std::uint32_t to, std::uint32_t barrier, float4 x) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
__device__ inline void st_async(std::uint32_t to, std::uint32_t barrier, float x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(x),
               "r"(barrier)
               : "memory");
}
__device__ inline void st_async(std::uint32_t to, std::uint32_t barrier, float2 x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(x.x), "f"(x.y), "r"(barrier)
               : "memory");
}

// Past L1, which keeps nothing of it.
__device__ inline std::int32_t ld_relaxed(const std::int32_t* from) {
  std::int32_t x;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from));
  return x;
}

// Soon to be read; legal before this kernel may read it.
// Predicated, not branched around: a branch would be a divergent one.
__device__ inline void prefetch_l2(const void* from, bool when = true) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p prefetch.global.L2 [%0];\n}\n" ::"l"(from),
               "r"(static_cast<int>(when)));
}

// The same by the copy engine; address and size are multiples of 16 bytes.
__device__ inline void prefetch_l2_bulk(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

// Four 8 x 8 matrices of 16-bit elements; lane l holds the address of row l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4(std::uint32_t row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                   std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// The first two of them, transposed: memory row i receives column i of the fragment.
__device__ inline void stmatrix_x2_trans(std::uint32_t row, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(a), "r"(b) : "memory");
}

// The inverse: matrix i's two neighbours of row l / 4, columns 2 (l % 4) and + 1, to to[i].
__device__ inline void ldmatrix_x4(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// The same with every matrix transposed: memory row i receives column i of the fragment.
__device__ inline void stmatrix_x4_trans(std::uint32_t row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                         std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// 16 bytes to shared memory behind this thread's back, zeros if `bytes` is 0; waited for by groups.
__device__ inline void cp_async_16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// One arrival, announced by the barrier's count, when this thread's copies so far are in.
__device__ inline void cp_async_mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// One box of a tensor map (a __grid_constant__ of the kernel) to shared memory; the barrier counts the bytes.
__device__ inline void cp_async_bulk_tensor_4d(std::uint32_t to, const void* map, int x, int y, int z, int w,
                                               std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}
// Has L2 ask for it.
__device__ inline void prefetch_tensor_4d(const void* map, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y),
               "r"(z), "r"(w));
}
// The same the other way; done when the group that it is committed to has read shared memory, then has been written.
__device__ inline void cp_async_bulk_tensor_4d_store(const void* map, int x, int y, int z, int w, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
               "r"(x), "r"(y), "r"(z), "r"(w), "r"(from)
               : "memory");
}
__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all groups of this thread have read shared memory.
__device__ inline void cp_async_bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The end of the kernel before this one in its stream, and all it wrote.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
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
// Four bytes of x (0 to 3) and y (4 to 7).
__device__ inline std::uint32_t prmt(std::uint32_t x, std::uint32_t y, std::uint32_t selector) {
  std::uint32_t z;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(selector));
  return z;
}

// {low, high} rounded to bf16.
__device__ inline std::uint32_t cvt_bf16x2(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline std::uint32_t cvt_f16x2(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
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

__device__ inline const std::uint8_t* opaque(const std::uint8_t* x) {
  asm volatile("" : "+l"(x));
  return x;
}

// 0, but only when x is known.
__device__ inline std::uint32_t zero_behind(std::uint32_t x) { return x & blockIdx.y; }

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
__device__ inline std::uint32_t uniform(std::uint32_t x) { return __reduce_or_sync(~0u, x); }

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

// d[64, N] (+)= A[64, 16] B[16, N]. a and b are low words of descriptors (tile.cuh); d's registers are those of a larger fragment
// from kFrom on. The operand lists of the instructions, 8 registers at a time:
#define PASA_D8(i)                                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define PASA_D32(i) PASA_D8(i), PASA_D8(i + 8), PASA_D8(i + 16), PASA_D8(i + 24)
#define PASA_NAMES8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PASA_NAMES16 PASA_NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PASA_NAMES32 PASA_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PASA_NAMES64                                                              \
  PASA_NAMES32                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
  "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

template <int kTransposeB, Word16 kWord = Word16::kBf16>
__device__ inline void wgmma_m64n64k16(float (&d)[32], std::uint32_t a, std::uint32_t b, bool accumulate) {
#define PASA_WGMMA(type)                                                                                    \
  asm volatile(                                                                                             \
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"                                                                 \
      "mov.b64 a, {%32, %34};\nmov.b64 b, {%33, %34};\n"                                                    \
      "setp.ne.b32 p, %35, 0;\n"                                                                            \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type " {" PASA_NAMES32 "}, a, b, p, 1, 1, 0, %36;\n}\n" \
      : PASA_D32(0)                                                                                         \
      : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), "n"(kTransposeB))
  if constexpr (kWord == Word16::kBf16) PASA_WGMMA("bf16.bf16");
  if constexpr (kWord == Word16::kF16) PASA_WGMMA("f16.f16");
#undef PASA_WGMMA
}

// The same with A's fragment in registers: rows and columns as d's, two neighbours a register, {row l/4, + 8} x {column 2(l%4), + 8}.
template <int kTransposeB, Word16 kWord = Word16::kBf16>
__device__ inline void wgmma_m64n64k16(float (&d)[32], const std::uint32_t (&a)[4], std::uint32_t b, bool accumulate) {
#define PASA_WGMMA(type)                                                                                             \
  asm volatile(                                                                                                      \
      "{\n.reg .pred p;\n.reg .b64 b;\n"                                                                             \
      "mov.b64 b, {%36, %37};\n"                                                                                     \
      "setp.ne.b32 p, %38, 0;\n"                                                                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type " {" PASA_NAMES32                                           \
      "}, {%32, %33, %34, %35}, b, p, 1, 1, %39;\n}\n"                                                               \
      : PASA_D32(0)                                                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), \
        "n"(kTransposeB))
  if constexpr (kWord == Word16::kBf16) PASA_WGMMA("bf16.bf16");
  if constexpr (kWord == Word16::kF16) PASA_WGMMA("f16.f16");
#undef PASA_WGMMA
}

template <int kTransposeB, int kFrom, Word16 kWord = Word16::kBf16, int kSize>
__device__ inline void wgmma_m64n128k16(float (&d)[kSize], std::uint32_t a, std::uint32_t b, bool accumulate) {
#define PASA_WGMMA(type)                                                                                     \
  asm volatile(                                                                                              \
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"                                                                  \
      "mov.b64 a, {%64, %66};\nmov.b64 b, {%65, %66};\n"                                                     \
      "setp.ne.b32 p, %67, 0;\n"                                                                             \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type " {" PASA_NAMES64 "}, a, b, p, 1, 1, 0, %68;\n}\n" \
      : PASA_D32(kFrom), PASA_D32(kFrom + 32)                                                                \
      : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), "n"(kTransposeB))
  if constexpr (kWord == Word16::kBf16) PASA_WGMMA("bf16.bf16");
  if constexpr (kWord == Word16::kF16) PASA_WGMMA("f16.f16");
#undef PASA_WGMMA
}
template <int kTransposeB, int kFrom, Word16 kWord = Word16::kBf16, int kSize>
__device__ inline void wgmma_m64n128k16(float (&d)[kSize], const std::uint32_t (&a)[4], std::uint32_t b,
                                        bool accumulate) {
#define PASA_WGMMA(type)                                                                                             \
  asm volatile(                                                                                                      \
      "{\n.reg .pred p;\n.reg .b64 b;\n"                                                                             \
      "mov.b64 b, {%68, %69};\n"                                                                                     \
      "setp.ne.b32 p, %70, 0;\n"                                                                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type " {" PASA_NAMES64                                          \
      "}, {%64, %65, %66, %67}, b, p, 1, 1, %71;\n}\n"                                                               \
      : PASA_D32(kFrom), PASA_D32(kFrom + 32)                                                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), \
        "n"(kTransposeB))
  if constexpr (kWord == Word16::kBf16) PASA_WGMMA("bf16.bf16");
  if constexpr (kWord == Word16::kF16) PASA_WGMMA("f16.f16");
#undef PASA_WGMMA
}

// For few columns, 8, 16 or 32; kTransposeA: A's 64 rows lie along the memory's rows.
template <int kColumns, int kTransposeA>
__device__ inline void wgmma_m64k16(float (&d)[kColumns / 2], std::uint32_t a, std::uint32_t b, bool accumulate) {
  static_assert(kColumns == 8 || kColumns == 16 || kColumns == 32);
  if constexpr (kColumns == 8) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\n"
        "mov.b64 a, {%4, %6};\nmov.b64 b, {%5, %6};\n"
        "setp.ne.b32 p, %7, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, a, b, p, 1, 1, %8, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), "n"(kTransposeA));
  } else if constexpr (kColumns == 16) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\n"
        "mov.b64 a, {%8, %10};\nmov.b64 b, {%9, %10};\n"
        "setp.ne.b32 p, %11, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" PASA_NAMES8 "}, a, b, p, 1, 1, %12, 0;\n}\n"
        : PASA_D8(0)
        : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), "n"(kTransposeA));
  } else {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\n"
        "mov.b64 a, {%16, %18};\nmov.b64 b, {%17, %18};\n"
        "setp.ne.b32 p, %19, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" PASA_NAMES16 "}, a, b, p, 1, 1, %20, 0;\n}\n"
        : PASA_D8(0), PASA_D8(8)
        : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"(static_cast<int>(accumulate)), "n"(kTransposeA));
  }
}

#undef PASA_D8
#undef PASA_D32
#undef PASA_NAMES8
#undef PASA_NAMES16
#undef PASA_NAMES32
#undef PASA_NAMES64

}  // namespace pasa::cuda::ptx
