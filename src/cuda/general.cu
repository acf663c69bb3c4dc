// The general kernel: every format, pair of formats, page size, stride and alignment, bf16 and f16, on sm_80 and newer.
//
// One block computes one part of one row for a tile of heads: it walks both lists in steps of 32 keys, gather -> scores ->
// softmax -> accumulate. A step's bytes wait in registers while the step before it is computed, then become a tile of 16-bit
// keys in shared memory: from there on no line depends on the format. 8 threads share a key, 16 bytes ("chunk") at a time.
//
// Rounding: a key once to the tile's word, the softmax weights once to it, everything else float. The word is bf16; f16 if
// every pool is f16. f16 queries against bf16 keys lose nothing: q = high + low, both bf16, is exact, at two products each.
#include <cuda_runtime.h>

#include <atomic>
#include <nv/target>

#include "core/softmax.h"
#include "cuda/device.h"
#include "cuda/launch.h"

namespace pasa::cuda {
namespace {

enum class Words {
  kBf16,        // q and keys bf16
  kF16,         // q and keys f16
  kF16WithBf16  // q f16, keys bf16
};

constexpr int kKeys = 32, kThreads = 256, kWarps = kThreads / 32;
constexpr int kKeyThreads = kThreads / kKeys;               // that share a key
constexpr int kMaxChunks = 2 * kMaxDim / 16 / kKeyThreads;  // a thread's share of the longest key
constexpr int kFp8Chunks = 5;                               // and of any fp8 record: at most 40 chunks
constexpr int kRow = kMaxDim + 8;  // elements; 73 * 16 bytes: odd, so that 8 rows of a matrix lie in different banks
constexpr int kWarpDims = kValueDim / kWarps, kDimTiles = kWarpDims / 8;

template <int kHeadTile>
struct Smem {
  std::uint16_t q[kHeadTile][kRow];  // also the output tile at the end
  std::uint16_t k[kKeys][kRow];
  std::uint16_t p[kHeadTile][kKeys + 8];  // softmax weights
  float s[2][kHeadTile][kKeys + 4];       // scores: each half of the dimensions adds up its own
  float factor[kHeadTile];                // what a row of the accumulators is multiplied by
  int valid[kKeys];
};

// ---- tensor core words ----

__device__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ void load_matrix_x4(std::uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

__device__ void load_matrix_x4_trans(std::uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

__device__ void load_matrix_x2(std::uint32_t (&r)[2], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(p)));
}

// c[16, 8] += a[16, 16] b[16, 8]
template <Word16 kWord>
__device__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kWord == Word16::kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two floats to two words, rounded to nearest even; the first in the low half.
template <Word16 kWord>
__device__ std::uint32_t pack(float x, float y) {
  std::uint32_t pair;
  if constexpr (kWord == Word16::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  }
  return pair;
}

template <Word16 kWord>
__device__ float2 unpack(std::uint32_t pair) {
  float2 both;
  if constexpr (kWord == Word16::kBf16) {
    both = {std::bit_cast<float>(pair << 16), std::bit_cast<float>(pair & 0xffff0000u)};
  } else {
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(both.x), "=f"(both.y)
        : "r"(pair));
  }
  return both;
}

// f16 = high + low in bf16, exactly: 11 bits of significand are 8 and 3.
__device__ void split(const std::uint32_t (&a)[4], std::uint32_t (&high)[4], std::uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack<Word16::kF16>(a[i]);
    high[i] = pack<Word16::kBf16>(x.x, x.y);
    const float2 taken = unpack<Word16::kBf16>(high[i]);
    low[i] = pack<Word16::kBf16>(x.x - taken.x, x.y - taken.y);
  }
}

// ---- gather: bytes -> registers -> a row of the key tile ----

