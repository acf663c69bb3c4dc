// The tile kernel: both products run on AMX. amx.cpp includes it with the real tiles, amx_emulated.cpp with plain loops in
// their place, so that all of its logic is tested on any machine. A `Tiles` type gives the words: load, dot, store, zero.
//
//   load        a key becomes a bf16 row of K; the rows of two keys, interleaved, a row of V's tiles
//   scores      S^T [tokens, heads] = K Q^T     K rows are tile rows as they lie; Q is packed once a part
//   softmax     down the columns of S^T         one vector of 16 heads at a time; P is transposed to tiles [heads, tokens]
//   accumulate  O [heads, 512] += P V
//
// Keys go in steps of 32, steps in chunks. A chunk's scores are kept, so its maximum is known before the first weight, and
// O leaves the tiles once a chunk. TDPBF16PS takes 16 cycles and no vector port: between those of scores and accumulate,
// rows further on are fetched, and while two groups of heads are accumulated, the next two's weights are made. docs/cpu.md
// has the budget.
//
// Order of dims. Splitting 64 e4m3 codes into even and odd dims costs no shuffle, so a 64-dim group of K that any source
// quantises is stored as [32 even dims][32 odd dims], and Q alike. V's tiles have the order that unpacking two rows gives.
// Both are undone when O is stored.
#pragma once

#include "cpu/kernel.h"
#include "cpu/vec.h"

