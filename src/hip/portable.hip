// The portable attention kernel: every format, bf16 and f16, on every architecture that has a product of 16-bit fragments,
// with waves of 64 (gfx942, gfx950) or of 32 (gfx1250). Correct first; decode.hip is the fast one for gfx950.
//
// A work-group of 256 threads takes 16 heads of one query row and one split of its lists:
//
//   for each tile of 32 keys:
//     gather      eight threads a key: bytes, loaded while the tile before is computed with -> a row of 16-bit words in LDS
//     scores      S = Q K^T: each wave its share of the depth
//     softmax     sixteen threads a head: the shares added up, P = 2^(S - m) into LDS
//     accumulate  O += P V: each wave its share of the 512 value dims
//
// A product multiplies 16 x 32 by 32 x 16. A lane holds row or column lane % 16 of a fragment and, of its depth, runs of
// eight that the lane groups of 16 take in turns. Both factors are laid out so; if the hardware numbers the depth
// differently, it permutes both alike, and the sum is the same. Only multiply() and the result's rows know the machine.
//
// Words: bf16; f16 if every pool is f16. f16 queries on bf16 keys lose nothing: q = high + low, both bf16, at two products.
#include <utility>

#include "core/format.h"
#include "core/gpu_args.h"
#include "hip/finish.h"

#pragma clang force_cuda_host_device begin

namespace pasa::hip {

using namespace gpu;

constexpr int kThreads = 256, kWaves = kThreads / kWave, kHeads = 16, kTile = 32, kDepth = 32;
constexpr int kKeyThreads = kThreads / kTile;    // that bring one key
constexpr int kHeadThreads = kThreads / kHeads;  // that compute one head's softmax
constexpr int kRowBytes = 2 * kMaxDim + 16;      // the padding puts the rows of a fragment in different banks

// ---- products ----------------------------------------------------------------------------------------------------------

constexpr int kGroups = kWave / 16, kRuns = kDepth / (8 * kGroups);  // runs of eight words of a lane
constexpr int kResults = 16 * 16 / kWave;                            // floats of a lane: row kResults * (lane / 16) + i
using Result = float __attribute__((ext_vector_type(kResults)));
struct Fragment {
  u32x4 run[kRuns];
};

// The types are parameters so that only the architecture's own lines are compiled.
template <Word16 W, typename F, typename R>
inline R multiply(const F& a, const F& b, R c) {
  constexpr bool kIsBf16 = W == Word16::kBf16;
  if constexpr (PASA_GFX == 0x950) {
    if constexpr (kIsBf16) {
      using V = Eight<__bf16>;
      return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(V, a.run[0]), __builtin_bit_cast(V, b.run[0]),
                                                     c, 0, 0, 0);
    } else {
      using V = Eight<_Float16>;
      return __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(V, a.run[0]), __builtin_bit_cast(V, b.run[0]), c,
                                                    0, 0, 0);
    }
  } else if constexpr (PASA_GFX == 0x942) {  // half the depth at a time
    struct Halves {
      u32x2 half[2];
    };
    const auto x = __builtin_bit_cast(Halves, a.run[0]), y = __builtin_bit_cast(Halves, b.run[0]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kIsBf16) {
        using V = short __attribute__((ext_vector_type(4)));
        c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(V, x.half[i]),
                                                      __builtin_bit_cast(V, y.half[i]), c, 0, 0, 0);
      } else {
        using V = Four<_Float16>;
        c = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(V, x.half[i]), __builtin_bit_cast(V, y.half[i]), c,
                                                  0, 0, 0);
      }
    }
    return c;
  } else {
    if constexpr (kIsBf16) {
      using V = __bf16 __attribute__((ext_vector_type(16)));
      return __builtin_amdgcn_wmma_f32_16x16x32_bf16(false, __builtin_bit_cast(V, a), false, __builtin_bit_cast(V, b),
                                                     short{0}, c, false, false);
    } else {
      using V = _Float16 __attribute__((ext_vector_type(16)));
      return __builtin_amdgcn_wmma_f32_16x16x32_f16(false, __builtin_bit_cast(V, a), false, __builtin_bit_cast(V, b),
                                                    short{0}, c, false, false);
    }
  }
}