// How the threads of a key find its bytes, whatever the format: loads are then the same few instructions for all of them,
// without a branch, and so all in flight at once. A record is `first` chunks, a gap, the other chunks: the gap behind fp8
// codes holds their scales; that between the pieces of a key grows by a step a slot.
struct Gather {
  std::int32_t record_bytes;
  std::int32_t first, chunks;
  std::int64_t gap, gap_step;
  // Scales of a slot: `base + page * page_stride + place * place_stride`; a thread takes words `first * (lane / 4) + i * step`.
  const std::uint8_t* scales;
  std::int64_t scale_page_stride;
  std::int32_t scale_place_stride, scale_words, scale_first, scale_step;
};

struct GeneralArgs {
  Args args;
  Gather gather[2];
};

// A thread's share of a key as it lies in memory.
struct Raw {
  uint4 chunk[kMaxChunks];
  std::uint32_t scale[4];
};

// Loads 16 (4) bytes if `wanted`; else leaves the registers alone.
__device__ void load_if(bool wanted, uint4& to, const std::uint8_t* from) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "l"(from), "r"(static_cast<std::uint32_t>(wanted)));
}
__device__ void load_if(bool wanted, std::uint32_t& to, const std::uint8_t* from) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u32 %0, [%1]; }"
               : "+r"(to)
               : "l"(from), "r"(static_cast<std::uint32_t>(wanted)));
}

// 16 bytes at an address that is a multiple of `alignment` < 16: 4 bytes, or one, at a time.
__device__ uint4 load_unaligned(const std::uint8_t* p, int alignment) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (alignment >= 4) {
      words[i] = __ldg(reinterpret_cast<const std::uint32_t*>(p) + i);
    } else {
      words[i] = 0;
#pragma unroll
      for (int byte = 0; byte < 4; ++byte)
        words[i] |= static_cast<std::uint32_t>(__ldg(p + 4 * i + byte)) << (8 * byte);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ void fetch(const SourceArgs& source, const Gather& gather, std::int32_t slot, int lane, Raw& raw) {
  const bool valid = is_valid(source, slot), aligned = source.alignment >= 16;
  const std::uint32_t at = valid ? static_cast<std::uint32_t>(slot) : 0;
  const std::uint32_t page = divide(at, source.page), place = at - page * source.page_tokens;
  const std::uint8_t* record = source.kv + page * source.page_stride + std::uint64_t{place} * gather.record_bytes;
  const std::uint8_t* scales = gather.scales + page * gather.scale_page_stride +
                               std::uint64_t{place} * gather.scale_place_stride + 4 * gather.scale_first * (lane / 4);
  const std::uint8_t *first = record + 16 * lane, *others = first + (gather.gap + at * gather.gap_step);
  const auto load = [&](int i) {
    const int chunk = lane + i * kKeyThreads;
    const std::uint8_t* from = (chunk < gather.first ? first : others) + 16 * i * kKeyThreads;
    load_if(valid && aligned && chunk < gather.chunks, raw.chunk[i], from);
  };
#pragma unroll
  for (int i = 0; i < kFp8Chunks; ++i) load(i);
  if (gather.chunks > kFp8Chunks * kKeyThreads) {
#pragma unroll
    for (int i = kFp8Chunks; i < kMaxChunks; ++i) load(i);
  }
  if (gather.scale_words) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_if(valid && i < gather.scale_words, raw.scale[i], scales + 4 * gather.scale_step * i);
  }
  if (aligned || !valid) return;
#pragma unroll
  for (int i = 0; i < kMaxChunks; ++i) {
    const int chunk = lane + i * kKeyThreads;
    if (chunk < gather.chunks) {
      raw.chunk[i] = load_unaligned((chunk < gather.first ? first : others) + 16 * i * kKeyThreads, source.alignment);
    }
  }
}

template <typename Format>
struct Chunks {
  static constexpr int kCodes = Format::kNope / 16, kAll = kCodes + 2 * Format::kRope / 16;
  static constexpr int kPerThread = (kAll + kKeyThreads - 1) / kKeyThreads;
  static constexpr int dim(int chunk) { return chunk < kCodes ? 16 * chunk : Format::kNope + 8 * (chunk - kCodes); }
};

