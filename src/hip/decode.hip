// The attention kernels for gfx950, decode and prefill: a work-group of four waves takes 16 or 64 heads of one query row and
// one split of its lists.
//
//   for each tile of 64 tokens:
//     gather      each wave brings 16 tokens into LDS as 16-bit rows              (gather.h)
//     scores      S^T = K Q^T: each wave 16 tokens, all heads; Q stays in registers
//     softmax     P = 2^(S - m) into LDS, for all waves
//     accumulate  O^T += V^T P^T: each wave 128 of the 512 value dims, V read transposed out of the same tile
//
// Scores and output are computed transposed so that a lane serves one head of each 16 throughout (lane % 16): its maximum,
// sum and rescaling need no exchange between lanes. The maximum m is common to the four waves and changes rarely: a tile
// keeps the one it finds as long as no score exceeds it by kSlack, since 2^kSlack costs floats no precision. So the usual
// tile has neither a reduction over lanes nor a rescaling of O.
//
// 16 heads: two work-groups share a compute unit (80 KiB of LDS and 256 registers each), one gathers while the other
// computes. 64 heads: one has it for itself and gathers the next tile while it computes.
#include "core/number.h"
#include "hip/finish.h"
#include "hip/gather.h"
#include "hip/order.h"

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

constexpr int kTile = 64, kWaves = 4;
constexpr int kValueDims = 512, kWaveDims = kValueDims / kWaves, kBlocks = kWaveDims / 16;  // blocks of 16 dims a wave
constexpr float kLargest = __FLT_MAX__;

// How a work-group shares 16 * HeadTiles heads of a row among its waves. In the first product a wave takes ScoreHeads of
// the head tiles and TokenTiles of the four token tiles: the more heads, the fewer waves read the same keys, and the more
// registers Q takes. In the second a wave takes all heads and a quarter of the value dims.
template <typename Word, int Dim, int HeadTiles, int ScoreHeads>
struct Shape {
  using Element = Word;  // of q, keys, probabilities and out: bf16 or fp16
  static constexpr float kSlack = std::is_same_v<Element, _Float16> ? 14.0f : 16.0f;  // 2^kSlack is an fp16 yet
  static constexpr int kDim = Dim, kDepth = Dim / 32;                                 // steps of the first product
  static constexpr int kHeadTiles = HeadTiles, kHeads = 16 * HeadTiles;
  static constexpr int kScoreHeads = ScoreHeads, kTokenTiles = HeadTiles / ScoreHeads;
  static constexpr int kSharers = kWaves / kTokenTiles;  // waves with scores of the same head
  static constexpr bool kAhead = HeadTiles > 1;
  // The padding puts 16 rows, and a transposing read's rows, in different banks.
  static constexpr int kRowBytes = 2 * Dim + 16, kTileBytes = kTile * kRowBytes, kBuffers = kAhead ? 2 : 1;
  static constexpr int kProbabilityRow = kTile + 8;  // elements; padded for the same reason
};

template <typename S>
struct Smem {
  u8 tile[S::kBuffers][S::kTileBytes];                   // keys, and values: their first 512 components
  typename S::Element p[S::kHeads][S::kProbabilityRow];  // [head][token]
  float scales[kWaves][kRows * 8];
  float mask[kTile];  // 0, or -inf for a token that does not count; in the order of score rows
  float exchange[2][S::kHeads][S::kSharers];
  int raise;  // a score of this tile exceeded the maximum by too much
};
static_assert(sizeof(Smem<Shape<__bf16, 576, 1, 1>>) <= 80 * 1024, "two work-groups must fit into 160 KiB");
static_assert(sizeof(Smem<Shape<__bf16, 576, 4, 4>>) <= 160 * 1024);

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

template <typename S>
struct Query {
  Eight<typename S::Element> fragment[S::kScoreHeads][S::kDepth];
};

// What a lane knows of its heads, one a head tile.
template <typename S>
struct State {
  f32x4 acc[S::kHeadTiles][kBlocks] = {};
  float m[S::kHeadTiles];  // what P is relative to; the same in all waves. The lowest float while there is no score
  float largest[S::kScoreHeads];   // of this lane's scores
  float sum[S::kScoreHeads] = {};  // of this lane's probabilities

  State() {
    for (float& x : m) x = -kLargest;
    for (float& x : largest) x = kMinusInf;
  }
};