// Where run i of a lane begins, in words of its row.
inline int run_at(int i) { return 8 * (lane_id() / 16 + kGroups * i); }

// ---- words -------------------------------------------------------------------------------------------------------------

// Two floats as words, the first in the low half.
template <Word16 W>
inline u32 pack(f32x2 x) {
  if constexpr (W == Word16::kBf16) return __builtin_bit_cast(u32, __builtin_convertvector(x, bf16x2));
  return __builtin_bit_cast(u32, __builtin_convertvector(x, f16x2));
}
// The same of floats that are words: no rounding.
template <Word16 W>
inline u32 pack_exact(f32x2 x) {
  if constexpr (W == Word16::kF16) return pack<W>(x);
  const float low = x[0], high = x[1];  // clang casts the bits of a vector's first element, whichever is named
  return __builtin_amdgcn_perm(__builtin_bit_cast(u32, high), __builtin_bit_cast(u32, low), 0x07060302);
}
template <Word16 W>
inline f32x2 unpack(u32 pair) {
  if constexpr (W == Word16::kBf16) {
    return {__builtin_bit_cast(float, pair << 16), __builtin_bit_cast(float, pair & 0xffff0000u)};
  }
  return __builtin_convertvector(__builtin_bit_cast(f16x2, pair), f32x2);
}

// NaN words become 0.
template <Word16 W>
inline u32 without_nan(u32 pair) {
  constexpr u32 kInfinity16 = W == Word16::kBf16 ? 0x7f80 : 0x7c00;
  if ((pair & 0x7fffu) > kInfinity16) pair &= 0xffff0000u;
  if ((pair >> 16 & 0x7fffu) > kInfinity16) pair &= 0xffffu;
  return pair;
}

// The fp8 that the architecture's own conversion means.
constexpr Fp8 kNativeFp8 = PASA_GFX == 0x942 ? Fp8::kE4m3fnuz : Fp8::kE4m3fn;

// Two codes of a word. What the conversion does not mean: e4m3fn read as fnuz is half the value, but -0 and NaN have other
// codes. fnuz goes by way of fp16: with its bits in place it is the value times a power of two, subnormals included.
template <Fp8 F, bool High>
inline f32x2 to_floats(u32 codes) {
  if constexpr (F == kNativeFp8) {
    return fp8_to_float<High>(codes);
  } else if constexpr (F == Fp8::kE4m3fn) {
    const u32 magnitude = codes & 0x7f7f7f7fu, minus_zeros = ~(magnitude + 0x7f7f7f7fu) & codes & 0x80808080u;
    f32x2 result = fp8_to_float<High>(codes ^ minus_zeros) * 2.0f;
    if ((magnitude + 0x01010101u) & 0x80808080u) {  // rare
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if ((magnitude >> (8 * i + (High ? 16 : 0)) & 0x7f) == 0x7f) result[i] = __builtin_nanf("");
      }
    }
    return result;
  } else {
    f32x2 result;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 code = codes >> (8 * i + (High ? 16 : 0)) & 0xff;
      const auto half = static_cast<u16>((code & 0x80) << 8 | (code & 0x7f) << 7);
      result[i] = code == 0x80 ? __builtin_nanf("") : static_cast<float>(__builtin_bit_cast(_Float16, half)) * 128.0f;
    }
    return result;
  }
}

// ---- LDS ---------------------------------------------------------------------------------------------------------------

struct Smem {
  alignas(16) u8 keys[kTile][kRowBytes];                // and values: their first 512 components
  alignas(16) u16 p[kHeads][kTile + 8];                 // probabilities
  alignas(16) float scores[kWaves][kHeads][kTile + 4];  // each wave's share of the depth
  float factor[kHeads];                                 // what a head's accumulators are multiplied by
  u32 valid[kTile];
};
static_assert(sizeof(Smem) <= 64 * 1024);

// ---- gather ------------------------------------------------------------------------------------------------------------

// What an invalid entry reads.
__attribute__((device)) const u8 kZeros[2 * kMaxDim] = {};

// How the eight threads of a key share it: thread t takes the chunks of 16 bytes t, t + 8, ...; first come those of codes.
template <typename Format>
struct Chunks {
  static constexpr int kCodes = Format::kNope / 16, kAll = kCodes + Format::kRope / 8;
  static constexpr int kEach = (kAll + kKeyThreads - 1) / kKeyThreads;
};