// Host only.
template <typename Format>
Gather make_gather(const SourceArgs& source) {
  using C = Chunks<Format>;
  Gather gather{.record_bytes = Format::kRecordBytes,
                .first = C::kCodes,
                .chunks = C::kAll,
                .gap = Format::kRopeOffset - Format::kNope};
  if (Format::kTwoPieces) {
    gather.first = Format::kFirstBytes / 16;
    gather.gap =
        reinterpret_cast<std::intptr_t>(source.pe) - reinterpret_cast<std::intptr_t>(source.kv) - Format::kFirstBytes;
    gather.gap_step = source.pe_stride - source.page_stride;
  }
  if (Format::kScaling == Scaling::kTailUe8m0) {  // all eight bytes
    gather.scales = source.kv + std::uint64_t{source.page_tokens} * Format::kRecordBytes;
    gather.scale_page_stride = source.page_stride;
    gather.scale_place_stride = Format::kTailBytes;
    gather.scale_words = 2;
    gather.scale_step = 1;
  } else if (Format::kScaling == Scaling::kSideFloat) {  // a scale is 4 chunks: threads 0-3 and 4-7 differ
    gather.scales = source.scales;
    gather.scale_page_stride = source.scale_stride;
    gather.scale_words = 4;
    gather.scale_first = 1;
    gather.scale_step = 2;
  } else if (Format::kScaling == Scaling::kInlineFloat) {  // a scale is 8 chunks
    gather.scales = source.kv + Format::kNope;
    gather.scale_page_stride = source.page_stride;
    gather.scale_place_stride = Format::kRecordBytes;
    gather.scale_words = 4;
    gather.scale_step = 1;
  }
  return gather;
}

// Four codes to floats by integer arithmetic: the low 7 bits placed under a float's exponent field read as the value times
// 2^-120 (fnuz: 2^-119), subnormals included. Without a branch, for a NaN code too.
template <Fp8 kFlavour>
__device__ float4 decode_bits(std::uint32_t codes) {
  constexpr bool kFnuz = kFlavour == Fp8::kE4m3fnuz;
  constexpr float kUnit = kFnuz ? 0x1p119f : 0x1p120f;
  constexpr std::uint32_t kLow = 0x7f7f7f7fu;
  // Bit 7 of a byte is set if its code is NaN: 0x80, or (OCP) 0x7f under either sign.
  const std::uint32_t is_nan_code = kFnuz ? ~(((codes & kLow) + kLow) | ~codes) : (codes & kLow) + 0x01010101u;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t code = codes >> (8 * i);
    x[i] = std::bit_cast<float>(((code & 0x80u) << 24) | ((code & 0x7fu) << 20)) * kUnit;
    x[i] = (is_nan_code & (0x80u << (8 * i))) != 0 ? kNan : x[i];
  }
  return {x[0], x[1], x[2], x[3]};
}

// The same by the instruction for OCP codes, where there is one.
template <Fp8 kFlavour>
__device__ float4 decode(std::uint32_t codes) {
  if constexpr (kFlavour == Fp8::kE4m3fn) {
    NV_IF_TARGET(NV_PROVIDES_SM_89,
                 (std::uint32_t low, high;
                  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }"
                      : "=r"(low), "=r"(high)
                      : "r"(codes));
                  const float2 x = unpack<Word16::kF16>(low); const float2 y = unpack<Word16::kF16>(high);
                  return float4{x.x, x.y, y.x, y.y};))
  }
  return decode_bits<kFlavour>(codes);
}

// The scale of a thread's i-th chunk of codes.
template <typename Format>
__device__ float scale_of(const Raw& raw, int i, int chunk) {
  if constexpr (Format::kScaling == Scaling::kNone) return 1.0f;
  if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    const int tile = chunk * 16 / Format::kScaleTile;
    return ue8m0_to_float(static_cast<std::uint8_t>(raw.scale[i >= 2] >> (8 * (tile % 4))));
  }
  return std::bit_cast<float>(raw.scale[i % 4]);
}