// This wave's part of the first product.
template <typename S>
inline int first_score_head() {  // in tiles
  return S::kHeadTiles == S::kScoreHeads ? 0 : S::kScoreHeads * (wave_id() / S::kSharers);
}
template <typename S>
inline int first_token_tile() {
  return S::kTokenTiles * (wave_id() % S::kSharers);
}

// This lane's places in LDS, in the first buffer and head tile.
template <typename S>
struct Places {
  Rows<S::kRowBytes> rows;  // where its wave gathers to
  Lds<float>* mask_write;   // its token's
  const Lds<u8>* mask;      // its four scores'
  const Lds<u8>* key;       // its part of a score row
  const Lds<u8>* value;     // and of a transposing read
  Lds<u8>* p;               // the eight probabilities that it multiplies with
  int p_write;              // from there to the four that it computes, the same in all lanes of a wave

  explicit Places(Smem<S>& s) {
    const int lane = lane_id(), wave = wave_id(), column = lane & 15, group = lane >> 4, first = first_token_tile<S>();
    const auto at = [](auto& x) { return (Lds<u8>*)&x; };
    Lds<u8>* tile = at(s.tile);
    rows = {tile + wave * kRows * S::kRowBytes, (Lds<float>*)at(s.scales[wave])};
    mask_write = (Lds<float>*)at(s.mask[wave * kRows + score_row(row_of_lane(lane))]);
    mask = at(s.mask[first * kRows + 4 * group]);
    key = tile + (first * kRows + tile_row(column)) * S::kRowBytes + 16 * group;
    value = tile + tile_row(4 * group + (column >> 2)) * S::kRowBytes + 2 * (wave * kWaveDims + 4 * (column & 3));
    p = at(s.p[column][8 * group]);
    p_write = first_score_head<S>() * kHeadTileBytes + p_of_token_tile(first);
  }
  // From a lane's p to that of another head tile, and to four probabilities of a token tile.
  static constexpr int kHeadTileBytes = 16 * 2 * S::kProbabilityRow;
  static constexpr int p_of_token_tile(int tile) { return 2 * (32 * (tile >> 1) + 4 * (tile & 1)); }
};

inline float max_of(f32x4 x) { return maximum(maximum(x[0], x[1]), maximum(x[2], x[3])); }

// The lane's scores of a tile, and its probabilities' sums.
template <typename S>
struct Scores {
  f32x4 s[S::kScoreHeads][S::kTokenTiles];
  float sum[S::kScoreHeads];
};

// P of a score tile: into LDS and into the sum.
template <typename S>
inline void exponentiate(const Places<S>& places, Scores<S>& scores, int h, float m) {
  f32x4 sum = {};
#pragma unroll
  for (int t = 0; t < S::kTokenTiles; ++t) {
    const f32x4 relative = scores.s[h][t] - f32x4{m, m, m, m};
    f32x4 p;
#pragma unroll
    for (int r = 0; r < 4; ++r) p[r] = exp2_fast(relative[r]);
    *(Lds<Four<typename S::Element>>*)(places.p + places.p_write + h * Places<S>::kHeadTileBytes +
                                       Places<S>::p_of_token_tile(t)) =
        __builtin_convertvector(p, Four<typename S::Element>);
    sum = t == 0 ? p : sum + p;
  }
  scores.sum[h] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

template <typename S>
inline float largest_score(const Scores<S>& scores, int h) {
  float top = max_of(scores.s[h][0]);
#pragma unroll
  for (int t = 1; t < S::kTokenTiles; ++t) top = maximum(top, max_of(scores.s[h][t]));
  return top;
}

// Over the waves that share a head.
template <typename S, typename Op>
inline float reduce_sharers(const float (&of_wave)[S::kSharers], Op op) {
  float x = of_wave[0];
#pragma unroll
  for (int i = 1; i < S::kSharers; ++i) x = op(x, of_wave[i]);
  return x;
}

// The wave's element of a value per head tile.
template <typename S>
inline float of_score_head(const float (&of_head)[S::kHeadTiles], int h) {
  if constexpr (S::kScoreHeads == S::kHeadTiles) return of_head[h];
  return first_score_head<S>() == 0 ? of_head[h] : of_head[S::kScoreHeads + h];
}

// After some score exceeded the common maximum by kSlack: the new maximum, everything rescaled to it, P again.
template <typename S>
inline void raise_maximum(Smem<S>& smem, State<S>& st, const Places<S>& places, Scores<S>& scores) {
  const int column = lane_id() & 15;
#pragma unroll
  for (int h = 0; h < S::kScoreHeads; ++h) {
    smem.exchange[0][16 * (first_score_head<S>() + h) + column][wave_id() % S::kSharers] =
        reduce_groups(largest_score(scores, h), maximum);
  }
  sync_lds();
  float shrink[S::kHeadTiles];
#pragma unroll
  for (int h = 0; h < S::kHeadTiles; ++h) {
    const float before = st.m[h];
    st.m[h] = maximum(before, reduce_sharers<S>(smem.exchange[0][16 * h + column], maximum));
    shrink[h] = st.m[h] == before ? 1.0f : exp2_fast(before - st.m[h]);
    if (!any(before != -kLargest)) continue;  // nothing accumulated yet
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) st.acc[h][n] *= shrink[h];
  }
#pragma unroll
  for (int h = 0; h < S::kScoreHeads; ++h) {
    st.sum[h] *= of_score_head<S>(shrink, h);
    exponentiate(places, scores, h, of_score_head<S>(st.m, h));
  }
  smem.raise = 0;  // everybody has seen it
  sync_lds();
}