// A thread's share of a key as it lies in memory.
struct Raw {
  u32x4 chunk[Chunks<Bf16<kMaxDim>>::kEach];
  u32 scale[Chunks<Fp8V32>::kEach];  // of formats with codes
  bool valid;
};

// Calls body(0), body(1), ...: unlike a loop that the compiler unrolls, this surely leaves arrays in registers.
template <int kCount, typename Body>
inline void unrolled(Body&& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) { (body(kIndex), ...); }
  (std::make_integer_sequence<int, kCount>{});
}

template <typename Format>
inline Raw fetch(const SourceArgs& source, int index, bool listed) {
  using C = Chunks<Format>;
  Raw raw;
  raw.valid = listed && is_valid(source, index);
  Row row = locate<Format>(source, static_cast<u32>(index));
  if (!raw.valid) row.record = row.scales = row.pe = kZeros;
  const int thread = static_cast<int>(__builtin_amdgcn_workitem_id_x()) % kKeyThreads;
  unrolled<C::kEach>([&](int i) {
    const int chunk = thread + kKeyThreads * i;
    if (C::kAll % kKeyThreads && chunk >= C::kAll) return;
    const bool is_codes = chunk < C::kCodes;
    const int component = is_codes ? 16 * chunk : Format::kNope + 8 * (chunk - C::kCodes);
    raw.chunk[i] = load_any<u32x4>(Format::component(row, component));
    if constexpr (Format::kScales > 0) {
      const int tile = is_codes ? component / Format::kScaleTile : 0;
      if constexpr (Format::kScaling == Scaling::kTailUe8m0) raw.scale[i] = load_any<u8>(row.scales + tile);
      if constexpr (Format::kScaling == Scaling::kSideFloat) raw.scale[i] = load_any<u32>(row.scales + 4 * tile);
      if constexpr (Format::kScaling == Scaling::kInlineFloat) {
        raw.scale[i] = load_any<u32>(row.record + Format::kNope + 4 * tile);
      }
    }
  });
  return raw;
}

// Dequantised, rounded once to the word.
template <typename Format, Word16 W>
inline void place(const Raw& raw, Smem& smem) {
  using C = Chunks<Format>;
  const int thread = static_cast<int>(__builtin_amdgcn_workitem_id_x()), key = thread / kKeyThreads;
  const auto store = [&](int component, u32x4 words) {
    *reinterpret_cast<u32x4*>(smem.keys[key] + 2 * component) = words;
  };
  if (thread % kKeyThreads == 0) smem.valid[key] = raw.valid;
  unrolled<C::kEach>([&](int i) {
    const int chunk = thread % kKeyThreads + kKeyThreads * i;
    if (C::kAll % kKeyThreads && chunk >= C::kAll) return;
    if (chunk < C::kCodes) {
      constexpr bool kHasFloatScale =
          Format::kScaling == Scaling::kSideFloat || Format::kScaling == Scaling::kInlineFloat;
      float scale = 1.0f;
      if constexpr (Format::kScaling == Scaling::kTailUe8m0) scale = ue8m0_to_float(static_cast<u8>(raw.scale[i]));
      if constexpr (kHasFloatScale) scale = __builtin_bit_cast(float, raw.scale[i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32x4 words;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const u32 codes = raw.chunk[i][2 * half + k / 2];
          const f32x2 value =
              k % 2 ? to_floats<Format::kFlavour, true>(codes) : to_floats<Format::kFlavour, false>(codes);
          // A code times a power of two has four significant bits.
          words[k] = kHasFloatScale ? pack<W>(value * scale) : pack_exact<W>(value * scale);
        }
        store(16 * chunk + 8 * half, words);
      }
    } else {
      u32x4 words = raw.chunk[i];
      if constexpr (Format::kWord != W) {
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = pack<W>(unpack<Format::kWord>(words[k]));
      }
      store(Format::kNope + 8 * (chunk - C::kCodes), words);
    }
  });
}

