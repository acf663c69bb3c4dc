// The consumers of a block that serves up to 64 heads, two warpgroups:
//   scores    Q K^T (64 x 64), softmax, P V for the left half of the value dims
//   values    P V for the right half
// A tile is released by halves: the left half when `scores` has used it, the right half when `values` has. The tensor cores
// see P V(left, i), Q K^T(i + 1), P V(right, i), ...: `values` starts when Q K^T(i + 1) has ended, so its product runs under
// the softmax of i + 1.
//
// Budget of a 64-token tile at 64 heads, cycles: tensor cores 2048; device memory 2600 (its share of 37 KB); shared memory
// 2180 (tile written 512, Q and K read 1024, V read 512, P 130).
#pragma once

#include "cuda/decode.cuh"

namespace pasa::cuda {

template <int kDim>
using ManyHeads = Smem<kDim, kManyHeads>;

// O += P V: 64 heads by 256 value dims, from the panels at `v` on.
__device__ inline void start_product(float (&o)[128], std::uint32_t p, std::uint32_t v) {
  const std::uint32_t a = along_rows(p), b = down_columns(v);
  ptx::wgmma_touch(o);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kTileTokens / 16; ++step) {
    ptx::wgmma_m64n128k16<1, 0>(o, a + column_step(step), b + row_step(step), true);
    ptx::wgmma_m64n128k16<1, 64>(o, a + column_step(step), b + row_step(step) + (2 * kPanelBytes >> 4), true);
  }
  ptx::wgmma_commit_group();
}

// ---- values: one warpgroup -----------------------------------------------------------------------------------------------

template <int kDim>
__device__ void values(const Role& role, ManyHeads<kDim>& smem, Address<ManyHeads<kDim>> at) {
  ptx::barrier_cluster_wait();
  const Rows rows(threadIdx.x % kWarpgroup);
  float o[128];
  std::uint32_t use = 0;
  for (std::uint32_t item = role.first(); item < role.count(); item += role.step()) {
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    float factor[2] = {0, 0};
    for (bool last = false; !last; ++use) {
      const int tile = use % 2;
      const std::uint32_t keys = ptx::uniform(at.keys(tile));
      ptx::mbarrier_wait(at.p_full(), use % 2);
      wait_full(at.full(tile, 1), use / 2 % 2);
      last = smem.last != 0;
      const float rescale[2] = {smem.rescale[rows.at[0]], smem.rescale[rows.at[1]]};
      if (last) factor[0] = smem.finish[rows.at[0]], factor[1] = smem.finish[rows.at[1]];
      rescale_rows(o, rescale);
      start_product(o, at.p(), keys + 4 * kPanelBytes);
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      release(at.p_free());
      release(at.free(tile, 1));
    }
    if (role.merges()) ptx::barrier_sync<1, 2 * kWarpgroup>();  // no product reads the tiles any more
    write_half(1, role, item, at, o, factor);
    if (role.merges()) merge<2 * kWarpgroup>(role, item, smem, at);
  }
}

// ---- scores: one warpgroup -----------------------------------------------------------------------------------------------

// Behind a row's last tile.
template <int kDim>
__device__ void finish_rows(const Role& role, std::uint32_t i, ManyHeads<kDim>& smem, const Softmax& softmax) {
  const auto item = role.item(ptx::opaque(i));
  const Rows rows(threadIdx.x);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = softmax.row_sum(r), top = softmax.row_top(r);
    if (threadIdx.x % 4 == 0) finish_head(role, item, smem, rows.at[r], softmax.ref[r], top, sum);
  }
}