// Scores and probabilities of a tile that all waves have gathered; `tile` in bytes from the first buffer.
template <typename S>
inline void score_tile(const Args& args, const Query<S>& query, Smem<S>& smem, State<S>& st, const Places<S>& places,
                       int tile) {
  constexpr int kChains = S::kHeadTiles == 1 ? 2 : 1;  // two, so that one product need not wait for the one before
  f32x4 chain[S::kScoreHeads][S::kTokenTiles][kChains] = {};
#pragma unroll
  for (int i = 0; i < S::kDepth; ++i) {
#pragma unroll
    for (int t = 0; t < S::kTokenTiles; ++t) {
      const auto keys =
          *(const Lds<Eight<typename S::Element>>*)(places.key + tile + t * kRows * S::kRowBytes + 64 * i);
#pragma unroll
      for (int h = 0; h < S::kScoreHeads; ++h) {
        f32x4& sum = chain[h][t][i % kChains];
        sum = mfma(keys, query.fragment[h][i], sum);
      }
    }
  }
  const f32x4 scale = {args.scale_log2, args.scale_log2, args.scale_log2, args.scale_log2};
  Scores<S> scores;
  bool exceeded = false;
#pragma unroll
  for (int h = 0; h < S::kScoreHeads; ++h) {
#pragma unroll
    for (int t = 0; t < S::kTokenTiles; ++t) {
      const f32x4 product = kChains == 2 ? chain[h][t][0] + chain[h][t][kChains - 1] : chain[h][t][0];
      scores.s[h][t] = __builtin_elementwise_fma(product, scale, *(const Lds<f32x4>*)(places.mask + 4 * kRows * t));
    }
    const float top = largest_score(scores, h), m = of_score_head<S>(st.m, h);
    st.largest[h] = maximum(st.largest[h], top);
    exceeded |= top - m > S::kSlack;
    exponentiate(places, scores, h, m);
  }
  if (any(exceeded)) smem.raise = 1;
  sync_lds();
  if (__builtin_amdgcn_readfirstlane(smem.raise)) raise_maximum(smem, st, places, scores);
#pragma unroll
  for (int h = 0; h < S::kScoreHeads; ++h) st.sum[h] += scores.sum[h];
}

template <typename S>
inline void accumulate_tile(State<S>& st, const Places<S>& places, int tile) {
#pragma unroll
  for (int k = 0; k < kTile / 32; ++k) {
    Eight<typename S::Element> weights[S::kHeadTiles];
#pragma unroll
    for (int h = 0; h < S::kHeadTiles; ++h) {
      weights[h] = *(const Lds<Eight<typename S::Element>>*)(places.p + h * Places<S>::kHeadTileBytes + 64 * k);
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const Lds<u8>* v = places.value + tile + 32 * k * S::kRowBytes + 32 * n;
      const auto low = read_transposed<typename S::Element>(v),
                 high = read_transposed<typename S::Element>(v + 16 * S::kRowBytes);
      const Eight<typename S::Element> values = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#pragma unroll
      for (int h = 0; h < S::kHeadTiles; ++h) st.acc[h][n] = mfma(values, weights[h], st.acc[h][n]);
    }
  }
}