// NaN components of two words become 0.
template <Word16 kWord>
__device__ std::uint32_t zero_nan(std::uint32_t pair) {
  const float2 x = unpack<kWord>(pair);
  return (is_nan(x.x) ? 0 : pair & 0xffffu) | (is_nan(x.y) ? 0 : pair & 0xffff0000u);
}

// Converts and writes a thread's share of a key; an invalid key becomes a row of zeros.
template <typename Format, Word16 kWord>
__device__ void store(const Raw& raw, bool valid, bool nan_to_zero, int lane, std::uint16_t* row) {
  using C = Chunks<Format>;
#pragma unroll
  for (int i = 0; i < C::kPerThread; ++i) {
    const int chunk = lane + i * kKeyThreads;
    if (chunk >= C::kAll) continue;
    auto* to = reinterpret_cast<uint4*>(row + C::dim(chunk));
    const std::uint32_t words[4] = {valid ? raw.chunk[i].x : 0, valid ? raw.chunk[i].y : 0, valid ? raw.chunk[i].z : 0,
                                    valid ? raw.chunk[i].w : 0};
    if (chunk < C::kCodes) {
      if constexpr (Format::kNope > 0) {
        float scale = scale_of<Format>(raw, i, chunk);
        scale = valid ? scale : 0.0f;
        std::uint32_t pairs[8];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const float4 x = decode<Format::kFlavour>(words[word]);
          pairs[2 * word] = pack<kWord>(x.x * scale, x.y * scale);
          pairs[2 * word + 1] = pack<kWord>(x.z * scale, x.w * scale);
        }
        if (nan_to_zero) {
#pragma unroll
          for (std::uint32_t& pair : pairs) pair = zero_nan<kWord>(pair);
        }
        to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
        to[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
      }
    } else {
      std::uint32_t pairs[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        pairs[word] = words[word];
        if constexpr (Format::kWord != kWord) {
          const float2 x = unpack<Format::kWord>(words[word]);
          pairs[word] = pack<kWord>(x.x, x.y);
        }
        if (nan_to_zero) pairs[word] = zero_nan<kWord>(pairs[word]);
      }
      to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }
}

// core/format.h's with_format() for the device: the formats that can meet these words.
template <Words kWords, typename Body>
__device__ void with_device_format(pasa_kv_format format, int dim, Body&& body) {
  if constexpr (kWords != Words::kBf16) {
    if (format == PASA_KV_F16) {
      if (dim == 512) return body.template operator()<F16<512>>();
      return body.template operator()<F16<576>>();
    }
  }
  if constexpr (kWords == Words::kBf16) {
    if (format == PASA_KV_PACKED_BF16 || format == PASA_KV_BF16) {
      if (dim == 512) return body.template operator()<Bf16<512>>();
      return body.template operator()<Bf16<576>>();
    }
  }
  if constexpr (kWords != Words::kF16) {
    if (format == PASA_KV_FP8_DS_MLA) return body.template operator()<Fp8DsMla>();
    if (format == PASA_KV_FP8_V32) return body.template operator()<Fp8V32>();
    if (format == PASA_KV_FP8_E4M3FN) {
      if (dim == 512) return body.template operator()<UniformFp8<Fp8::kE4m3fn>>();
      return body.template operator()<DenseFp8<Fp8::kE4m3fn>>();
    }
    if (format == PASA_KV_FP8_E4M3FNUZ) {
      if (dim == 512) return body.template operator()<UniformFp8<Fp8::kE4m3fnuz>>();
      return body.template operator()<DenseFp8<Fp8::kE4m3fnuz>>();
    }
  }
}

// ---- the four stages ----

// The steps of a part: first those of the main list, then those of the extra one; no step mixes them.
struct Steps {
  Part part[2];
  int main_steps, count;
  __device__ bool is_extra(int step) const { return step >= main_steps; }
  // The slot of the step's key; -1 beyond the end of the list.
  __device__ int slot(int step, int key) const {
    if (step >= count) return -1;
    const Part list = is_extra(step) ? part[1] : part[0];
    const int entry = (is_extra(step) ? step - main_steps : step) * kKeys + key;
    return entry < list.count ? __ldg(list.indices + entry) : -1;
  }
};

__device__ Steps steps_of(const Args& args, std::int64_t token, int part) {
  Steps steps{};
  steps.part[0] = part_of(args, 0, token, part);
  if (args.source_count > 1) steps.part[1] = part_of(args, 1, token, part);
  steps.main_steps = (steps.part[0].count + kKeys - 1) / kKeys;
  steps.count = steps.main_steps + (steps.part[1].count + kKeys - 1) / kKeys;
  return steps;
}

// How the eight warps share the scores [kHeadTile, 32]: two halves of the dimensions, each cut into four rectangles.
template <int kHeadTile>
struct ScoreTile {
  static constexpr int kWide = kHeadTile == 64 ? 2 : 1;  // 16-head and 8-key tiles of a warp, each way
  static constexpr int kRows = kHeadTile / 16 / kWide;
};

template <int kHeadTile, Words kWords>
__device__ void scores(Smem<kHeadTile>& smem, int dim) {
  using Tile = ScoreTile<kHeadTile>;
  constexpr Word16 kWord = kWords == Words::kF16 ? Word16::kF16 : Word16::kBf16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp / 4;
  const int head = warp % 4 % Tile::kRows * 16 * Tile::kWide, key = warp % 4 / Tile::kRows * 8 * Tile::kWide;
  float c[Tile::kWide][Tile::kWide][4] = {};
  const int end = (half + 1) * dim / 2;
#pragma unroll 2
  for (int d = half * dim / 2; d < end; d += 16) {
    std::uint32_t b[Tile::kWide][2];
#pragma unroll
    for (int n = 0; n < Tile::kWide; ++n) load_matrix_x2(b[n], &smem.k[key + 8 * n + lane % 8][d + lane / 8 % 2 * 8]);
#pragma unroll
    for (int m = 0; m < Tile::kWide; ++m) {
      std::uint32_t a[4];
      load_matrix_x4(a, &smem.q[head + 16 * m + lane % 16][d + lane / 16 * 8]);
      if constexpr (kWords == Words::kF16WithBf16) {
        std::uint32_t high[4], low[4];
        split(a, high, low);
#pragma unroll
        for (int n = 0; n < Tile::kWide; ++n) {
          multiply<kWord>(c[m][n], low, b[n][0], b[n][1]);
          multiply<kWord>(c[m][n], high, b[n][0], b[n][1]);
        }
      } else {
#pragma unroll
        for (int n = 0; n < Tile::kWide; ++n) multiply<kWord>(c[m][n], a, b[n][0], b[n][1]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < Tile::kWide; ++m) {
#pragma unroll
    for (int n = 0; n < Tile::kWide; ++n) {
      float(*s)[kKeys + 4] = &smem.s[half][head + 16 * m + lane / 4];
      const int column = key + 8 * n + lane % 4 * 2;
      *reinterpret_cast<float2*>(&s[0][column]) = {c[m][n][0], c[m][n][1]};
      *reinterpret_cast<float2*>(&s[8][column]) = {c[m][n][2], c[m][n][3]};
    }
  }
}

// One step of the running softmax; the threads of a head all hold its state. Returns whether its maximum moved.
template <int kHeadTile, Word16 kWord>
__device__ bool softmax(Smem<kHeadTile>& smem, float scale_log2, Partial& state) {
  constexpr int kHeadThreads = kThreads / kHeadTile, kMine = kKeys / kHeadThreads, kPairs = kMine / 2;
  const int head = threadIdx.x / kHeadThreads, key = threadIdx.x % kHeadThreads * kMine;
  float s[kMine];
  float top = state.m;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const float sum = (smem.s[0][head][key + i] + smem.s[1][head][key + i]) * scale_log2;
    s[i] = smem.valid[key + i] ? sum : -kInfinity;
    top = fmaxf(top, s[i]);
  }
#pragma unroll
  for (int offset = kHeadThreads / 2; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  const float base = top == -kInfinity ? 0.0f : top;  // no finite score yet: weights are 0, or NaN for a NaN score
  float sum[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float x = exp2f(s[2 * i] - base), y = exp2f(s[2 * i + 1] - base);
    *reinterpret_cast<std::uint32_t*>(&smem.p[head][key + 2 * i]) = pack<kWord>(x, y);
    sum[i] = x + y;
  }
  // The sixteen pairs of a step are added in the same order whatever the head tile, so results do not depend on it.
#pragma unroll
  for (int offset = kKeys / 4; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (offset >= kPairs) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], offset / kPairs);
      } else if (i < offset) {
        sum[i] += sum[i + offset];
      }
    }
  }
  const float shrink = exp2f(state.m - base);
  if (key == 0) smem.factor[head] = shrink;
  const bool moved = state.m != top;
  state = {top, state.l * shrink + sum[0]};
  return moved;
}

