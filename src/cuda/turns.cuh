// Two consumers of a block that serves up to 64 heads, which take turns with the tiles: one makes P of the even tiles, the
// other of the odd ones, and each sums up P V of every tile for its half of the value dims. A warpgroup's tile k:
//
//   Q K^T(k)                        issued as soon as the tile is there
//   P V(k - 1), its half            behind that, with the other's P from shared memory
//   softmax(k)                      under both; P to shared memory for the other
//   P V(k), its half                with P from registers
//
// So one's softmax runs under the other's products, and the tensor cores are never left to one warpgroup's chain. What P is
// relative to (softmax ref) goes from hand to hand with every P, and with it the factor of the sums so far, mostly 1.
//
// Budget of a 64-token tile, cycles: tensor cores 2048; device memory 2600; shared memory 2770 (Q K^T 1024, V 512, P of one
// half 128, converters' stores 576, pieces aside 470, info and Q's reload the rest).
#pragma once

#include "cuda/decode.cuh"

namespace pasa::cuda {

// O += P V: 64 heads by 256 value dims, from the panels at `v` on. P as fragments or, by its descriptor, in shared memory.
template <typename P>
__device__ void add_product(float (&o)[128], const P& p, std::uint32_t v) {
  const std::uint32_t b = down_columns(v);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kTileTokens / 16; ++step) {
    const auto& a = p(step);
    ptx::wgmma_m64n128k16<1, 0>(o, a, b + row_step(step), true);
    ptx::wgmma_m64n128k16<1, 64>(o, a, b + row_step(step) + (2 * kPanelBytes >> 4), true);
  }
  ptx::wgmma_commit_group();
}

template <typename S>
__device__ void take_turns(int half, const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map) {
  constexpr int kSteps = S::kDim / 16, kLeftSteps = kValueDim / 2 / 16;
  const int thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % 32;
  const Rows rows(thread);
  const std::uint32_t v = ptx::uniform(half) * (kValueDim / 2 / kPanelColumns * kPanelBytes);
  ptx::barrier_cluster_wait();
  if (threadIdx.x == 0 && role.first() < role.count()) load_q(role, role.first(), q_map, at);

  float o[128];
  std::uint32_t use = 0, q_parity = 0, taken = 0;  // use: of tiles, counted through; taken: parity of the other's P
  for (std::uint32_t i = role.first(); i < role.count(); i += role.step()) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int k = 0; k < 128; ++k) o[k] = 0;
    ptx::mbarrier_wait(at.q_full(), q_parity);
    q_parity ^= 1;

    std::uint32_t mine = use + half;          // the tile whose P this warpgroup makes
    bool theirs = half == 1, is_mine = true;  // there is one before it; there is this one
    // The other's P of tile mine - 1 is there, and this: what the sums so far are to be multiplied by.
    const auto receive = [&](float(&by)[2]) {
      ptx::mbarrier_wait(at.p_full(half ^ 1), taken);
      taken ^= 1;
      wait_full(at.full((mine - 1) % 2, half), (mine - 1) / 2 % 2);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        by[r] = smem.rescale[rows.at[r]];
        softmax.ref[r] = smem.ref[rows.at[r]];
        softmax.sum[r] *= by[r];
      }
    };
    const auto add_theirs = [&] {
      const std::uint32_t p = along_rows(at.p());
      add_product(
          o, [&](int step) { return p + column_step(step); }, ptx::uniform(at.keys((mine - 1) % 2)) + v);
    };
    for (bool last = false; !last; mine += 2, theirs = true) {
      if (theirs) {
        ptx::mbarrier_wait(at.full((mine - 1) % 2, 1), (mine - 1) / 2 % 2);
        is_mine = !__any_sync(~0u, (smem.info[(mine - 1) % 2][0] & kLast) != 0);
        if (!is_mine) break;
      }
      const std::uint32_t keys = ptx::uniform(at.keys(mine % 2));
      const std::uint32_t a = along_rows(at.q()), b = along_rows(keys);
      float s[32];
      wait_full(at.full(mine % 2, 0), mine / 2 % 2);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kLeftSteps; ++step) {
        ptx::wgmma_m64n64k16<0>(s, a + column_step(step), b + column_step(step), step > 0);
      }
      wait_full(at.full(mine % 2, 1), mine / 2 % 2);