// NaN components of the wave's rows count as 0.
template <typename S>
inline void scrub(Lds<u8>* rows) {
  constexpr u32 kInfinity16 = std::is_same_v<typename S::Element, _Float16> ? 0x7c00 : 0x7f80;
  constexpr int kChunks = kRows * S::kDim / 8;  // of 16 bytes
  for (int chunk = lane_id(); chunk < kChunks; chunk += kWave) {
    auto* p = (Lds<u32x4>*)(rows + chunk / (S::kDim / 8) * S::kRowBytes + chunk % (S::kDim / 8) * 16);
    u32x4 x = *p;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((x[k] & 0x7fffu) > kInfinity16) x[k] &= 0xffff0000u;
      if ((x[k] & 0x7fffffffu) > (kInfinity16 << 16 | 0xffff)) x[k] &= 0xffffu;
    }
    *p = x;
  }
}

// One part of a list, whose first tile is on its way as soon as it is begun.
template <typename Format, typename S>
struct List {
  using G = Gather<Format, S::kAhead>;
  int source, mine;  // mine: of a tile's tokens, the one that this lane sees to
  Part part;
  Token token;
  int index;  // of this lane's token in the tile after
  typename G::InFlight in_flight;

  bool listed(int tile) const { return tile * kTile + mine < part.count; }
  int load_index(int tile) const { return part.indices[listed(tile) ? tile * kTile + mine : 0]; }
  bool is_direct(const Args& args) const { return args.source[source].alignment >= 16 && !args.nan_to_zero; }
  static Rows<S::kRowBytes> rows(const Places<S>& places, int buffer) {
    return {places.rows.tile + buffer * S::kTileBytes, places.rows.scales};
  }

  void begin(const Args& args, int number, int row, int split, const Places<S>& places, int buffer) {
    source = number;
    mine = kRows * wave_id() + row_of_lane(lane_id());
    part = part_of(args, number, row, split);
    part.count = __builtin_amdgcn_readfirstlane(part.count);  // in every lane the same, as the compiler may not see
    if (part.count <= 0) return;
    token = locate<Format>(args.source[source], load_index(0), listed(0));
    G::start(in_flight, token, rows(places, buffer), is_direct(args));
    index = load_index(1);
  }

  // All its tiles. `buffer` is where the next tile is gathered to.
  void attend(const Args& args, const Query<S>& query, Smem<S>& smem, State<S>& st, const Places<S>& places,
              int& buffer) {
    const int tiles = (part.count + kTile - 1) / kTile;
    const bool direct = is_direct(args);
    for (int tile = 0; tile < tiles; ++tile) {
      G::finish(in_flight, rows(places, buffer), direct, token.valid);
      *places.mask_write = token.valid ? 0.0f : kMinusInf;
      if (args.nan_to_zero) scrub<S>(rows(places, buffer).tile);
      const int current = buffer * S::kTileBytes;
      if constexpr (S::kAhead) {
        sync_lds();
        buffer ^= 1;
      }
      if (tile + 1 < tiles) {
        token = locate<Format>(args.source[source], index, listed(tile + 1));
        G::start(in_flight, token, rows(places, buffer), direct);
        index = load_index(tile + 2);
      }
      if constexpr (!S::kAhead) sync_lds();
      score_tile(args, query, smem, st, places, current);
      accumulate_tile(st, places, current);
      if constexpr (!S::kAhead) sync_lds();
    }
  }
};

template <typename S>
inline void load_query(const Args& args, int token, int first_head, Query<S>& query) {
#pragma unroll
  for (int h = 0; h < S::kScoreHeads; ++h) {
    const int wanted = first_head + 16 * (first_score_head<S>() + h) + (lane_id() & 15);
    const u16* q =
        args.q + at(args.q_stride, token, wanted < args.heads ? wanted : args.heads - 1) + 8 * (lane_id() >> 4);
#pragma unroll
    for (int i = 0; i < S::kDepth; ++i) query.fragment[h][i] = load_any<Eight<typename S::Element>>(q + 32 * i);
  }
}

// A head's maximum and sum over all lanes and waves, and this lane's place of its output: four dims of each block.
struct HeadResult {
  int head;
  float m, largest, sum;
  int dim;
  bool first;  // one lane a head writes what is not per dim
};

