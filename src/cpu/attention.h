// The fp32 kernel, written once: portable.cpp, avx2.cpp and avx512.cpp include it with their own flags and tile sizes.
//
//   load        a block's keys, dequantised to fp32 rows K [tokens, dim]; the value is the row's first 512 components
//   scores      S^T [tokens, heads] = K Q^T     lanes are heads: Q is transposed once, keys are broadcast
//   softmax     down the columns of S^T         a maximum, a sum and a factor are one vector each: nothing is horizontal
//   accumulate  O [heads, 512] += P V           lanes are dims: V lies as it was loaded, weights are broadcast
//
// Both products keep a block of sums in registers and read everything else with stride one, so they run near the FMA
// ceiling; docs/cpu.md has the budget. O is rescaled only when a maximum has grown by more than kSlack binary orders: up
// to there the weights merely exceed 1, which fp32 does not mind.
#pragma once

#include "cpu/kernel.h"
#include "cpu/vec.h"

namespace pasa::cpu {
namespace {

#if defined(__AVX512BW__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;
using F32 = Vec<kVectorBytes>::F32;
using U32 = Vec<kVectorBytes>::U32;
using I32 = Vec<kVectorBytes>::I32;
using Half = Vec<kVectorBytes>::Half;

constexpr int kBlock = 64;                // keys taken together: 128 KiB of fp32 rows, in L2
constexpr int kMaxHeads = 128;            // of a part; more would push Q and O out of L2
constexpr int kHeadTile = 4;              // heads x kDimVectors vectors of sums in accumulate
constexpr int kQueryHeads = 2 * kLanes;   // heads of a tile of scores
constexpr int kKeyFloats = kMaxDim + 16;  // a row of K; the padding spreads rows over the sets of L1
constexpr int kKeyRows = kBlock + 2 * kTokenTile;
constexpr float kSlack = 8.0f;

static_assert(kLanes % kHeadTile == 0 && kValueDim % (kLanes * kDimVectors) == 0);

// ---- load

// kLanes codes: shifted into a float's place and rebiased by an integer addition. Right for normal numbers only.
template <Fp8 Flavour>
constexpr std::uint32_t kRebias = Flavour == Fp8::kE4m3fn ? 120 : 119;  // 127 - bias

template <Fp8 Flavour>
inline F32 decode_normal(const std::uint8_t* codes) {
  return (F32)((((U32)widen_codes<I32>(codes) << 20) & 0x87f00000u) + (kRebias<Flavour> << 23));
}

// Right for every code. Where a subnormal would need its leading bit found, it becomes 2^(1-bias) * (1 + m/8), and
// 2^(1-bias) is taken off again: no subnormal float is ever an operand, for those cost a microcode assist.
template <Fp8 Flavour>
inline F32 decode_any(const std::uint8_t* codes) {
  const U32 word = (U32)widen_codes<I32>(codes);
  const U32 magnitude = (word << 20) & 0x07f00000u, sign = word & 0x80000000u;
  const U32 subnormal = (U32)(magnitude < 0x00800000u);
  const F32 surplus = (F32)(subnormal & ((kRebias<Flavour> + 1) << 23));
  const F32 value = (F32)(magnitude + (kRebias<Flavour> << 23) + (subnormal & 0x00800000u)) - surplus;
  const U32 code = word & 0xffu;
  const U32 nan = (U32)(Flavour == Fp8::kE4m3fn ? (code & 0x7fu) == 0x7fu : code == 0x80u);
  return (F32)((U32)value | sign | (nan & 0x7fc00000u));
}

// May a code among `count` be anything but a normal number? Rarely: codes scaled to their largest are seldom that small.
// One addition puts OCP's NaN (0x7f, 0xff) beside the small codes; the next binade up is caught too, which harms nothing.
template <Fp8 Flavour>
inline bool has_rare(const std::uint8_t* codes, int count) {
  using U8 = Vec<kVectorBytes>::U8;
  Vec<kVectorBytes>::I8 rare = {};
  for (int i = 0; i < count; i += kVectorBytes) {
    const U8 c = load<U8>(codes + i);
    rare |= Flavour == Fp8::kE4m3fn ? ((c + 1) & 0x70) == 0 : (c & 0x78) == 0;
  }
  return any(rare);
}

inline float row_scale(const std::uint8_t* bytes) {
  float scale;
  std::memcpy(&scale, bytes, sizeof scale);
  return scale;
}

template <typename Format>
void load_key(Row row, float* key) {
  for (int tile = 0; tile < Format::kScales; ++tile) {
    float scale = 1.0f;
    if constexpr (Format::kScaling == Scaling::kSideFloat) scale = row_scale(row.scales + 4 * tile);
    if constexpr (Format::kScaling == Scaling::kInlineFloat) scale = row_scale(row.record + Format::kNope + 4 * tile);
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      const std::uint32_t byte = row.scales[tile], bits = byte == 0     ? 0x00400000u
                                                          : byte == 255 ? 0x7fc00000u
                                                                        : byte << 23;
      std::memcpy(&scale, &bits, sizeof scale);
    }
    const std::uint8_t* codes = Format::component(row, tile * Format::kScaleTile);
    float* to = key + tile * Format::kScaleTile;
    if (has_rare<Format::kFlavour>(codes, Format::kScaleTile)) [[unlikely]] {
      for (int d = 0; d < Format::kScaleTile; d += kLanes)
        store(to + d, decode_any<Format::kFlavour>(codes + d) * scale);
    } else {
#pragma GCC unroll 4
      for (int d = 0; d < Format::kScaleTile; d += kLanes) {
        store(to + d, decode_normal<Format::kFlavour>(codes + d) * scale);
      }
    }
  }
  const auto load_words = [&](int begin, int end) {  // of one piece
    const std::uint8_t* from = Format::component(row, begin);
#pragma GCC unroll 4
    for (int d = begin; d < end; d += kLanes) {
      const auto words = load<Half>(from + 2 * (d - begin));
      store(key + d, Format::kWord == Word16::kBf16 ? bf16_to_f32<F32>(words) : f16_to_f32<F32>(words));
    }
  };
  if constexpr (Format::kNope < Format::kDim) {
    constexpr int kFirst = Format::kTwoPieces ? kValueDim : Format::kDim;
    load_words(Format::kNope, kFirst);
    if constexpr (kFirst < Format::kDim) load_words(kFirst, Format::kDim);
  }
}

// core/format.h's with_format() as a table: the only switch over formats in this object.
struct Loader {
  void (*load)(Row, float*);
  int record_bytes, pe_bytes;
};
template <typename Format>
constexpr Loader kLoader = {load_key<Format>, Format::kFirstBytes, Format::kPeBytes};

Loader loader(pasa_kv_format format, int dim) {
  switch (format) {
    case PASA_KV_F16:
      return dim == 512 ? kLoader<F16<512>> : kLoader<F16<576>>;
    case PASA_KV_FP8_E4M3FN:
      return dim == 512 ? kLoader<UniformFp8<Fp8::kE4m3fn>> : kLoader<DenseFp8<Fp8::kE4m3fn>>;
    case PASA_KV_FP8_E4M3FNUZ:
      return dim == 512 ? kLoader<UniformFp8<Fp8::kE4m3fnuz>> : kLoader<DenseFp8<Fp8::kE4m3fnuz>>;
    case PASA_KV_FP8_DS_MLA:
      return kLoader<Fp8DsMla>;
    case PASA_KV_FP8_V32:
      return kLoader<Fp8V32>;
    default:
      return dim == 512 ? kLoader<Bf16<512>> : kLoader<Bf16<576>>;
  }
}

void scrub(float* key, int dim) {  // nan_to_zero
  for (int d = 0; d < dim; d += kLanes) {
    const F32 x = load<F32>(key + d);
    store(key + d, x == x ? x : F32{});
  }
}

// ---- scratch

int padded(int heads, int to) { return (heads + to - 1) / to * to; }

// One thread's memory. Heads are padded to whole vectors; the padding's queries are zero.
struct Scratch {
  int dim, heads;                // heads: padded
  Row* rows;                     // [2][kBlock]
  float* q;                      // [heads / kQueryHeads, dim, kQueryHeads]
  float* k;                      // [kKeyRows, kKeyFloats]
  float* s;                      // [kKeyRows, heads]
  float* o;                      // [heads, 512]
  float *ref, *top, *l, *scale;  // [heads]

