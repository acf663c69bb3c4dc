// The attention kernel for gfx950: one work-group of four waves takes 16 heads of one query row and one split of its lists.
//
//   for each tile of 64 tokens:
//     gather      each wave brings 16 tokens into LDS as bf16 rows               (gather.h)
//     scores      S^T = K Q^T: each wave 16 tokens x 16 heads, Q stays in registers
//     softmax     P = 2^(S - m) into LDS, for all waves
//     accumulate  O^T += V^T P^T: each wave 128 of the 512 value dims, V read transposed out of the same tile
//
// Scores and output are computed transposed so that a lane serves one head throughout (lane % 16): its maximum, sum and
// rescaling need no exchange between lanes. The maximum m is common to the four waves and changes rarely: a tile keeps the
// one it finds as long as no score exceeds it by kSlack, since 2^kSlack costs a float or bf16 no precision. So the usual
// tile has three barriers, and neither a reduction over lanes nor a rescaling of O.
//
// Two work-groups share a compute unit (80 KiB of LDS and 256 registers each): one gathers while the other computes.
#include "core/number.h"
#include "hip/finish.h"
#include "hip/gather.h"

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

constexpr int kHeads = 16, kTile = 64, kWaves = 4;
constexpr int kValueDims = 512, kWaveDims = kValueDims / kWaves, kBlocks = kWaveDims / 16;  // blocks of 16 dims a wave
constexpr float kSlack = 16.0f;

template <int Dim>
struct Smem {
  static constexpr int kRowBytes =
      2 * Dim + 16;  // the padding puts 16 rows, and a transposing read's rows, in different banks
  static constexpr int kProbabilityRow = kTile + 8;  // likewise for 16 heads
  union {
    u8 tile[kTile * kRowBytes];             // keys, and values: their first 512 components
    float exchange[2][kHeads][kWaves * 4];  // after the last tile
  };
  __bf16 p[kHeads][kProbabilityRow];  // [head][token]
  float scales[kWaves][kRows * 8];
  float mask[kTile];  // 0, or -inf for a token that does not count; in the order of score rows
  float maxima[kHeads][kWaves * 4];
  int raise;  // a score of this tile exceeded the maximum by too much
};
static_assert(sizeof(Smem<576>) <= 80 * 1024, "two work-groups must fit into 160 KiB");

// Score row i of a wave is the tile row that makes the four probabilities of a lane neighbours in the order in which the
// second product takes tokens; and the reverse.
constexpr int tile_row(int score_row) { return 8 * (score_row >> 2 & 1) + 2 * (score_row & 3) + (score_row >> 3); }
constexpr int score_row(int tile_row) { return 4 * (tile_row >> 3) + (tile_row >> 1 & 3) + 8 * (tile_row & 1); }
static_assert([] {
  for (int i = 0; i < kRows; ++i) {
    if (score_row(tile_row(i)) != i) return false;
  }
  return true;
}());

template <int Dim>
struct State {
  static constexpr int kDepth = Dim / 32;  // steps of the first product
  bf16x8 q[kDepth];
  f32x4 acc[kBlocks] = {};
  float m = kMinusInf;        // what P is relative to; the same in all waves
  float limit = kMinusInf;    // m + kSlack
  float shift = 0;            // -m, or 0 while there is none
  float largest = kMinusInf;  // of this lane's scores
  float sum = 0;              // of this lane's probabilities
};

// This lane's places in LDS.
template <int Dim>
struct Places {
  static constexpr int kRowBytes = Smem<Dim>::kRowBytes;
  Rows<kRowBytes> rows;    // where its wave gathers to
  Lds<float>* mask_write;  // its token's
  const Lds<f32x4>* mask;  // its four scores'
  const Lds<u8>* key;      // its part of a score row
  const Lds<u8>* value;    // and of a transposing read
  Lds<u8>* p;              // the eight probabilities that it multiplies with
  int p_write;             // from there to the four that it computes, the same in all lanes of a wave