template <int kHeadTile>
using Accumulators = float[kHeadTile / 16][kDimTiles][4];  // a warp's 64 value dims of every head

template <int kHeadTile>
__device__ void rescale(const Smem<kHeadTile>& smem, Accumulators<kHeadTile>& acc) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kHeadTile / 16; ++m) {
    const float low = smem.factor[16 * m + lane / 4], high = smem.factor[16 * m + lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
      acc[m][n][0] *= low;
      acc[m][n][1] *= low;
      acc[m][n][2] *= high;
      acc[m][n][3] *= high;
    }
  }
}

template <int kHeadTile, Word16 kWord>
__device__ void accumulate(const Smem<kHeadTile>& smem, Accumulators<kHeadTile>& acc) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int key = 0; key < kKeys; key += 16) {
    std::uint32_t p[kHeadTile / 16][4];
#pragma unroll
    for (int m = 0; m < kHeadTile / 16; ++m) load_matrix_x4(p[m], &smem.p[16 * m + lane % 16][key + lane / 16 * 8]);
#pragma unroll
    for (int n = 0; n < kDimTiles; n += 2) {
      std::uint32_t v[4];
      load_matrix_x4_trans(v, &smem.k[key + lane % 16][warp * kWarpDims + 8 * n + lane / 16 * 8]);
#pragma unroll
      for (int m = 0; m < kHeadTile / 16; ++m) {
        multiply<kWord>(acc[m][n], p[m], v[0], v[1]);
        multiply<kWord>(acc[m][n + 1], p[m], v[2], v[3]);
      }
    }
  }
}