inline void store_partial(const Args& args, int token, int split, const HeadResult& r, const f32x4 (&acc)[kBlocks]) {
  const float factor = r.largest == kMinusInf ? 1.0f : exp2_fast(r.m - r.largest);
  const std::int64_t place = partial_at(args, token, split, r.head);
  auto* to = reinterpret_cast<f32x4*>(args.partials.acc + place * kValueDims + r.dim);
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) to[4 * n] = acc[n] * factor;
  if (!r.first) return;
  args.partials.m[place] = r.largest;
  args.partials.l[place] = r.sum * factor;
}

template <typename Element>
inline void store_final(const Args& args, int token, const HeadResult& r, const f32x4 (&acc)[kBlocks], u16* out) {
  const Finish result = finish(r.m, r.sum, args.sink ? args.sink[r.head] : kMinusInf);
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    const f32x4 value = result.scale == 0 ? f32x4{} : acc[n] * result.scale;
    const auto rounded = __builtin_convertvector(value, Four<Element>);
    __builtin_memcpy(out + 16 * n, &rounded, sizeof rounded);
  }
  if (!r.first) return;
  if (args.lse) args.lse[at(args.lse_stride, token, r.head)] = result.lse;
  if (args.max_logits) args.max_logits[at(args.max_logits_stride, token, r.head)] = r.largest * kLn2;
}

// Writes the row's result, or the split's partial one.
template <typename S>
inline void store_result(const Args& args, int token, int first_head, int split, Smem<S>& smem, State<S>& st) {
  const int column = lane_id() & 15, group = lane_id() >> 4;
#pragma unroll
  for (int h = 0; h < S::kScoreHeads; ++h) {
    const int row = 16 * (first_score_head<S>() + h) + column, wave = wave_id() % S::kSharers;
    smem.exchange[0][row][wave] = reduce_groups(st.largest[h], maximum);
    smem.exchange[1][row][wave] = reduce_groups(st.sum[h], plus);
  }
  sync_lds();
  const int dim = wave_id() * kWaveDims + 4 * group;
  u16* out = args.out + at(args.out_stride, token, first_head + column) + dim;
#pragma unroll
  for (int h = 0; h < S::kHeadTiles; ++h) {
    const int row = 16 * h + column;
    const HeadResult r{first_head + row,
                       st.m[h],
                       reduce_sharers<S>(smem.exchange[0][row], maximum),
                       reduce_sharers<S>(smem.exchange[1][row], plus),
                       dim,
                       wave_id() == 0 && group == 0};
    if (r.head >= args.heads) return;
    if (args.partial) {
      store_partial(args, token, split, r, st.acc[h]);
    } else {
      store_final<typename S::Element>(args, token, r, st.acc[h], out + 16 * h * args.out_stride[1]);
    }
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
  using Type = Format;
  template <typename Body>
  static void select(int, Body&& body) {
    body.template operator()<Format>();
  }
};

template <typename S, typename Formats>
inline void decode(const Args& kernel_args, const Order& order, Smem<S>& smem) {
  const auto rows = static_cast<int>(kernel_args.tokens);
  auto position = static_cast<int>(__builtin_amdgcn_workgroup_id_x());
  const int first_head = static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * S::kHeads;
  const int split = static_cast<int>(__builtin_amdgcn_workgroup_id_z());
  const Places<S> places(smem);
  smem.raise = 0;
  int row = row_at(position, rows, order), buffer = 0;
  Query<S> query;
  load_query(kernel_args, row, first_head, query);
  if constexpr (S::kAhead) {
    List<typename Formats::Type, S> list;
    list.begin(kernel_args, 0, row, split, places, buffer);
    while (true) {
      const Args& args = (&kernel_args)[opaque_zero()];  // read anew for each row: too many registers if kept
      State<S> st;
#pragma nounroll
      for (int i = 0; i < args.source_count; ++i) {
        if (i > 0) list.begin(args, i, row, split, places, buffer);
        list.attend(args, query, smem, st, places, buffer);
      }
      const int done = row;
      position += order.groups;
      const bool more = position < rows;
      if (more) {      // its first tile and queries arrive while this row is finished
        wait_loads();  // of a row without tokens, which did not need its queries
        row = row_at(position, rows, order);
        load_query(args, row, first_head, query);
        list.begin(args, 0, row, split, places, buffer);
      }
      store_result(args, done, first_head, split, smem, st);
      if (!more) return;
      sync_lds();  // the next row writes where this one may still be read
    }
  } else {  // a group for every row
    State<S> st;
#pragma nounroll
    for (int i = 0; i < kernel_args.source_count; ++i) {
      Formats::select(kernel_args.source[i].format, [&]<typename Format>() {
        List<Format, S> list;
        list.begin(kernel_args, i, row, split, places, buffer);
        list.attend(kernel_args, query, smem, st, places, buffer);
      });
    }
    store_result(kernel_args, row, first_head, split, smem, st);
  }
}

using Fn = UniformFp8<Fp8::kE4m3fn>;
using Fnuz = UniformFp8<Fp8::kE4m3fnuz>;
using Any512 =
    FormatList<Coded<PASA_KV_BF16, Bf16<512>>, Coded<PASA_KV_PACKED_BF16, Bf16<512>>, Coded<PASA_KV_FP8_E4M3FN, Fn>,
               Coded<PASA_KV_FP8_E4M3FNUZ, Fnuz>, Coded<PASA_KV_FP8_DS_MLA, Fp8DsMla>>;
using Any576 = FormatList<Coded<PASA_KV_BF16, Bf16<576>>, Coded<PASA_KV_FP8_V32, Fp8V32>>;

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end

// The instantiations, by the names that backend.cpp looks up. 16 heads: two waves a SIMD, 256 registers; 64 heads: one.
#define PASA_DECODE(name, word, dim, head_tiles, score_heads, formats)                                   \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256),                               \
                            amdgpu_waves_per_eu(head_tiles == 1 ? 2 : 1, head_tiles == 1 ? 2 : 1))) void \
  name(pasa::gpu::Args args, pasa::hip::Order order) {                                                   \
    using Shape = pasa::hip::Shape<word, dim, head_tiles, score_heads>;                                  \
    __attribute__((shared)) static pasa::hip::Smem<Shape> smem;                                          \
    pasa::hip::decode<Shape, formats>(args, order, smem);                                                \
  }