  explicit Places(Smem<Dim>& s) {
    const int lane = lane_id(), wave = wave_id(), column = lane & 15, group = lane >> 4;
    const auto at = [](auto& x) { return (Lds<u8>*)&x; };
    Lds<u8>* tile = at(s.tile);
    rows = {tile + wave * kRows * kRowBytes, (Lds<float>*)at(s.scales[wave])};
    mask_write = (Lds<float>*)at(s.mask[wave * kRows + score_row(lane >> 2)]);
    mask = (const Lds<f32x4>*)at(s.mask[wave * kRows + 4 * group]);
    key = tile + (wave * kRows + tile_row(column)) * kRowBytes + 16 * group;
    value = tile + tile_row(4 * group + (column >> 2)) * kRowBytes + 2 * (wave * kWaveDims + 4 * (column & 3));
    p = at(s.p[column][8 * group]);
    p_write = 2 * (32 * (wave >> 1) + 4 * (wave & 1));
  }
};

template <int Dim>
inline void store_probabilities(const Places<Dim>& places, f32x4 p) {
  *(Lds<bf16x4>*)(places.p + places.p_write) = __builtin_convertvector(p, bf16x4);
}

// After some score exceeded the common maximum by kSlack: the new maximum, everything rescaled to it, P again.
template <int Dim>
inline void raise_maximum(Smem<Dim>& smem, State<Dim>& st, const Places<Dim>& places, f32x4 s, float tile_max,
                          f32x4& p) {
  const int lane = lane_id(), head = lane & 15;
  smem.maxima[head][4 * wave_id() + (lane >> 4)] = tile_max;
  sync_lds();
  float top = st.m;
#pragma unroll
  for (int i = 0; i < kWaves * 4; ++i) top = __builtin_fmaxf(top, smem.maxima[head][i]);
  const float base = top == kMinusInf ? 0.0f : top;  // a head without a finite score so far
  const float shrink = top == st.m ? 1.0f : exp2_fast(st.m - base);
  st.m = top;
  st.limit = top + kSlack;
  st.shift = -base;
  st.sum *= shrink;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) st.acc[n] *= shrink;
#pragma unroll
  for (int r = 0; r < 4; ++r) p[r] = exp2_fast(s[r] - base);
  store_probabilities(places, p);
  smem.raise = 0;  // everybody has seen it
  sync_lds();
}

// A tile that all waves have gathered.
template <int Dim>
inline void attend_tile(const Args& args, Smem<Dim>& smem, State<Dim>& st, const Places<Dim>& places) {
  constexpr int kRowBytes = Smem<Dim>::kRowBytes;
  f32x4 chain[2] = {};  // two, so that one product need not wait for the one before
#pragma unroll
  for (int i = 0; i < State<Dim>::kDepth; ++i) {
    chain[i & 1] = mfma(*(const Lds<bf16x8>*)(places.key + 64 * i), st.q[i], chain[i & 1]);
  }
  const f32x4 scale = {args.scale_log2, args.scale_log2, args.scale_log2, args.scale_log2};
  const f32x4 s = __builtin_elementwise_fma(chain[0] + chain[1], scale, *places.mask);
  const float tile_max = __builtin_fmaxf(__builtin_fmaxf(s[0], s[1]), __builtin_fmaxf(s[2], s[3]));
  st.largest = __builtin_fmaxf(st.largest, tile_max);
  if (any(tile_max > st.limit)) smem.raise = 1;
  const f32x4 relative = s + f32x4{st.shift, st.shift, st.shift, st.shift};
  f32x4 p;
#pragma unroll
  for (int r = 0; r < 4; ++r) p[r] = exp2_fast(relative[r]);
  store_probabilities(places, p);
  sync_lds();
  if (__builtin_amdgcn_readfirstlane(smem.raise)) raise_maximum(smem, st, places, s, tile_max, p);
  st.sum += (p[0] + p[1]) + (p[2] + p[3]);

#pragma unroll
  for (int k = 0; k < kTile / 32; ++k) {
    const bf16x8 weights = *(const Lds<bf16x8>*)(places.p + 64 * k);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const Lds<u8>* v = places.value + 32 * k * kRowBytes + 32 * n;
      const bf16x4 low = read_transposed(v), high = read_transposed(v + 16 * kRowBytes);
      st.acc[n] = mfma(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7), weights, st.acc[n]);
    }
  }
}