template <int kDim>
__device__ void scores(const Role& role, ManyHeads<kDim>& smem, Address<ManyHeads<kDim>> at, const CUtensorMap* q_map) {
  constexpr int kSteps = kDim / 16, kLeftSteps = kValueDim / 2 / 16;
  const int lane = threadIdx.x % 32;
  const Rows rows(threadIdx.x);
  ptx::barrier_cluster_wait();
  if (threadIdx.x == 0 && role.first() < role.count()) load_q(role, role.first(), q_map, at);

  float o[128];
  std::uint32_t use = 0, q_parity = 0;
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step()) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    ptx::mbarrier_wait(at.q_full(), q_parity);
    q_parity ^= 1;
    for (bool first = true, last = false; !last; first = false, ++use) {
      const std::uint32_t tile = use % 2, parity = use / 2 % 2, keys = ptx::uniform(at.keys(tile));
      const std::uint32_t a = along_rows(at.q()), b = along_rows(keys);

      float s[32];
      // S = Q K^T, in two halves of the sum as the converters finish them, behind the P V of the tile before.
      wait_full(at.full(tile, 0), parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kLeftSteps; ++step) {
        ptx::wgmma_m64n64k16<0>(s, a + column_step(step), b + column_step(step), step > 0);
      }
      wait_full(at.full(tile, 1), parity);
#pragma unroll
      for (int step = kLeftSteps; step < kSteps; ++step) {
        ptx::wgmma_m64n64k16<0>(s, a + column_step(step), b + column_step(step), true);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(s);
      ptx::wgmma_touch(o);
      if (!first) {
        release(at.free(tile ^ 1, 0));
        release(at.p_full());  // its product runs under this softmax
      }

      const auto* info = reinterpret_cast<const uint4*>(smem.info[tile]);
      const uint4 low = info[0], high = info[1];
      last = (low.x & kLast) != 0;
      if (last && i + role.step() < role.count()) {
        ptx::bar_sync<2, kWarpgroup>();  // every warp is done with Q
        if (threadIdx.x == 0) load_q(role, i + role.step(), q_map, at);
      }
      float rescale[2];
      softmax.tile(s, role.params.args.scale_log2,
                   (low.x & 0xff) | (low.y & 0xff) << 8 | (low.z & 0xff) << 16 | low.w << 24,
                   (high.x & 0xff) | (high.y & 0xff) << 8 | (high.z & 0xff) << 16 | high.w << 24, rescale);

      // P, what it does to the sums so far and, behind the last tile, the row's end, for `values`.
      ptx::mbarrier_wait(at.p_free(), (use % 2) ^ 1);
      store_p<Word16::kBf16>(at.p(), s);
      if (threadIdx.x == 0) smem.last = last;
      if (lane % 4 == 0) {
        smem.rescale[rows.at[0]] = rescale[0];
        smem.rescale[rows.at[1]] = rescale[1];
      }
      if (last) finish_rows(role, i, smem, softmax);
      ptx::fence_proxy_async_shared();
      ptx::bar_sync<2, kWarpgroup>();  // the product reads every warp's P
      if (last) release(at.p_full());
      rescale_rows(o, rescale);
      start_product(o, at.p(), keys);
    }
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_touch(o);
    release(at.free((use - 1) % 2, 0));
    const float factor[2] = {smem.finish[rows.at[0]], smem.finish[rows.at[1]]};
    if (role.merges()) ptx::barrier_sync<1, 2 * kWarpgroup>();
    write_half(0, role, i, at, o, factor);
    if (role.merges()) merge<2 * kWarpgroup>(role, i, smem, at);
  }
}

// Registers of the roles; 4 x 128 at entry.
struct Many {
  static constexpr int kHeads = kManyHeads, kThreads = 4 * kWarpgroup, kConsuming = 2;
  static constexpr int kScoresRegisters = 192, kValuesRegisters = 160, kConvertRegisters = 80;
  static_assert(kScoresRegisters + kValuesRegisters + 2 * kConvertRegisters <= 512);

  template <typename Format, typename S>
  static __device__ void run(int warpgroup, const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map) {
    if (warpgroup == 0) {
      ptx::setmaxnreg_inc<kScoresRegisters>();
      scores(role, smem, at, q_map);
      role.leave();
    } else if (warpgroup == 1) {
      ptx::setmaxnreg_inc<kValuesRegisters>();
      values(role, smem, at);
      role.leave();
    } else {
      ptx::setmaxnreg_dec<kConvertRegisters>();
      convert<Format>(role, at, [&] {
        if (!role.merges()) return;
        ptx::barrier_cluster_arrive_relaxed();  // the tiles hold outputs until every block has read them
        ptx::barrier_cluster_wait();
        ptx::barrier_cluster_arrive_relaxed();
        ptx::barrier_cluster_wait();
      });
      role.leave();
    }
  }
};

}  // namespace pasa::cuda