// ---- beginning and end of a part ----

// Asynchronous where rows are aligned: wait_for_queries() before they are read.
template <int kHeadTile>
__device__ void load_queries(Smem<kHeadTile>& smem, const Args& args, std::int64_t token, int first_head) {
  const int chunks = args.dim / 8;
  const bool aligned = (reinterpret_cast<std::uintptr_t>(args.q) | static_cast<std::uint64_t>(args.q_stride[0] * 2) |
                        static_cast<std::uint64_t>(args.q_stride[1] * 2)) %
                           16 ==
                       0;
  for (int i = threadIdx.x; i < kHeadTile * chunks; i += kThreads) {
    const int row = i / chunks, d = i % chunks * 8;
    const bool there = first_head + row < args.heads;
    const std::uint16_t* q = args.q + at(args.q_stride, token, there ? first_head + row : 0) + d;
    std::uint16_t* to = &smem.q[row][d];
    if (aligned) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(q),
                   "r"(there ? 16 : 0));
    } else {
      *reinterpret_cast<uint4*>(to) =
          there ? load_unaligned(reinterpret_cast<const std::uint8_t*>(q), 2) : uint4{0, 0, 0, 0};
    }
  }
}

__device__ void wait_for_queries() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <int kHeadTile>
__device__ void write_partials(const Args& args, std::int64_t token, int part, int first_head,
                               const Accumulators<kHeadTile>& acc, Partial state) {
  constexpr int kHeadThreads = kThreads / kHeadTile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t first = partial_at(args, token, part, first_head);
  const int row = threadIdx.x / kHeadThreads;
  if (threadIdx.x % kHeadThreads == 0 && first_head + row < args.heads) {
    args.partials.m[first + row] = state.m;
    args.partials.l[first + row] = state.l;
  }
#pragma unroll
  for (int m = 0; m < kHeadTile / 16; ++m) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int head = 16 * m + lane / 4 + 8 * side;
      if (first_head + head >= args.heads) continue;
      float* to = args.partials.acc + (first + head) * kValueDim + warp * kWarpDims + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        const float x = acc[m][n][2 * side], y = acc[m][n][2 * side + 1];
        *reinterpret_cast<float2*>(to + 8 * n) = {x * args.value_scale, y * args.value_scale};
      }
    }
  }
}