// NaN components of the wave's rows count as 0.
template <int Dim>
inline void scrub(const Places<Dim>& places) {
  constexpr int kChunks = kRows * Dim / 8;  // of 16 bytes
  for (int chunk = lane_id(); chunk < kChunks; chunk += kWave) {
    auto* p = (Lds<u32x4>*)(places.rows.tile + chunk / (Dim / 8) * Smem<Dim>::kRowBytes + chunk % (Dim / 8) * 16);
    u32x4 x = *p;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((x[k] & 0x7fffu) > 0x7f80u) x[k] &= 0xffff0000u;
      if ((x[k] & 0x7fffffffu) > 0x7f80ffffu) x[k] &= 0xffffu;
    }
    *p = x;
  }
}

// All tiles of one source.
template <typename Format, int Dim>
inline void attend_source(const Args& args, const SourceArgs& source, Part part, Smem<Dim>& smem, State<Dim>& st,
                          const Places<Dim>& places) {
  const int tiles = (part.count + kTile - 1) / kTile, mine = kRows * wave_id() + (lane_id() >> 2);
  if (tiles == 0) return;
  const auto listed = [&](int tile) { return tile * kTile + mine < part.count; };
  const auto index_of = [&](int tile) { return part.indices[listed(tile) ? tile * kTile + mine : 0]; };

  Token token = locate<Format>(source, index_of(0), listed(0));
  typename Gather<Format>::InFlight in_flight;
  Gather<Format>::start(in_flight, token);
  int index = index_of(1);
  for (int tile = 0; tile < tiles; ++tile) {
    Gather<Format>::finish(in_flight, places.rows, source.alignment >= 16 && !args.nan_to_zero);
    *places.mask_write = token.valid ? 0.0f : kMinusInf;
    if (args.nan_to_zero) scrub(places);
    if (tile + 1 < tiles) {
      token = locate<Format>(source, index, listed(tile + 1));
      Gather<Format>::start(in_flight, token);
      index = index_of(tile + 2);
    }
    sync_lds();
    attend_tile(args, smem, st, places);
    sync_lds();
  }
}

template <int Dim>
inline void load_query(const Args& args, int token, int head, State<Dim>& st) {
  const u16* q = args.q + token * args.q_stride[0] + head * args.q_stride[1] + 8 * (lane_id() >> 4);
#pragma unroll
  for (int i = 0; i < State<Dim>::kDepth; ++i) st.q[i] = load_any<bf16x8>(q + 32 * i);
}

// Writes the row's result, or the split's partial one.
template <int Dim>
inline void store_result(const Args& args, int token, int head, int split, Smem<Dim>& smem, State<Dim>& st) {
  const int lane = lane_id(), column = lane & 15, group = lane >> 4, wave = wave_id();
  smem.exchange[0][column][4 * wave + group] = st.largest;
  smem.exchange[1][column][4 * wave + group] = st.sum;
  sync_lds();
  float largest = kMinusInf, sum = 0;
#pragma unroll
  for (int i = 0; i < kWaves * 4; ++i) {
    largest = __builtin_fmaxf(largest, smem.exchange[0][column][i]);
    sum += smem.exchange[1][column][i];
  }
  if (head >= args.heads) return;
  const int dim = wave * kWaveDims + 4 * group;
  const bool first = wave == 0 && group == 0;  // one lane a head
  if (args.partial) {
    const float factor = largest == kMinusInf ? 1.0f : exp2_fast(st.m - largest);
    const std::int64_t at = (static_cast<std::int64_t>(token) * args.splits + split) * args.heads + head;
    auto* acc = reinterpret_cast<f32x4*>(args.partials.acc + at * kValueDims + dim);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) acc[4 * n] = st.acc[n] * factor;
    if (first) {
      args.partials.m[at] = largest;
      args.partials.l[at] = sum * factor;
    }
    return;
  }
  const Finish result = finish(st.m, sum, args.sink ? args.sink[head] : kMinusInf);
  u16* out = args.out + token * args.out_stride[0] + head * args.out_stride[1] + dim;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    const f32x4 value = result.scale == 0 ? f32x4{} : st.acc[n] * result.scale;
    const bf16x4 rounded = __builtin_convertvector(value, bf16x4);
    __builtin_memcpy(out + 16 * n, &rounded, sizeof rounded);
  }
  if (!first) return;
  if (args.lse) args.lse[token * args.lse_stride[0] + head * args.lse_stride[1]] = result.lse;
  if (args.max_logits) {
    args.max_logits[token * args.max_logits_stride[0] + head * args.max_logits_stride[1]] = largest * kLn2;
  }
}