PASA_DECODE(decode_bf16_512, __bf16, 512, 1, 1, pasa::hip::Only<pasa::Bf16<512>>)
PASA_DECODE(decode_f16_512, _Float16, 512, 1, 1, pasa::hip::Only<pasa::F16<512>>)
PASA_DECODE(decode_fp8_e4m3fn, __bf16, 512, 1, 1, pasa::hip::Only<pasa::hip::Fn>)
PASA_DECODE(decode_fp8_e4m3fnuz, __bf16, 512, 1, 1, pasa::hip::Only<pasa::hip::Fnuz>)
PASA_DECODE(decode_fp8_ds_mla, __bf16, 512, 1, 1, pasa::hip::Only<pasa::Fp8DsMla>)
PASA_DECODE(decode_any_512, __bf16, 512, 1, 1, pasa::hip::Any512)
PASA_DECODE(decode_bf16_576, __bf16, 576, 1, 1, pasa::hip::Only<pasa::Bf16<576>>)
PASA_DECODE(decode_f16_576, _Float16, 576, 1, 1, pasa::hip::Only<pasa::F16<576>>)
PASA_DECODE(decode_fp8_v32, __bf16, 576, 1, 1, pasa::hip::Only<pasa::Fp8V32>)
PASA_DECODE(decode_any_576, __bf16, 576, 1, 1, pasa::hip::Any576)

PASA_DECODE(decode64_bf16_512, __bf16, 512, 4, 4, pasa::hip::Only<pasa::Bf16<512>>)
PASA_DECODE(decode64_f16_512, _Float16, 512, 4, 4, pasa::hip::Only<pasa::F16<512>>)
PASA_DECODE(decode64_fp8_e4m3fn, __bf16, 512, 4, 4, pasa::hip::Only<pasa::hip::Fn>)
PASA_DECODE(decode64_fp8_e4m3fnuz, __bf16, 512, 4, 4, pasa::hip::Only<pasa::hip::Fnuz>)
PASA_DECODE(decode64_fp8_ds_mla, __bf16, 512, 4, 4, pasa::hip::Only<pasa::Fp8DsMla>)
PASA_DECODE(decode64_bf16_576, __bf16, 576, 4, 4, pasa::hip::Only<pasa::Bf16<576>>)
PASA_DECODE(decode64_f16_576, _Float16, 576, 4, 4, pasa::hip::Only<pasa::F16<576>>)
PASA_DECODE(decode64_fp8_v32, __bf16, 576, 4, 2, pasa::hip::Only<pasa::Fp8V32>)