// Output words go through shared memory, so that rows leave in 16-byte pieces.
template <int kHeadTile, Word16 kWord>
__device__ void write_output(Smem<kHeadTile>& smem, const Args& args, std::int64_t token, int first_head,
                             const Accumulators<kHeadTile>& acc, Partial state) {
  constexpr int kHeadThreads = kThreads / kHeadTile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = threadIdx.x / kHeadThreads, head = first_head + row;
  if (threadIdx.x % kHeadThreads == 0 && head < args.heads) {
    const Finish end = finish(state.m, state.l, args.sink ? args.sink[head] : -kInfinity);
    smem.factor[row] = end.scale * args.value_scale;
    if (args.lse) args.lse[at(args.lse_stride, token, head)] = end.lse;
    if (args.max_logits) args.max_logits[at(args.max_logits_stride, token, head)] = state.m * kLn2;
  }
  __syncthreads();  // factors are there; nobody reads q any more
#pragma unroll
  for (int m = 0; m < kHeadTile / 16; ++m) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int r = 16 * m + lane / 4 + 8 * side;
      if (first_head + r >= args.heads) continue;
      const float scale = smem.factor[r];
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {  // a scale of 0 stands for +0 whatever was accumulated
        const float x = scale == 0 ? 0.0f : acc[m][n][2 * side] * scale;
        const float y = scale == 0 ? 0.0f : acc[m][n][2 * side + 1] * scale;
        *reinterpret_cast<std::uint32_t*>(&smem.q[r][warp * kWarpDims + 8 * n + lane % 4 * 2]) = pack<kWord>(x, y);
      }
    }
  }
  __syncthreads();
  constexpr int kPieces = kValueDim / 8;
  for (int i = threadIdx.x; i < kHeadTile * kPieces; i += kThreads) {
    const int r = i / kPieces, d = i % kPieces * 8;
    if (first_head + r >= args.heads) break;
    std::uint16_t* out = args.out + at(args.out_stride, token, first_head + r) + d;
    if (reinterpret_cast<std::uintptr_t>(out) % 16 == 0) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(&smem.q[r][d]);
    } else {
      for (int j = 0; j < 8; ++j) out[j] = smem.q[r][d + j];
    }
  }
}

// ---- the kernel ----