// Calls body.operator()<Format>() for the format of a source: the kernels for one format know it, the others ask.
template <typename... Formats>
struct FormatList {
  template <typename Body>
  static void select(int format, Body&& body) {
    ((format == Formats::kCode ? body.template operator()<typename Formats::Type>() : void()), ...);
  }
};
template <int Code, typename Format>
struct Coded {
  static constexpr int kCode = Code;
  using Type = Format;
};
template <typename Format>
struct Only {
  template <typename Body>
  static void select(int, Body&& body) {
    body.template operator()<Format>();
  }
};

template <int Dim, typename Formats>
inline void decode(const Args& args, Smem<Dim>& smem) {
  const int token = static_cast<int>(__builtin_amdgcn_workgroup_id_x());
  const int head = static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * kHeads + (lane_id() & 15);
  const int split = static_cast<int>(__builtin_amdgcn_workgroup_id_z());
  State<Dim> st;
  const Places<Dim> places(smem);
  smem.raise = 0;
  load_query(args, token, head < args.heads ? head : args.heads - 1, st);
#pragma nounroll
  for (int i = 0; i < args.source_count; ++i) {
    const SourceArgs& source = args.source[i];
    const Part part = part_of(args, i, token, split);
    Formats::select(source.format,
                    [&]<typename Format>() { attend_source<Format>(args, source, part, smem, st, places); });
  }
  store_result(args, token, head, split, smem, st);
}

using Fn = UniformFp8<Fp8::kE4m3fn>;
using Fnuz = UniformFp8<Fp8::kE4m3fnuz>;
using Any512 =
    FormatList<Coded<PASA_KV_BF16, Bf16<512>>, Coded<PASA_KV_PACKED_BF16, Bf16<512>>, Coded<PASA_KV_FP8_E4M3FN, Fn>,
               Coded<PASA_KV_FP8_E4M3FNUZ, Fnuz>, Coded<PASA_KV_FP8_DS_MLA, Fp8DsMla>>;
using Any576 = FormatList<Coded<PASA_KV_BF16, Bf16<576>>, Coded<PASA_KV_FP8_V32, Fp8V32>>;

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end

// The instantiations, by the names that backend.cpp looks up. Two waves a SIMD: 256 registers.
#define PASA_DECODE(name, dim, formats)                                                                           \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256), amdgpu_waves_per_eu(2, 2))) void name( \
      pasa::gpu::Args args) {                                                                                     \
    __attribute__((shared)) static pasa::hip::Smem<dim> smem;                                                     \
    pasa::hip::decode<dim, formats>(args, smem);                                                                  \
  }
PASA_DECODE(decode_bf16_512, 512, pasa::hip::Only<pasa::Bf16<512>>)
PASA_DECODE(decode_fp8_e4m3fn, 512, pasa::hip::Only<pasa::hip::Fn>)
PASA_DECODE(decode_fp8_e4m3fnuz, 512, pasa::hip::Only<pasa::hip::Fnuz>)
PASA_DECODE(decode_fp8_ds_mla, 512, pasa::hip::Only<pasa::Fp8DsMla>)
PASA_DECODE(decode_any_512, 512, pasa::hip::Any512)
PASA_DECODE(decode_bf16_576, 576, pasa::hip::Only<pasa::Bf16<576>>)
PASA_DECODE(decode_fp8_v32, 576, pasa::hip::Only<pasa::Fp8V32>)
PASA_DECODE(decode_any_576, 576, pasa::hip::Any576)