// NaN components of a tile count as 0.
template <Word16 W>
inline void scrub(Smem& smem, int dim) {
  const int thread = static_cast<int>(__builtin_amdgcn_workitem_id_x());
#pragma nounroll
  for (int word = 2 * (thread % kKeyThreads); word < dim; word += 2 * kKeyThreads) {
    auto* pair = reinterpret_cast<u32*>(smem.keys[thread / kKeyThreads] + 2 * word);
    *pair = without_nan<W>(*pair);
  }
  sync_lds();
}

// Calls body.operator()<Format>() for a format that a kernel of these words can meet.
template <Word16 W, bool kF16Queries, typename Body>
inline auto with_pool(pasa_kv_format format, int dim, Body&& body) {
  const bool short_keys = dim == kValueDim;
  if constexpr (W == Word16::kF16) {
    return short_keys ? body.template operator()<F16<512>>() : body.template operator()<F16<576>>();
  } else {
    if constexpr (kF16Queries) {
      if (format == PASA_KV_F16) {
        return short_keys ? body.template operator()<F16<512>>() : body.template operator()<F16<576>>();
      }
    }
    switch (format) {
      case PASA_KV_FP8_E4M3FN:
        return short_keys ? body.template operator()<UniformFp8<Fp8::kE4m3fn>>()
                          : body.template operator()<DenseFp8<Fp8::kE4m3fn>>();
      case PASA_KV_FP8_E4M3FNUZ:
        return short_keys ? body.template operator()<UniformFp8<Fp8::kE4m3fnuz>>()
                          : body.template operator()<DenseFp8<Fp8::kE4m3fnuz>>();
      case PASA_KV_FP8_DS_MLA:
        return body.template operator()<Fp8DsMla>();
      case PASA_KV_FP8_V32:
        return body.template operator()<Fp8V32>();
      default:
        return short_keys ? body.template operator()<Bf16<512>>() : body.template operator()<Bf16<576>>();
    }
  }
}

// ---- scores, softmax, accumulate ---------------------------------------------------------------------------------------

constexpr int kMaxSteps = (kMaxDim / kDepth + kWaves - 1) / kWaves;  // of depth 32 that a wave takes
constexpr int kWaveDims = kValueDim / kWaves, kBlocks = kWaveDims / 16;

template <bool kSplitQueries>
struct Query {
  static constexpr int kTerms = kSplitQueries ? 2 : 1;
  Fragment term[kTerms][kMaxSteps];
};

struct State {
  Result acc[kBlocks] = {};    // block 2n: the even ones of 32 dims, 2n + 1: the odd ones
  float m = kMinusInf, l = 0;  // of head thread / 16
};

template <bool kSplitQueries>
inline void load_query(Query<kSplitQueries>& query, const Args& args, int token, int first_head) {
  const int wanted = first_head + lane_id() % 16, head = wanted < args.heads ? wanted : args.heads - 1;
  const u16* q = args.q + at(args.q_stride, token, head);
#pragma unroll
  for (int i = 0; i < kMaxSteps; ++i) {
    const int step = wave_id() + kWaves * i;
    if (step >= args.dim / kDepth) break;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const u32x4 words = load_any<u32x4>(q + kDepth * step + run_at(r));
      query.term[0][i].run[r] = words;
      if constexpr (kSplitQueries) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {  // 11 bits of significand are 8 and 3
          const f32x2 whole = unpack<Word16::kF16>(words[k]);
          const u32 high = pack<Word16::kBf16>(whole);
          query.term[0][i].run[r][k] = high;
          query.term[1][i].run[r][k] = pack<Word16::kBf16>(whole - unpack<Word16::kBf16>(high));
        }
      }
    }
  }
}

inline Fragment row_fragment(const void* words) {
  Fragment f;
#pragma unroll
  for (int r = 0; r < kRuns; ++r)
    f.run[r] = *reinterpret_cast<const u32x4*>(static_cast<const u16*>(words) + run_at(r));
  return f;
}