  // Lays the arrays out behind one another; with no memory it only adds up.
  std::size_t place(std::byte* memory) {
    std::size_t at = 0;
    const auto take = [&]<typename T>(T*& array, int count) {
      array = memory ? reinterpret_cast<T*>(memory + at) : nullptr;
      at += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    };
    take(rows, 2 * kBlock);
    take(q, dim * padded(heads, kQueryHeads));
    take(k, kKeyRows * kKeyFloats);
    take(s, kKeyRows * heads);
    take(o, heads * kValueDim);
    for (float** array : {&ref, &top, &l, &scale}) take(*array, heads);
    return at;
  }
};

// Component 0 of a head's query; the next one is kQueryHeads floats on.
float* q_of(const Scratch& x, int head) { return x.q + head / kQueryHeads * kQueryHeads * x.dim + head % kQueryHeads; }

// ---- the four words

void transpose_queries(const Problem& p, const Part& part, const Scratch& scratch) {
  for (int h = 0; h < scratch.heads; ++h) {
    const bool real = h < part.heads;
    const std::uint16_t* q = p.q + part.row * p.q_stride[0] + (part.head + (real ? h : 0)) * p.q_stride[1];
    for (int d = 0; d < p.dim; d += kLanes) {
      const auto words = load<Half>(q + d);
      const F32 x = p.word == Word16::kBf16 ? bf16_to_f32<F32>(words) : f16_to_f32<F32>(words);
      float lanes[kLanes];
      store(lanes, real ? x : F32{});
      for (int i = 0; i < kLanes; ++i) q_of(scratch, h)[(d + i) * kQueryHeads] = lanes[i];
    }
  }
}

// Calls visit(source, i) for each of the keys.
template <typename Visit>
void for_each_key(const Problem& p, Keys keys, Visit visit) {
  for (int s = 0; s < p.source_count; ++s) {
    const Loader source = loader(p.source[s].format, p.dim);
    for (int i = s == 0 ? 0 : keys.main; i < (s == 0 ? keys.main : keys.count); ++i) visit(source, i);
  }
}

void load_keys(const Problem& p, const Row* rows, Keys keys, float* k) {
  for_each_key(p, keys, [&](const Loader& source, int i) {
    source.load(rows[i], k + i * kKeyFloats);
    if (p.nan_to_zero) scrub(k + i * kKeyFloats, p.dim);
  });
}

void prefetch_keys(const Problem& p, const Row* rows, Keys keys) {
  for_each_key(p, keys, [&](const Loader& source, int i) {
    for (int at = 0; at < source.record_bytes; at += 64) __builtin_prefetch(rows[i].record + at);
    __builtin_prefetch(rows[i].record + source.record_bytes - 1);  // another line if records are not aligned to lines
    if (rows[i].scales) __builtin_prefetch(rows[i].scales);
    for (int at = 0; at < source.pe_bytes; at += 64) __builtin_prefetch(rows[i].pe + at);
    if (source.pe_bytes) __builtin_prefetch(rows[i].pe + source.pe_bytes - 1);
  });
}

// S^T [Tokens, Vectors * kLanes] of a tile; s has `stride` floats a row.
template <int Tokens, int Vectors>
void score_tile(const float* k, const float* q, int dim, float* s, int stride) {
  F32 sum[Tokens][Vectors] = {};
  for (int d = 0; d < dim; ++d) {
    F32 query[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) query[v] = load<F32>(q + d * kQueryHeads + v * kLanes);
#pragma GCC unroll 16
    for (int t = 0; t < Tokens; ++t) {
      const F32 key = splat<F32>(k[t * kKeyFloats + d]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[t][v] += key * query[v];
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < Tokens; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(s + t * stride + v * kLanes, sum[t][v]);
  }
}

// Rows of K beyond `count` hold anything: their scores are computed with the tile's and never looked at.
void scores(const Scratch& x, int count) {
  int h = 0;
  for (; h + 2 * kLanes <= x.heads; h += 2 * kLanes) {
    for (int t = 0; t < count; t += kTokenTile) {
      score_tile<kTokenTile, 2>(x.k + t * kKeyFloats, q_of(x, h), x.dim, x.s + t * x.heads + h, x.heads);
    }
  }
  for (; h < x.heads; h += kLanes) {
    for (int t = 0; t < count; t += 2 * kTokenTile) {
      score_tile<2 * kTokenTile, 1>(x.k + t * kKeyFloats, q_of(x, h), x.dim, x.s + t * x.heads + h, x.heads);
    }
  }
}

// Weights relative to `ref` replace the scores.
void softmax(const Scratch& x, int count, float scale_log2, bool first) {
  for (int h = 0; h < x.heads; h += kLanes) {
    F32 top = first ? splat<F32>(-kInfinity) : load<F32>(x.top + h);
    for (int t = 0; t < count; ++t) top = max(load<F32>(x.s + t * x.heads + h) * scale_log2, top);
    store(x.top + h, top);
    F32 ref = first ? top : load<F32>(x.ref + h), sum = first ? F32{} : load<F32>(x.l + h);
    if (any(top > ref + kSlack)) {
      float shrink[kLanes];
      const F32 factor = exp2(ref - finite(top));
      store(shrink, factor);
      ref = top;
      sum *= factor;
      for (int i = 0; i < kLanes; ++i) {
        float* o = x.o + (h + i) * kValueDim;
        for (int d = 0; d < kValueDim; d += kLanes) store(o + d, load<F32>(o + d) * shrink[i]);
      }
    }
    store(x.ref + h, ref);
    const F32 base = finite(ref);
    for (int t = 0; t < count; ++t) {
      float* s = x.s + t * x.heads + h;
      const F32 weight = exp2(load<F32>(s) * scale_log2 - base);
      sum += weight;
      store(s, weight);
    }
    store(x.l + h, sum);
  }
}

void accumulate(const Scratch& x, int heads, int count, bool first) {
  for (int d = 0; d < kValueDim; d += kDimVectors * kLanes) {
    for (int h = 0; h < heads; h += kHeadTile) {
      F32 sum[kHeadTile][kDimVectors] = {};
      float* o = x.o + h * kValueDim + d;
      if (!first) {
#pragma GCC unroll 4
        for (int i = 0; i < kHeadTile; ++i) {
#pragma GCC unroll 4
          for (int v = 0; v < kDimVectors; ++v) sum[i][v] = load<F32>(o + i * kValueDim + v * kLanes);
        }
      }
      for (int t = 0; t < count; ++t) {
        F32 value[kDimVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kDimVectors; ++v) value[v] = load<F32>(x.k + t * kKeyFloats + d + v * kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < kHeadTile; ++i) {
          const F32 weight = splat<F32>(x.s[t * x.heads + h + i]);
#pragma GCC unroll 4
          for (int v = 0; v < kDimVectors; ++v) sum[i][v] += weight * value[v];
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kHeadTile; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kDimVectors; ++v) store(o + i * kValueDim + v * kLanes, sum[i][v]);
      }
    }
  }
}

// ---- the kernel

void store_result(const Problem& p, const Part& part, const Scratch& x) {
  for (int h = 0; h < part.heads; ++h) {
    const float* o = x.o + h * kValueDim;
    const float scale = x.scale[h];
    std::uint16_t* out = part.acc ? nullptr : p.out + part.row * p.out_stride[0] + (part.head + h) * p.out_stride[1];
    for (int d = 0; d < kValueDim; d += kLanes) {
      const F32 value = scale == 0 ? F32{} : load<F32>(o + d) * scale;
      if (part.acc) {
        store(part.acc + h * kValueDim + d, value);
      } else {
        const U32 words = p.word == Word16::kBf16 ? f32_to_bf16(value) : f32_to_f16(value);
        store(out + d, __builtin_convertvector(words, Half));
      }
    }
  }
}

void attend(const Problem& p, const Part& part, std::byte* memory) {
  Scratch x{.dim = p.dim, .heads = padded(part.heads, kLanes)};
  x.place(memory);
  KeyList list(p, part);
  Keys keys = list.next(x.rows, kBlock);
  const bool empty = keys.count == 0;
  if (empty) {
    for (int h = 0; h < x.heads; h += kLanes) {
      store(x.top + h, splat<F32>(-kInfinity));
      store(x.ref + h, splat<F32>(-kInfinity));
      store(x.l + h, F32{});
    }
  } else {
    transpose_queries(p, part, x);
  }
  const int heads = padded(part.heads, kHeadTile);
  Row *rows = x.rows, *ahead = x.rows + kBlock;
  for (bool first = true; keys.count > 0; first = false) {
    load_keys(p, rows, keys, x.k);
    const Keys next = list.next(ahead, kBlock);
    prefetch_keys(p, ahead, next);
    scores(x, keys.count);
    softmax(x, keys.count, p.scale_log2, first);
    accumulate(x, heads, keys.count, first);
    Row* const done = rows;
    rows = ahead;
    ahead = done;
    keys = next;
  }
  finish_heads(p, part, x.ref, x.top, x.l, x.scale);
  store_result(p, part, x);
}

std::size_t scratch_bytes(const Shape& shape) {
  return Scratch{.dim = shape.dim, .heads = padded(shape.heads < kMaxHeads ? shape.heads : kMaxHeads, kLanes)}.place(
      nullptr);
}

}  // namespace
}  // namespace pasa::cpu
