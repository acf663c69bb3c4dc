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

// An item's output leaves as it is: neither merged by the cluster nor split by the caller.
__device__ inline bool is_whole(const Role& role) { return !role.merges() && !role.params.args.partial; }

// ---- values: one warpgroup -----------------------------------------------------------------------------------------------

template <int kDim>
__device__ void values(const Role& role, ManyHeads<kDim>& smem, Address<ManyHeads<kDim>> at,
                       const CUtensorMap* out_map) {
  ptx::barrier_cluster_wait();
  const Rows rows(threadIdx.x % kWarpgroup);
  float o[128];
  std::uint32_t use = 0, parity = 0;
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step(), parity ^= 1) {
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    float factor[2];
    const bool whole = is_whole(role);
    for (bool first = true, last = false; !last; first = false, ++use) {
      const int tile = use % 2;
      ptx::mbarrier_wait(at.p_full(), use % 2);
      wait_full(at.full(tile, 1), use / 2 % 2);  // P's fence as well
      last = smem.last != 0;
      const float rescale[2] = {smem.rescale[rows.at[0]], smem.rescale[rows.at[1]]};
      if (!first) rescale_rows(o, rescale);
      ptx::wgmma_touch(o);
      ptx::wgmma_fence();
      const std::uint32_t a = ptx::uniform(along_rows(at.p()));
      start_product<Word16::kBf16>(o, at.keys(tile) + 4 * kPanelBytes, [&](int step) { return a + column_step(step); });
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      if (last) {
        ptx::mbarrier_wait(at.finish_full(), parity);
        factor[0] = smem.finish[rows.at[0]], factor[1] = smem.finish[rows.at[1]];
      }
      release(at.p_free());
      if (!last || !whole) release(at.free(tile, 1));
    }
    const int tile = (use - 1) % 2;
    const auto item = role.item(ptx::opaque(i));
    if (whole) {
      store_half<Word16::kBf16, 1>(1, item, out_map, o, factor, at.keys(tile) + 4 * kPanelBytes);
      if (threadIdx.x % kWarpgroup == 0) ptx::cp_async_bulk_wait_read();
      release(at.free(tile, 1));
      continue;
    }
    if (role.merges()) ptx::barrier_sync<1, 2 * kWarpgroup>();  // no product reads the tiles any more
    write_sums(1, role, item, at, o, factor);
    if (role.merges()) merge<2 * kWarpgroup>(role, i, smem, at);
  }
}

// ---- scores: one warpgroup -----------------------------------------------------------------------------------------------

template <int kDim>
__device__ void scores(const Role& role, ManyHeads<kDim>& smem, Address<ManyHeads<kDim>> at, const CUtensorMap* q_map,
                       const CUtensorMap* out_map) {
  constexpr int kSteps = kDim / 16, kLeftSteps = kValueDim / 2 / 16;
  ptx::barrier_cluster_wait();
  if (threadIdx.x == 0 && role.first() < role.count()) load_q(role, role.first(), q_map, at);

  const std::uint32_t thread = threadIdx.x;
  const bool whole = is_whole(role);
  float o[128];
  std::uint32_t p[4][4];
  std::uint32_t use = 0, q_parity = 0;
  const auto multiply = [&](std::uint32_t tile) {
    start_product<Word16::kBf16>(
        o, at.keys(tile), [&](int step) -> auto& { return p[step]; });
  };
  // The half that an output leaves by is released by its warp 0 when the copy engine has read it.
  const auto settle = [&] {
    if (thread == 0) ptx::cp_async_bulk_wait_read();
    release(at.free((use - 1) % 2, 0), thread < 32);
  };
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step()) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    float sink[2];
    load_sinks(role.params.args, role.item(ptx::opaque(i)), sink);
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
        if (whole && use != 0) settle();
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
      release(at.p_full());
      if (!first) rescale_rows(o, rescale);
    }
    const RowsEnd end(softmax, sink, whole);
    const Rows rows(thread);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (thread % 4 != 0) continue;
      smem.finish[rows.at[r]] = end.factor[r];
      if (role.merges()) smem.part[rows.at[r]] = {end.top[r], end.lse[r]};
    }
    release(at.finish_full());
    const int tile = (use - 1) % 2;
    ptx::wgmma_touch(o);
    ptx::wgmma_fence();
    multiply(tile);
    const auto item = role.item(ptx::opaque(i));
    if (!role.merges()) end.write(role.params.args, item);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_touch(o);
    if (whole) {
      store_half<Word16::kBf16, 1>(0, item, out_map, o, end.factor, at.keys(tile));
      release(at.free(tile, 0), thread >= 32);
      continue;
    }
    if (role.merges()) ptx::barrier_sync<1, 2 * kWarpgroup>();
    write_sums(0, role, item, at, o, end.factor);
    release(at.free(tile, 0));
    if (role.merges()) merge<2 * kWarpgroup>(role, i, smem, at);
  }
  if (whole && use != 0) settle();
}

// Registers of the roles; 4 x 128 at entry.
struct Many {
  static constexpr int kHeads = kManyHeads, kThreads = 4 * kWarpgroup, kConsuming = 2;
  static constexpr int kScoresRegisters = 208, kValuesRegisters = 160, kConvertRegisters = 72;
  static_assert(kScoresRegisters + kValuesRegisters + 2 * kConvertRegisters <= 512);

  template <typename Format, typename S>
  static __device__ void run(int warpgroup, const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map,
                             const CUtensorMap* out_map) {
    if (warpgroup == 0) {
      ptx::setmaxnreg_inc<kScoresRegisters>();
      scores(role, smem, at, q_map, out_map);
      role.leave();
    } else if (warpgroup == 1) {
      ptx::setmaxnreg_inc<kValuesRegisters>();
      values(role, smem, at, out_map);
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