template <Word16 W, bool kSplitQueries>
inline void scores(Smem& smem, const Query<kSplitQueries>& query, int dim) {
  const int lane = lane_id(), wave = wave_id();
#pragma unroll
  for (int block = 0; block < kTile / 16; ++block) {
    Result sum = {};
#pragma unroll
    for (int i = 0; i < kMaxSteps; ++i) {
      const int step = wave + kWaves * i;
      if (step >= dim / kDepth) break;
      const Fragment keys = row_fragment(smem.keys[16 * block + lane % 16] + 2 * kDepth * step);
#pragma unroll
      for (int t = 0; t < Query<kSplitQueries>::kTerms; ++t) sum = multiply<W>(query.term[t][i], keys, sum);
    }
#pragma unroll
    for (int r = 0; r < kResults; ++r) smem.scores[wave][kResults * (lane / 16) + r][16 * block + lane % 16] = sum[r];
  }
}

template <Word16 W>
inline void softmax(Smem& smem, State& st, float scale_log2) {
  const int thread = static_cast<int>(__builtin_amdgcn_workitem_id_x()), head = thread / kHeadThreads,
            column = thread % kHeadThreads;
  const auto max = [](float a, float b) { return __builtin_fmaxf(a, b); };
  const auto plus = [](float a, float b) { return a + b; };
  f32x2 s = {};  // of keys 2 * column and the next
#pragma unroll
  for (int w = 0; w < kWaves; ++w) s += *reinterpret_cast<const f32x2*>(&smem.scores[w][head][2 * column]);
#pragma unroll
  for (int k = 0; k < 2; ++k) s[k] = smem.valid[2 * column + k] ? s[k] * scale_log2 : kMinusInf;
  const float before = st.m;
  st.m = max(before, reduce_row(max(s[0], s[1]), max));
  const float base = st.m == kMinusInf ? 0.0f : st.m, factor = exp2_fast(before - base);
  const f32x2 p = {exp2_fast(s[0] - base), exp2_fast(s[1] - base)};
  st.l = st.l * factor + reduce_row(p[0] + p[1], plus);
  *reinterpret_cast<u32*>(&smem.p[head][2 * column]) = pack<W>(p);
  if (column == 0) smem.factor[head] = factor;
}

template <Word16 W>
inline void accumulate(Smem& smem, State& st) {
  const int lane = lane_id();
  Result factor;
#pragma unroll
  for (int r = 0; r < kResults; ++r) factor[r] = smem.factor[kResults * (lane / 16) + r];
  const Fragment p = row_fragment(smem.p[lane % 16]);
#pragma unroll
  for (int n = 0; n < kBlocks; n += 2) {
    // A lane reads two neighbouring dims of each of its keys: one column of an even and one of an odd block.
    const int dim = kWaveDims * wave_id() + 16 * n + 2 * (lane % 16);
    Fragment even, odd;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto* first = reinterpret_cast<const u32*>(smem.keys[run_at(r) + 2 * k] + 2 * dim);
        const auto* second = reinterpret_cast<const u32*>(smem.keys[run_at(r) + 2 * k + 1] + 2 * dim);
        even.run[r][k] = __builtin_amdgcn_perm(*second, *first, 0x05040100);
        odd.run[r][k] = __builtin_amdgcn_perm(*second, *first, 0x07060302);
      }
    }
    st.acc[n] = multiply<W>(p, even, st.acc[n] * factor);
    st.acc[n + 1] = multiply<W>(p, odd, st.acc[n + 1] * factor);
  }
}

// ---- the row -----------------------------------------------------------------------------------------------------------

template <Word16 W, bool kF16Queries>
inline void attend_source(const Args& args, const SourceArgs& source, Part part, Smem& smem,
                          const Query<kF16Queries && W == Word16::kBf16>& query, State& st) {
  const int tiles = (part.count + kTile - 1) / kTile;
  if (tiles == 0) return;
  const int mine = static_cast<int>(__builtin_amdgcn_workitem_id_x()) / kKeyThreads;
  const auto listed = [&](int tile) { return tile * kTile + mine < part.count; };
  const auto index_of = [&](int tile) {
    return load_any<int>(part.indices + (listed(tile) ? tile * kTile + mine : 0));
  };
  const auto fetch_tile = [&](int tile, int index) {
    return with_pool<W, kF16Queries>(source.format, args.dim,
                                     [&]<typename Format>() { return fetch<Format>(source, index, listed(tile)); });
  };
  Raw raw;
  int index = index_of(0);
#pragma nounroll
  for (int tile = -1; tile < tiles; ++tile) {  // the first turn only fetches: the code for that stands once
    if (tile >= 0) {
      with_pool<W, kF16Queries>(source.format, args.dim, [&]<typename Format>() { place<Format, W>(raw, smem); });
    }
    if (tile + 1 < tiles) {
      raw = fetch_tile(tile + 1, index);
      index = index_of(tile + 2);
    }
    if (tile < 0) continue;
    sync_lds();
    if (args.nan_to_zero) scrub<W>(smem, args.dim);
    scores<W>(smem, query, args.dim);
    sync_lds();
    softmax<W>(smem, st, args.scale_log2);
    sync_lds();
    accumulate<W>(smem, st);
    sync_lds();
  }
}