// Block b: head tile, then part, then token; the tiles of a row run side by side and share its keys in L2. Two blocks of 16
// heads fit an SM's registers.
template <int kHeadTile, Words kWords>
__global__ void __launch_bounds__(kThreads, kHeadTile == 16 ? 2 : 1) attend(const __grid_constant__ GeneralArgs all) {
  const Args& args = all.args;
  constexpr Word16 kWord = kWords == Words::kF16 ? Word16::kF16 : Word16::kBf16;
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  auto& smem = *reinterpret_cast<Smem<kHeadTile>*>(shared_bytes);

  const auto head_tiles = static_cast<unsigned>((args.heads + kHeadTile - 1) / kHeadTile);
  const unsigned row = blockIdx.x / head_tiles;
  const int first_head = static_cast<int>(blockIdx.x % head_tiles) * kHeadTile;
  const std::int64_t token = row / static_cast<unsigned>(args.splits);
  const int part = static_cast<int>(row % static_cast<unsigned>(args.splits));

  const Steps steps = steps_of(args, token, part);
  const int key = threadIdx.x / kKeyThreads, key_lane = threadIdx.x % kKeyThreads;
  Raw raw{};
  const auto fetch_step = [&](int step, int slot) {
    const int extra = steps.is_extra(step);
    fetch(args.source[extra], all.gather[extra], slot, key_lane, raw);
  };

  int slot = steps.slot(0, key), next_slot = steps.slot(1, key);
  if (steps.count > 0) {
    fetch_step(0, slot);
    load_queries(smem, args, token, first_head);
  }

  Accumulators<kHeadTile> acc = {};
  Partial state{-kInfinity, 0.0f};
  for (int step = 0; step < steps.count; ++step) {
    const SourceArgs& source = args.source[steps.is_extra(step)];
    const bool valid = is_valid(source, slot);
    with_device_format<kWords>(source.format, args.dim, [&]<typename Format>() {
      store<Format, kWord>(raw, valid, args.nan_to_zero, key_lane, smem.k[key]);
    });
    if (key_lane == 0) smem.valid[key] = valid;
    wait_for_queries();
    __syncthreads();  // keys are there, and in the first step queries

    slot = next_slot;
    if (step + 1 < steps.count) fetch_step(step + 1, slot);
    next_slot = steps.slot(step + 2, key);

    scores<kHeadTile, kWords>(smem, args.dim);
    __syncthreads();  // scores are there
    const bool moved = softmax<kHeadTile, kWord>(smem, args.scale_log2, state);
    if (__syncthreads_or(moved)) rescale(smem, acc);  // weights are there
    accumulate<kHeadTile, kWord>(smem, acc);
    __syncthreads();  // keys, weights and factors may be overwritten
  }

  if (args.partial) {
    write_partials<kHeadTile>(args, token, part, first_head, acc, state);
  } else {
    write_output<kHeadTile, kWords == Words::kBf16 ? Word16::kBf16 : Word16::kF16>(smem, args, token, first_head, acc,
                                                                                   state);
  }
}

template <int kHeadTile, Words kWords>
void launch(const Args& args, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Smem<kHeadTile>);
  // More than 48 KB of shared memory must be asked for, once per device.
  static std::atomic<std::uint64_t> prepared{0};
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  const std::uint64_t bit = std::uint64_t{1} << (index % 64);
  if (index >= 64 || !(prepared.load(std::memory_order_relaxed) & bit)) {
    check(cudaFuncSetAttribute(attend<kHeadTile, kWords>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
          "cudaFuncSetAttribute");
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  const std::int64_t blocks = args.tokens * args.splits * ((args.heads + kHeadTile - 1) / kHeadTile);
  require(PASA_ERROR_OVERFLOW, blocks <= INT32_MAX, "q has ", args.tokens, " tokens, expected at most ", INT32_MAX,
          " blocks of work");
  GeneralArgs all{.args = args};
  for (int i = 0; i < args.source_count; ++i) {
    all.gather[i] = with_format(args.source[i].format, args.dim,
                                [&]<typename Format>() { return make_gather<Format>(args.source[i]); });
  }
  attend<kHeadTile, kWords><<<static_cast<unsigned>(blocks), kThreads, kBytes, stream>>>(all);
  check(cudaGetLastError(), "attend");
}

template <int kHeadTile>
void launch(const Args& args, cudaStream_t stream) {
  if (!args.f16) return launch<kHeadTile, Words::kBf16>(args, stream);
  for (int i = 0; i < args.source_count; ++i) {
    if (args.source[i].format != PASA_KV_F16) return launch<kHeadTile, Words::kF16WithBf16>(args, stream);
  }
  launch<kHeadTile, Words::kF16>(args, stream);
}

}  // namespace

int general_shared_bytes(int head_tile) {
  return static_cast<int>(head_tile == 16 ? sizeof(Smem<16>) : sizeof(Smem<64>));
}

void launch_general(const Args& args, int head_tile, void* stream) {
  if (head_tile == 16) return launch<16>(args, static_cast<cudaStream_t>(stream));
  launch<64>(args, static_cast<cudaStream_t>(stream));
}

}  // namespace pasa::cuda