#pragma unroll
      for (int step = kLeftSteps; step < kSteps; ++step) {
        ptx::wgmma_m64n64k16<0>(s, a + column_step(step), b + column_step(step), true);
      }
      ptx::wgmma_commit_group();
      if (theirs) {
        float by[2];
        receive(by);
        if (__any_sync(~0u, by[0] != 1 || by[1] != 1)) {  // rarely: the sums may not be touched under a product
          ptx::wgmma_wait_group<0>();
          ptx::wgmma_touch(s);
          ptx::wgmma_touch(o);
          rescale_rows(o, by);
          ptx::wgmma_touch(o);
        }
        add_theirs();
        ptx::wgmma_wait_group<1>();
      } else {
        ptx::wgmma_wait_group<0>();
      }
      ptx::wgmma_touch(s);

      const auto* info = reinterpret_cast<const uint4*>(smem.info[mine % 2]);
      const uint4 low = info[0], high = info[1];
      last = __any_sync(~0u, (low.x & kLast) != 0);
      float rescale[2];
      softmax.tile(s, role.params.args.scale_log2,
                   (low.x & 0xff) | (low.y & 0xff) << 8 | (low.z & 0xff) << 16 | low.w << 24,
                   (high.x & 0xff) | (high.y & 0xff) << 8 | (high.z & 0xff) << 16 | high.w << 24, rescale);
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      if (theirs) release(at.free((mine - 1) % 2, half));

      std::uint32_t p[kTileTokens / 16][4];
#pragma unroll
      for (int k = 0; k < 16; ++k) p[k / 4][k % 4] = ptx::cvt_bf16x2(s[2 * k], s[2 * k + 1]);
      ptx::bar_sync(2 + half, kWarpgroup);  // every warp is done with the P before
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::stmatrix_x4(at.p() + chunk_offset(thread / 32 * 16 + lane % 16, 2 * k + lane / 16), p[k][0], p[k][1],
                         p[k][2], p[k][3]);
      }
      if (lane % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          smem.rescale[rows.at[r]] = rescale[r];
          smem.ref[rows.at[r]] = softmax.ref[r];
        }
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      release(at.p_full(half));
      rescale_rows(o, rescale);
      ptx::wgmma_touch(o);
      add_product(
          o, [&](int step) -> const auto& { return p[step]; }, keys + v);
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      release(at.free(mine % 2, half));
    }

    if (is_mine) {
      mine -= 2;
    } else {  // the row ended with a tile of the other's
      if (thread == 0 && i + role.step() < role.count()) {
        ptx::mbarrier_wait(at.p_full(half ^ 1), taken);  // its scores are done, and so is Q
        load_q(role, i + role.step(), q_map, at);
      }
      __syncwarp();
      float by[2];
      receive(by);
      rescale_rows(o, by);
      ptx::wgmma_touch(o);
      add_theirs();
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(o);
      release(at.free((mine - 1) % 2, half));
      --mine;
    }
    use = mine + 1;

    float top[2], sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = softmax.row_top(r), sum[r] = softmax.row_sum(r);
      if (!is_mine && lane % 4 == 0) smem.exchange[0][rows.at[r]] = {top[r], sum[r]};
    }
    ptx::bar_sync<1, 2 * kWarpgroup>();  // also: no product reads the tiles any more
    if (is_mine && lane % 4 == 0) {
      const auto item = role.item(ptx::opaque(i));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Partial other = smem.exchange[0][rows.at[r]];
        finish_head(role, item, smem, rows.at[r], softmax.ref[r], fmaxf(top[r], other.m), sum[r] + other.l);
      }
    }
    ptx::bar_sync<1, 2 * kWarpgroup>();
    const float factor[2] = {smem.finish[rows.at[0]], smem.finish[rows.at[1]]};
    write_half(half, role, i, at, o, factor);
    if (role.merges()) merge<2 * kWarpgroup>(role, i, smem, at);
  }
}

// Registers: 4 x 128 at entry.
struct Turns {
  static constexpr int kHeads = kManyHeads, kThreads = 4 * kWarpgroup;
  static constexpr int kRegisters = 192, kConvertRegisters = 64;
  static_assert(kRegisters + kConvertRegisters <= 256);

  template <typename Format, typename S>
  static __device__ void run(int warpgroup, const Role& role, S& smem, Address<S> at, const CUtensorMap* q_map) {
    if (warpgroup < 2) {
      ptx::setmaxnreg_inc<kRegisters>();
      take_turns(warpgroup, role, smem, at, q_map);
      role.leave();
    } else {
      ptx::setmaxnreg_dec<kConvertRegisters>();
      convert<Format>(role, at);
      role.leave();
    }
  }
};

}  // namespace pasa::cuda