// Calls body(head, dim, values of dim and dim + 1) for all that the lane holds of existing heads.
template <typename Body>
inline void for_each_pair(const Args& args, int first_head, const State& st, Body&& body) {
  const int lane = lane_id();
#pragma unroll
  for (int r = 0; r < kResults; ++r) {
    const int row = kResults * (lane / 16) + r;
    if (first_head + row >= args.heads) continue;
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      body(row, kWaveDims * wave_id() + 16 * n + 2 * (lane % 16), f32x2{st.acc[n][r], st.acc[n + 1][r]});
    }
  }
}

inline void store_result(const Args& args, int token, int first_head, int split, Smem& smem, const State& st) {
  const int thread = static_cast<int>(__builtin_amdgcn_workitem_id_x()), head = first_head + thread / kHeadThreads;
  const bool mine = thread % kHeadThreads == 0 && head < args.heads;  // tells of the head
  if (args.partial) {
    if (mine) {
      args.partials.m[partial_at(args, token, split, head)] = st.m;
      args.partials.l[partial_at(args, token, split, head)] = st.l;
    }
    for_each_pair(args, first_head, st, [&](int row, int dim, f32x2 x) {
      const f32x2 scaled = x * args.value_scale;
      float* to = args.partials.acc + partial_at(args, token, split, first_head + row) * kValueDim + dim;
      __builtin_memcpy(to, &scaled, sizeof scaled);
    });
    return;
  }
  if (mine) {
    const Finish end = finish(st.m, st.l, args.sink ? args.sink[head] : kMinusInf);
    smem.factor[head - first_head] = end.scale * args.value_scale;
    if (args.lse) args.lse[at(args.lse_stride, token, head)] = end.lse;
    if (args.max_logits) args.max_logits[at(args.max_logits_stride, token, head)] = st.m * kLn2;
  }
  sync_lds();
  for_each_pair(args, first_head, st, [&](int row, int dim, f32x2 x) {
    const float factor = smem.factor[row];
    const f32x2 scaled = factor == 0 ? f32x2{} : x * factor;
    const u32 words = args.f16 ? pack<Word16::kF16>(scaled) : pack<Word16::kBf16>(scaled);
    __builtin_memcpy(args.out + at(args.out_stride, token, first_head + row) + dim, &words, sizeof words);
  });
}

template <Word16 W, bool kF16Queries>
inline void attend(const Args& args, Smem& smem) {
  const int token = static_cast<int>(__builtin_amdgcn_workgroup_id_x());
  const int first_head = static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * kHeads;
  const int split = static_cast<int>(__builtin_amdgcn_workgroup_id_z());
  Query<kF16Queries && W == Word16::kBf16> query;
  load_query(query, args, token, first_head);
  State st;
#pragma nounroll
  for (int i = 0; i < args.source_count; ++i) {
    attend_source<W, kF16Queries>(args, args.source[i], part_of(args, i, token, split), smem, query, st);
  }
  store_result(args, token, first_head, split, smem, st);
}

}  // namespace pasa::hip

#pragma clang force_cuda_host_device end

#define PASA_GENERAL(name, word, f16_queries)                                                                 \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void name(pasa::gpu::Args args) { \
    __attribute__((shared)) static pasa::hip::Smem smem;                                                      \
    pasa::hip::attend<pasa::Word16::word, f16_queries>(args, smem);                                           \
  }
PASA_GENERAL(general_bf16, kBf16, false)
PASA_GENERAL(general_f16, kF16, true)  // every pool is f16
PASA_GENERAL(general_f16_queries, kBf16, true)