namespace pasa::cpu {
namespace {

using F32 = Vec<64>::F32;
using U64 = Vec<64>::U64;
using U32 = Vec<64>::U32;
using I32 = Vec<64>::I32;
using U16 = Vec<64>::U16;
using I16 = Vec<64>::I16;
using U8 = Vec<64>::U8;

constexpr int kTile = 16;  // rows of a tile, and heads or floats of a row
constexpr int kTileBytes = 1024;
constexpr int kStep = 32;  // keys of a row of V tiles; bf16 words of a tile row
constexpr int kPairs = kStep / 2;
constexpr int kChunkSteps = 9;  // P of 32 heads, read for every two tiles of dims, and V on its way fit in L1
constexpr int kChunk = kChunkSteps * kStep;
constexpr int kMaxHeads = 128;  // of a part: Q, O and a chunk's S and V fill L2
constexpr int kMaxGroups = kMaxHeads / kTile;
constexpr int kValueTiles = kValueDim / kTile;              // of a step; four for each 64-dim group of K
constexpr int kKeyBytes = 2 * kMaxDim + 64;                 // a row of K; the padding spreads rows over the sets of L1
constexpr int kStepBytes = (kValueTiles + 1) * kTileBytes;  // of V; likewise
constexpr int kAhead = 64;                                  // keys between prefetch and load, at least
constexpr float kSlack = 8.0f;  // O is rescaled when a maximum has grown by more binary orders than this

// ---- words of 64-byte vectors

// Two vectors of floats to bf16, rounded to nearest even: words in turn from both, or one vector behind the other. The
// instructions count subnormals as 0, as the tiles do.
inline U16 pair_words(F32 low, F32 high) {
#if defined(__AVX512BF16__)
  const auto words = (U16)_mm512_cvtne2ps_pbh(high, low);
  return __builtin_shufflevector(words, words, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
                                 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#else
  return (U16)(f32_to_bf16(low) | f32_to_bf16(high) << 16);
#endif
}
inline U16 join_words(F32 first, F32 second) {
#if defined(__AVX512BF16__)
  return (U16)_mm512_cvtne2ps_pbh(second, first);
#else
  const auto a = (U16)f32_to_bf16(first), b = (U16)f32_to_bf16(second);
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40,
                                 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62);
#endif
}

// 128-bit lanes of two vectors in turn: the first four lanes, the last four.
inline F32 lanes_low(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
}
inline F32 lanes_high(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
}
// Floats of two vectors in turn.
inline F32 zip_low(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline F32 zip_high(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// ---- load

// 64 codes as words, even dims and odd dims. Each code is the high byte of a word: as it lies (odd) or shifted up (even).
struct Group {
  U16 even, odd;
};

// Normal codes times a power of two: an integer addition on the exponent.
inline Group decode_normal(U8 codes, std::uint16_t rebias) {
  const auto words = (U16)codes;
  return {((U16)((I16)(words << 8) >> 4) & 0x87f0) + rebias, ((U16)((I16)words >> 4) & 0x87f0) + rebias};
}

template <Fp8 Flavour>
constexpr int kBias = Flavour == Fp8::kE4m3fn ? 7 : 8;

// Some byte is 0 if a code may be anything but a normal number. Seldom, where codes are scaled to their largest. One addition
// puts OCP's NaN (0x7f, 0xff) beside the small codes; the binade above them is caught too, which harms nothing.
template <Fp8 Flavour>
inline U8 zero_if_rare(U8 codes) {
  return Flavour == Fp8::kE4m3fn ? (codes + 1) & 0x70 : codes & 0x78;
}

// Byte `Byte` of each dword, any code at all, to fp32. A subnormal becomes 2^(1-bias) * (1 + m/8) less 2^(1-bias): no
// subnormal float is ever an operand, for those cost a microcode assist.
template <Fp8 Flavour, int Byte>
inline F32 decode_any(U32 codes) {
  constexpr std::uint32_t kRebias = 127 - kBias<Flavour>;
  const U32 top = codes << (24 - 8 * Byte), magnitude = (top & 0x7f000000u) >> 4, sign = top & 0x80000000u;
  const U32 subnormal = (U32)(magnitude < 0x00800000u);
  const F32 surplus = (F32)(subnormal & ((kRebias + 1) << 23));
  const F32 value = (F32)(magnitude + (kRebias << 23) + (subnormal & 0x00800000u)) - surplus;
  const U32 code = top >> 24;
  const U32 nan = (U32)(Flavour == Fp8::kE4m3fn ? (code & 0x7fu) == 0x7fu : code == 0x80u);
  return (F32)((U32)value | sign | (nan & 0x7fc00000u));
}

inline U16 scaled(U16 words, float scale) {
  return pair_words((F32)((U32)words << 16) * scale, (F32)((U32)words & 0xffff0000u) * scale);
}

inline float read_float(const std::uint8_t* bytes) {
  float value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// The scale of group g, as float.
template <typename Format>
inline float scale_of(Row row, int g) {
  if constexpr (Format::kScaling == Scaling::kNone) return 1.0f;
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    const std::uint32_t byte = row.scales[g], bits = byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return scale;
  } else {
    const std::uint8_t* scales = Format::kScaling == Scaling::kSideFloat ? row.scales : row.record + Format::kNope;
    return read_float(scales + 4 * (64 * g / Format::kScaleTile));
  }
}

// Group g of a quantised row, if its codes are normal and so are the results.
template <typename Format>
inline Group load_normal(Row row, int g, U8 codes) {
  constexpr int kCodeBias = kBias<Format::kFlavour>;
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    return decode_normal(codes, static_cast<std::uint16_t>((row.scales[g] - kCodeBias) << 7));
  } else {
    const Group unscaled = decode_normal(codes, (127 - kCodeBias) << 7);
    if constexpr (Format::kScaling == Scaling::kNone) return unscaled;
    const float scale = scale_of<Format>(row, g);
    return {scaled(unscaled.even, scale), scaled(unscaled.odd, scale)};
  }
}

// From 10 to 246 a UE8M0 byte keeps every code but NaN a normal bf16 number; a float scale rounds as it should anyway.
template <typename Format>
inline bool has_rare_scale(Row row) {
  if constexpr (Format::kScaling != Scaling::kTailUe8m0) return false;
  bool rare = false;
#pragma GCC unroll 8
  for (int g = 0; g < Format::kScales; ++g) rare |= row.scales[g] - 10u > 236u;
  return rare;
}

inline void store_group(std::byte* key, int g, Group words) {
  store(key + 128 * g, words.even);
  store(key + 128 * g + 64, words.odd);
}

// The groups of a row that hold a rare code or scale, once more and right for every one.
template <typename Format>
[[gnu::noinline]] void load_rare(Row row, std::byte* key) {
  constexpr Fp8 kFlavour = Format::kFlavour;
  const bool rare_scale = has_rare_scale<Format>(row);
  for (int g = 0; g < Format::kNope / 64; ++g) {
    const U8 codes = load<U8>(Format::component(row, 64 * g));
    if (!rare_scale && !any(zero_if_rare<kFlavour>(codes) == 0)) continue;
    const float scale = scale_of<Format>(row, g);
    const auto dwords = (U32)codes;
    store_group(key, g,
                {pair_words(decode_any<kFlavour, 0>(dwords) * scale, decode_any<kFlavour, 2>(dwords) * scale),
                 pair_words(decode_any<kFlavour, 1>(dwords) * scale, decode_any<kFlavour, 3>(dwords) * scale)});
  }
}

// 64 words in even/odd order.
inline Group split(U16 low, U16 high) {
  return {__builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38,
                                  40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62),
          __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39,
                                  41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63)};
}

// A key to its row of K. Bit g of `split_groups` is set if group g is in even/odd order.
template <typename Format>
void load_key(Row row, unsigned split_groups, std::byte* key) {
  if constexpr (Format::kNope > 0) {
    U8 least = ~U8{};
#pragma GCC unroll 9
    for (int g = 0; g < Format::kNope / 64; ++g) {
      const U8 codes = load<U8>(Format::component(row, 64 * g)), here = zero_if_rare<Format::kFlavour>(codes);
      least = here < least ? here : least;
      store_group(key, g, load_normal<Format>(row, g, codes));
    }
    if (any(least == 0) || has_rare_scale<Format>(row)) [[unlikely]]
      load_rare<Format>(row, key);
  }
#pragma GCC unroll 9
  for (int g = Format::kNope / 64; g < Format::kDim / 64; ++g) {
    const std::uint8_t* from = Format::component(row, 64 * g);
    const Group words{load<U16>(from), load<U16>(from + 64)};
    store_group(key, g, split_groups >> g & 1 ? split(words.even, words.odd) : words);
  }
}

using LoadKey = void (*)(Row, unsigned, std::byte*);
struct Loader {
  LoadKey load;
  int code_groups;  // the first groups are quantised
  int record_bytes, pe_bytes;
};
template <typename Format>
constexpr Loader kLoader = {load_key<Format>, Format::kNope / 64, Format::kFirstBytes, Format::kPeBytes};

// core/format.h's with_format() as a table: the only switch over formats in this object. fp16 pools go with fp16 queries,
// which this kernel declines.
Loader loader(pasa_kv_format format, int dim) {
  switch (format) {
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

// ---- scratch

// One thread's memory, and what the stages of a part share. Heads are padded to whole groups of 16; the padding's queries
// are zero.
struct Scratch {
  int dim, groups;
  Row* rows[2];                  // [kChunk]: of this chunk and of the next
  std::byte* q;                  // [groups, dim / 32] tiles [16 dim pairs, 16 heads, 2]
  std::byte* staged;             // [16, kKeyBytes]: the queries of a group in K's order
  std::byte* k;                  // [kStep, kKeyBytes]: of this step
  std::byte* v;                  // [kChunkSteps, kValueTiles] tiles [16 key pairs, 16 dims, 2]
  float* s;                      // [groups, kChunk, 16]: S^T
  float* s_odd;                  // [kStep, 16]: a second sum, see score_single()
  std::byte* p;                  // [4, kChunkSteps] tiles [16 heads, 32 keys]: of this pair of groups and of the next
  float* o;                      // [groups, kValueTiles] tiles [16 heads, 16 dims]
  float *ref, *top, *l, *scale;  // [groups, 16]

  // Lays the arrays out behind one another; with no memory it only adds up.
  std::size_t place(std::byte* memory) {
    std::size_t at = 0;
    const auto take = [&]<typename T>(T*& array, std::size_t count) {
      array = memory ? reinterpret_cast<T*>(memory + at) : nullptr;
      at += (count * sizeof(T) + 255) / 256 * 256;
    };
    const auto g = static_cast<std::size_t>(groups);
    for (Row*& r : rows) take(r, kChunk);
    take(q, g * static_cast<std::size_t>(dim / kStep) * kTileBytes);
    take(staged, kTile * kKeyBytes);
    take(k, kStep * kKeyBytes);
    take(v, kChunkSteps * kStepBytes);
    take(s, g * kChunk * kTile);
    take(s_odd, kStep * kTile);
    take(p, 4 * kChunkSteps * kTileBytes);
    take(o, g * kTile * kValueDim);
    for (float** array : {&ref, &top, &l, &scale}) take(*array, g * kTile);
    return at;
  }

  std::byte* q_tile(int group, int k_step) const { return q + (group * (dim / kStep) + k_step) * kTileBytes; }
  std::byte* v_tile(int step, int tile) const { return v + step * kStepBytes + tile * kTileBytes; }
  float* s_rows(int group, int key) const { return s + (group * kChunk + key) * kTile; }
  std::byte* p_tile(int group, int step) const { return p + (group % 4 * kChunkSteps + step) * kTileBytes; }
  float* o_tile(int group, int tile) const { return o + (group * kValueTiles + tile) * kTile * kTile; }
};

// Spreads `work` units evenly over `slots` calls of step(): the units that run between tile instructions.
template <typename Unit>
class Interleaved {
 public:
  Interleaved(int work, int slots, Unit unit) : work_(work), slots_(slots), unit_(unit) {}
  void step() {
    for (due_ += work_; due_ >= slots_; due_ -= slots_) unit_(done_++);
  }

 private:
  int work_, slots_, due_ = 0, done_ = 0;
  Unit unit_;
};

// Brings rows of the pool to L2, in the order in which they will be loaded and never twice: first this chunk's, then the
// next one's.
class Prefetcher {
 public:
  void set_next(const Row* rows, int count) { next_ = rows, next_count_ = count; }
  void advance() {  // the next chunk has become this one
    at_ = at_ > count_ ? at_ - count_ : 0;
    rows_ = next_, count_ = next_count_, next_count_ = 0;
  }
  void fetch(int rows) {
    for (; rows > 0 && at_ < count_ + next_count_; --rows, ++at_)
      touch(at_ < count_ ? rows_[at_] : next_[at_ - count_]);
  }
  void fetch_until(int row) { fetch(row - at_); }
  // To be called between tile instructions: so many TDPBF16PS more have been issued. They take 16 cycles or more, and
  // random rows arrive at 5 or 6 bytes a cycle.
  void dots(int count) {
    constexpr int kBytesPerDot = 96;
    credit_ += kBytesPerDot * count;
    if (credit_ < bytes) return;
    credit_ -= bytes;
    fetch(1);
  }
  int bytes = 0, pe_bytes = 0;  // of a record; of its second piece

 private:
  void touch(Row row) const {
    for (int at = 0; at < bytes; at += 64) __builtin_prefetch(row.record + at, 0, 2);
    __builtin_prefetch(row.record + bytes - 1, 0, 2);  // another line if records are not aligned to lines
    if (row.scales) __builtin_prefetch(row.scales, 0, 2);
    if (!row.pe) return;
    for (int at = 0; at < pe_bytes; at += 64) __builtin_prefetch(row.pe + at, 0, 2);
    __builtin_prefetch(row.pe + pe_bytes - 1, 0, 2);
  }
  const Row *rows_ = nullptr, *next_ = nullptr;
  int count_ = 0, next_count_ = 0, at_ = 0, credit_ = 0;
};

// 16 rows of 16 dwords, in place.
inline void transpose(U32 (&r)[kTile]) {
  U32 t[kTile];
#pragma GCC unroll 8
  for (int i = 0; i < kTile; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTile; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const auto a = (U64)t[i + j], b = (U64)t[i + j + 2];
      r[i + 2 * j] = (U32)__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
      r[i + 2 * j + 1] = (U32)__builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
    }
  }
  // 4x4 blocks are transposed; now the blocks among themselves, a 128-bit lane each.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const auto a = (U64)r[8 * j + i], b = (U64)r[8 * j + i + 4];
      t[8 * j + i] = (U32)__builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13);
      t[8 * j + i + 4] = (U32)__builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const auto a = (U64)t[i], b = (U64)t[i + 8];
    r[i] = (U32)__builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13);
    r[i + 8] = (U32)__builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
  }
}

