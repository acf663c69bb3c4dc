// The consumers of a block that serves up to 64 heads, two warpgroups:
//   scores    Q K^T (64 x 64), softmax, P V for the left half of the value dims
//   values    P V for the right half
// `scores` multiplies P from its registers and stores it for `values`. A tile is made and released by halves, the right half
// first: `values` multiplies it as soon as P is there, beside Q K^T of the next tile; P V of the left half lies behind that
// product and runs under the next tile's softmax.
//
// Budget of a 64-token tile at 64 heads, cycles: tensor cores 2048; device memory 2600 (its share of 37 KB); shared memory
// 2560: Q and K read 1024, V 512, P 128 and written 64, keys written 512, pieces aside in and out 320.
#pragma once

#include "cuda/decode.cuh"

namespace pasa::cuda {

template <int kDim>
using ManyHeads = Smem<kDim, kManyHeads>;

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
    const bool stages = !role.merges() && !role.params.args.partial;
    for (bool last = false; !last; ++use) {
      const int tile = use % 2;
      ptx::mbarrier_wait(at.p_full(), use % 2);
      wait_full(at.full(tile, 1), use / 2 % 2);
      last = smem.last != 0;
      const float rescale[2] = {smem.rescale[rows.at[0]], smem.rescale[rows.at[1]]};
      if (last) factor[0] = smem.finish[rows.at[0]], factor[1] = smem.finish[rows.at[1]];
      rescale_rows(o, rescale);
      ptx::wgmma_touch(o);
      ptx::wgmma_fence();
      const std::uint32_t a = ptx::uniform(along_rows(at.p()));
      start_product<Word16::kBf16>(o, at.keys(tile) + 4 * kPanelBytes, [&](int step) { return a + column_step(step); });
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      release(at.p_free());
      if (!last || !stages) release(at.free(tile, 1));
    }
    if (role.merges()) ptx::barrier_sync<1, 2 * kWarpgroup>();  // no product reads the tiles any more
    const int tile = (use - 1) % 2;
    write_half(1, role, item, at, o, factor, at.keys(tile) + 4 * kPanelBytes);
    if (stages) release(at.free(tile, 1));
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
  ptx::barrier_cluster_wait();
  if (threadIdx.x == 0 && role.first() < role.count()) load_q(role, role.first(), q_map, at);

  const std::uint32_t thread = threadIdx.x;
  float o[128];
  std::uint32_t p[4][4];
  std::uint32_t use = 0, q_parity = 0;
  const auto multiply = [&](std::uint32_t tile) {
    start_product<Word16::kBf16>(
        o, at.keys(tile), [&](int step) -> auto& { return p[step]; });
  };
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step()) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    ptx::mbarrier_wait(at.q_full(), q_parity);
    q_parity ^= 1;
    for (bool first = true, last = false; !last; first = false, ++use) {
      const std::uint32_t tile = use % 2, parity = use / 2 % 2;
      float s[32];
      const auto score = [&](int from, int to, bool add) {
        const std::uint32_t a = ptx::uniform(along_rows(at.q())), b = ptx::uniform(along_rows(at.keys(tile)));
#pragma unroll
        for (int step = from; step < to; ++step) {
          ptx::wgmma_m64n64k16<0>(s, a + column_step(step), b + column_step(step), add || step > from);
        }
      };
      // S = Q K^T, in two halves of the sum as the converters finish them, then P V of the tile before.
      wait_full(at.full(tile, 1), parity);
      // Looked at early: behind the products an answer takes long.
      const uint4 info = ptx::ld_shared(at.info(tile));
      last = info.z != 0;
      ptx::wgmma_touch(o);
      ptx::wgmma_fence();
      score(kLeftSteps, kSteps, false);
      wait_full(at.full(tile, 0), parity);
      score(0, kLeftSteps, true);
      ptx::wgmma_commit_group();
      if (!first) {
        multiply(tile ^ 1);
        ptx::wgmma_wait_group<1>();
      } else {
        ptx::wgmma_wait_group<0>();
      }
      ptx::wgmma_touch(s);

      if (last && i + role.step() < role.count()) {
        ptx::bar_sync<2, kWarpgroup>();  // every warp is done with Q
        if (threadIdx.x == 0) load_q(role, i + role.step(), q_map, at);
      }
      float rescale[2];
      softmax.tile(s, role.params.args.scale_log2, info.x, info.y, rescale);
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      if (!first) release(at.free(tile ^ 1, 0));

      // P and what it does to the sums so far, for `values`; behind the last tile, the row's end with it.
      pack_p<Word16::kBf16>(s, p);
      ptx::mbarrier_wait(at.p_free(), (use % 2) ^ 1);
      store_p(at.p(), p, thread);
      if (thread == 0) smem.last = last;
      if (thread % 4 == 0) {
        smem.rescale[Rows(thread).at[0]] = rescale[0];
        smem.rescale[Rows(thread).at[1]] = rescale[1];
      }
      ptx::fence_proxy_async_shared();
      if (!last) release(at.p_full());
      rescale_rows(o, rescale);
    }
    finish_rows(role, i, smem, softmax);
    release(at.p_full());
    const int tile = (use - 1) % 2;
    ptx::wgmma_touch(o);
    ptx::wgmma_fence();
    multiply(tile);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_touch(o);
    const Rows rows(thread);
    const float factor[2] = {smem.finish[rows.at[0]], smem.finish[rows.at[1]]};
    if (role.merges()) ptx::barrier_sync<1, 2 * kWarpgroup>();
    write_half(0, role, i, at, o, factor, at.keys(tile));
    release(at.free(tile, 0));
    if (role.merges()) merge<2 * kWarpgroup>(role, i, smem, at);
  }
}

// Registers of the roles; 4 x 128 at entry.
struct Many {
  static constexpr int kHeads = kManyHeads, kThreads = 4 * kWarpgroup, kConsuming = 2;
  static constexpr int kScoresRegisters = 208, kValuesRegisters = 160, kConvertRegisters = 72;
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
      convert<1, Format>(role, at, [&] {
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