// ---- one part

class Attention {
 public:
  Attention(const Problem& problem, const Part& part, std::byte* memory)
      : p_(problem), part_(part), x_{.dim = problem.dim, .groups = (part.heads + kTile - 1) / kTile} {
    x_.place(memory);
    for (int s = 0; s < p_.source_count; ++s) {
      const Loader from = loader(p_.source[s].format, p_.dim);
      load_[s] = from.load;
      split_groups_ |= (1u << from.code_groups) - 1;
      if (from.record_bytes > prefetch_.bytes) prefetch_.bytes = from.record_bytes;
      if (from.pe_bytes > prefetch_.pe_bytes) prefetch_.pe_bytes = from.pe_bytes;
    }
    scale_ = p_.scale_log2 < 0 ? -p_.scale_log2 : p_.scale_log2 > 0 ? p_.scale_log2 : 1.0f;
  }

  void run() {
    KeyList list(p_, part_);
    // Chunks of equal size: a short last one would pay O's way to memory and back for little.
    const std::int64_t chunks = (list.entries() + kChunk - 1) / kChunk;
    const auto chunk = chunks == 0 ? kStep : static_cast<int>((list.entries() / chunks + kStep) / kStep * kStep);
    const int capacity = chunk < kChunk ? chunk : kChunk;

    prefetch_.set_next(x_.rows[0], (keys_ = list.next(x_.rows[0], capacity)).count);
    prefetch_.advance();
    prefetch_.fetch(kAhead);
    for (int at = 0; at < x_.groups * kTile; at += kTile) {
      store(x_.ref + at, splat<F32>(-kInfinity));
      store(x_.top + at, splat<F32>(-kInfinity));
      store(x_.l + at, F32{});
    }
    if (keys_.count > 0) {
      Tiles::begin();
      for (int g = 0; g < x_.groups; ++g) pack_queries(g);
      for (first_ = true; keys_.count > 0; first_ = false) {
        const Keys next = list.next(x_.rows[1], capacity);
        prefetch_.set_next(x_.rows[1], next.count);
        chunk_scores();
        chunk_values();
        Row* const done = x_.rows[0];
        x_.rows[0] = x_.rows[1];
        x_.rows[1] = done;
        keys_ = next;
        prefetch_.advance();
      }
      Tiles::end();
    }
    finish_heads(p_, part_, x_.ref, x_.top, x_.l, x_.scale);
    for (int h = 0; h < part_.heads; ++h) store_head(h);
  }

 private:
  // 32 components of a query. A negative scale becomes its sign, so that the largest score is the largest product; a scale
  // of 0 makes it 0, so that rows of -inf may mask scores.
  U16 load_query(const std::uint16_t* q) const {
    const U16 words = load<U16>(q);
    if (p_.scale_log2 > 0) return words;
    if (p_.scale_log2 < 0) return words ^ 0x8000;
    return (U16)((words & 0x7f80) == 0x7f80) & 0x7fc0;
  }

  // Q tiles of 16 heads.
  void pack_queries(int group) {
    for (int i = 0; i < kTile; ++i) {
      std::byte* to = x_.staged + i * kKeyBytes;
      const int head = group * kTile + i;
      if (head >= part_.heads) {
        std::memset(to, 0, static_cast<std::size_t>(2 * x_.dim));
        continue;
      }
      const std::uint16_t* q = p_.q + part_.row * p_.q_stride[0] + (part_.head + head) * p_.q_stride[1];
      for (int g = 0; g < x_.dim / 64; ++g) {
        Group words{load_query(q + 64 * g), load_query(q + 64 * g + 32)};
        if (split_groups_ >> g & 1) words = split(words.even, words.odd);
        store(to + 128 * g, words.even);
        store(to + 128 * g + 64, words.odd);
      }
    }
    for (int ks = 0; ks < x_.dim / kStep; ++ks) {
      U32 r[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) r[i] = load<U32>(x_.staged + i * kKeyBytes + 64 * ks);
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) store(x_.q_tile(group, ks) + 64 * i, r[i]);
    }
  }

  // Keys 2i and 2i+1 of a step: two rows of K, one row of each V tile. Beyond the last key: rows of zeros.
  void load_pair(int step, int pair) {
    std::byte* key[2];
    prefetch_.fetch_until(step * kStep + 2 * pair + 2 + kAhead);
    for (int i = 0; i < 2; ++i) {
      const int at = step * kStep + 2 * pair + i;
      key[i] = k_row(2 * pair + i);
      if (at >= keys_.count) {
        std::memset(key[i], 0, static_cast<std::size_t>(2 * x_.dim));
      } else {
        load_[at < keys_.main ? 0 : 1](x_.rows[0][at], split_groups_, key[i]);
        if (p_.nan_to_zero) scrub(key[i]);
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < kValueTiles / 4; ++g) {
      std::byte* to = x_.v_tile(step, 4 * g) + pair * 64;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const U16 a = load<U16>(key[0] + 128 * g + 64 * half), b = load<U16>(key[1] + 128 * g + 64 * half);
        store(to + 2 * half * kTileBytes,
              __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49,
                                      18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59));
        store(to + (2 * half + 1) * kTileBytes,
              __builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52, 21, 53,
                                      22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63));
      }
    }
  }

  void scrub(std::byte* key) const {  // nan_to_zero
    for (int at = 0; at < 2 * x_.dim; at += 64) {
      const U16 words = load<U16>(key + at);
      store(key + at, words & (U16)((words & 0x7fff) <= 0x7f80));
    }
  }

  // A step's row of K. With one group of heads a half step's rows are multiplied at once, and the other half reuses them:
  // they stay in L1, beside Q. With more groups, Q streams through L1 anyway.
  std::byte* k_row(int row) const { return x_.k + (x_.groups == 1 ? row % kTile : row) * kKeyBytes; }

  // All of a chunk's scores; its values end up in V on the way.
  void chunk_scores() {
    const int steps = (keys_.count + kStep - 1) / kStep, pairs = x_.groups == 1 ? kPairs / 2 : kPairs;
    for (int step = 0; step < steps; ++step) {
      for (int done = 0; done < kPairs; done += pairs) {
        for (int pair = done; pair < done + pairs; ++pair) load_pair(step, pair);
        int g = 0;
        for (; g + 2 <= x_.groups; g += 2) score_pair(step, g);
        for (int row = 2 * done; g < x_.groups && row < 2 * (done + pairs); row += kTile) score_single(step, g, row);
      }
      track_top(step);
    }
  }

  // S^T of 32 keys and 32 heads.
  void score_pair(int step, int group) {
    Tiles::zero<0>();
    Tiles::zero<1>();
    Tiles::zero<2>();
    Tiles::zero<3>();
    for (int ks = 0; ks < x_.dim / kStep; ++ks) {
      Tiles::load<4>(k_row(0) + 64 * ks, kKeyBytes);
      Tiles::load<6>(x_.q_tile(group, ks), 64);
      Tiles::dot<0, 4, 6>();
      Tiles::load<7>(x_.q_tile(group + 1, ks), 64);
      Tiles::dot<1, 4, 7>();
      Tiles::load<5>(k_row(kTile) + 64 * ks, kKeyBytes);
      Tiles::dot<2, 5, 6>();
      Tiles::dot<3, 5, 7>();
      prefetch_.dots(4);
    }
    Tiles::store<0>(x_.s_rows(group, step * kStep), 64);
    Tiles::store<1>(x_.s_rows(group + 1, step * kStep), 64);
    Tiles::store<2>(x_.s_rows(group, step * kStep + kTile), 64);
    Tiles::store<3>(x_.s_rows(group + 1, step * kStep + kTile), 64);
  }

  // S^T of 16 keys and 16 heads, as two sums over alternate tiles: one alone would wait for itself (TDPBF16PS takes 52
  // cycles to its result). track_top() adds them.
  void score_single(int step, int group, int row) {
    Tiles::zero<0>();
    Tiles::zero<1>();
    for (int ks = 0; ks < x_.dim / kStep; ks += 2) {
      Tiles::load<4>(k_row(row) + 64 * ks, kKeyBytes);
      Tiles::load<6>(x_.q_tile(group, ks), 64);
      Tiles::dot<0, 4, 6>();
      Tiles::load<5>(k_row(row) + 64 * ks + 64, kKeyBytes);
      Tiles::load<7>(x_.q_tile(group, ks + 1), 64);
      Tiles::dot<1, 5, 7>();
      prefetch_.dots(2);
    }
    Tiles::store<0>(x_.s_rows(group, step * kStep + row), 64);
    Tiles::store<1>(x_.s_odd + row * kTile, 64);
  }

  // The maximum so far, scaled. Rows of S^T beyond the last key become -inf: no weight, and no mask from here on.
  void track_top(int step) {
    const int count = keys_.count - step * kStep < kStep ? keys_.count - step * kStep : kStep;
    for (int g = 0; g < x_.groups; ++g) {
      float* s = x_.s_rows(g, step * kStep);
      if (g == x_.groups - 1 && x_.groups % 2 == 1) {
#pragma GCC unroll 8
        for (int i = 0; i < kStep * kTile; i += kTile) store(s + i, load<F32>(s + i) + load<F32>(x_.s_odd + i));
      }
      for (int i = count; i < kStep; ++i) store(s + i * kTile, splat<F32>(-kInfinity));
      F32 top[4] = {splat<F32>(-kInfinity), splat<F32>(-kInfinity), splat<F32>(-kInfinity), splat<F32>(-kInfinity)};
#pragma GCC unroll 32
      for (int i = 0; i < kStep; ++i) top[i & 3] = max(load<F32>(s + i * kTile), top[i & 3]);
      const F32 all = max(max(top[0], top[1]), max(top[2], top[3]));
      store(x_.top + g * kTile, max(all * scale_, load<F32>(x_.top + g * kTile)));
    }
  }

  // Softmax and P V of a chunk, two groups of heads at a time; while one pair is multiplied, the next one's weights are made.
  void chunk_values() {
    const int steps = (keys_.count + kStep - 1) / kStep;
    for (int g = 0; g < 2 && g < x_.groups; ++g) {
      for (int step = 0; step < steps; ++step) make_weights(g, step);
    }
    for (int g = 0; g < x_.groups; g += 2) {
      const int left = x_.groups - g, following = left - 2 < 0 ? 0 : left - 2 < 2 ? left - 2 : 2;
      Interleaved weights(following * steps, kValueTiles / 2 * steps,
                          [&](int unit) { make_weights(g + 2 + unit / steps, unit % steps); });
      const auto side = [&] {
        weights.step();
        prefetch_.dots(4);
      };
      left < 2 ? accumulate_single(g, steps, side) : accumulate_pair(g, steps, side);
    }
  }

  // P of 16 heads and 32 keys, and their sum.
  void make_weights(int group, int step) {
    if (step == 0) settle(group);
    const F32 base = finite(load<F32>(x_.ref + group * kTile));
    const float* s = x_.s_rows(group, step * kStep);
    F32 sum[2] = {};
    U32 r[kTile];
#pragma GCC unroll 4
    for (int i = 0; i < kTile; ++i) {
      const F32 even = exp2(load<F32>(s + 2 * i * kTile) * scale_ - base);
      const F32 odd = exp2(load<F32>(s + (2 * i + 1) * kTile) * scale_ - base);
      sum[0] += even;
      sum[1] += odd;
      // Two keys a dword, rounded half up: a weight's tie is nobody's concern.
      r[i] = ((U32)even + 0x8000u) >> 16 | (((U32)odd + 0x8000u) & 0xffff0000u);
    }
    store(x_.l + group * kTile, load<F32>(x_.l + group * kTile) + (sum[0] + sum[1]));
    transpose(r);
    std::byte* tile = x_.p_tile(group, step);
#pragma GCC unroll 16
    for (int i = 0; i < kTile; ++i) store(tile + 64 * i, r[i]);
  }

  // Before a chunk's first weight: may the reference stay? Else l and O follow it.
  void settle(int group) {
    float* const ref = x_.ref + group * kTile;
    const F32 old = load<F32>(ref), top = load<F32>(x_.top + group * kTile);
    if (first_) return store(ref, top);
    if (!any(top > old + kSlack)) return;
    const F32 shrink = exp2(old - finite(top));
    store(ref, top);
    store(x_.l + group * kTile, load<F32>(x_.l + group * kTile) * shrink);
    float factor[kTile];
    store(factor, shrink);
    for (int tile = 0; tile < kValueTiles; ++tile) {
      float* o = x_.o_tile(group, tile);
#pragma GCC unroll 4
      for (int i = 0; i < kTile; ++i) store(o + i * kTile, load<F32>(o + i * kTile) * factor[i]);
    }
  }

  // O of 32 heads, two tiles of dims at a time.
  template <typename Side>
  void accumulate_pair(int group, int steps, const Side& side) {
    for (int tile = 0; tile < kValueTiles; tile += 2) {
      begin_sum<0>(x_.o_tile(group, tile));
      begin_sum<1>(x_.o_tile(group, tile + 1));
      begin_sum<2>(x_.o_tile(group + 1, tile));
      begin_sum<3>(x_.o_tile(group + 1, tile + 1));
      for (int step = 0; step < steps; ++step) {
        Tiles::load<4>(x_.p_tile(group, step), 64);
        Tiles::load<6>(x_.v_tile(step, tile), 64);
        Tiles::dot<0, 4, 6>();
        Tiles::load<7>(x_.v_tile(step, tile + 1), 64);
        Tiles::dot<1, 4, 7>();
        Tiles::load<5>(x_.p_tile(group + 1, step), 64);
        Tiles::dot<2, 5, 6>();
        Tiles::dot<3, 5, 7>();
        side();
      }
      Tiles::store<0>(x_.o_tile(group, tile), 64);
      Tiles::store<1>(x_.o_tile(group, tile + 1), 64);
      Tiles::store<2>(x_.o_tile(group + 1, tile), 64);
      Tiles::store<3>(x_.o_tile(group + 1, tile + 1), 64);
    }
  }

  // O of 16 heads, four tiles of dims at a time.
  template <typename Side>
  void accumulate_single(int group, int steps, const Side& side) {
    for (int tile = 0; tile < kValueTiles; tile += 4) {
      begin_sum<0>(x_.o_tile(group, tile));
      begin_sum<1>(x_.o_tile(group, tile + 1));
      begin_sum<2>(x_.o_tile(group, tile + 2));
      begin_sum<3>(x_.o_tile(group, tile + 3));
      for (int step = 0; step < steps; ++step) {
        Tiles::load<4>(x_.p_tile(group, step), 64);
        Tiles::load<5>(x_.v_tile(step, tile), 64);
        Tiles::dot<0, 4, 5>();
        Tiles::load<6>(x_.v_tile(step, tile + 1), 64);
        Tiles::dot<1, 4, 6>();
        Tiles::load<7>(x_.v_tile(step, tile + 2), 64);
        Tiles::dot<2, 4, 7>();
        Tiles::load<5>(x_.v_tile(step, tile + 3), 64);
        Tiles::dot<3, 4, 5>();
        side();
      }
      Tiles::store<0>(x_.o_tile(group, tile), 64);
      Tiles::store<1>(x_.o_tile(group, tile + 1), 64);
      Tiles::store<2>(x_.o_tile(group, tile + 2), 64);
      Tiles::store<3>(x_.o_tile(group, tile + 3), 64);
    }
  }

  template <int Tile>
  void begin_sum(const float* o) const {
    first_ ? Tiles::zero<Tile>() : Tiles::load<Tile>(o, 64);
  }

  // One head's row of O, its dims in order again.
  void store_head(int head) {
    const float scale = x_.scale[head];
    std::uint16_t* out =
        part_.acc ? nullptr : p_.out + part_.row * p_.out_stride[0] + (part_.head + head) * p_.out_stride[1];
    for (int g = 0; g < kValueTiles / 4; ++g) {
      F32 y[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const float* row = x_.o_tile(head / kTile, 4 * g + i) + head % kTile * kTile;
        y[i] = scale == 0 ? F32{} : load<F32>(row) * scale;
      }
      // Tiles 0 and 1 hold lanes of four words in turn, tiles 2 and 3 likewise.
      const F32 a0 = lanes_low(y[0], y[1]), a1 = lanes_high(y[0], y[1]);
      const F32 b0 = lanes_low(y[2], y[3]), b1 = lanes_high(y[2], y[3]);
      F32 dims[4] = {a0, a1, b0, b1};
      if (split_groups_ >> g & 1) {
        dims[0] = zip_low(a0, b0), dims[1] = zip_high(a0, b0);
        dims[2] = zip_low(a1, b1), dims[3] = zip_high(a1, b1);
      }
      if (part_.acc) {
        for (int i = 0; i < 4; ++i) store(part_.acc + head * kValueDim + 64 * g + kTile * i, dims[i]);
      } else {
        store(out + 64 * g, join_words(dims[0], dims[1]));
        store(out + 64 * g + 32, join_words(dims[2], dims[3]));
      }
    }
  }

  const Problem& p_;
  const Part& part_;
  Scratch x_;
  LoadKey load_[2] = {};
  unsigned split_groups_ = 0;
  float scale_;  // |softmax_scale| * log2 e
  Prefetcher prefetch_;
  Keys keys_{};        // of this chunk
  bool first_ = true;  // this chunk is the first
};

void attend(const Problem& problem, const Part& part, std::byte* scratch) { Attention(problem, part, scratch).run(); }

std::size_t scratch_bytes(const Shape& shape) {
  const int heads = shape.heads < kMaxHeads ? shape.heads : kMaxHeads;
  return Scratch{.dim = shape.dim, .groups = (heads + kTile - 1) / kTile}.place(nullptr);
}

}  // namespace
}  // namespace pasa::cpu
