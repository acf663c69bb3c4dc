// Writing and gathering: golden vectors, every format against its model, canaries round every slot, bad slots, big pools.
#include <gtest/gtest.h>

#include <set>

#include "core/number.h"
#include "ops/convert.h"
#include "tests/ops/model.h"

namespace pasa::test {
namespace {

TEST(Convert, DecodesAllCodesOfBothFlavours) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const auto same = [](float a, float b) { return std::memcmp(&a, &b, 4) == 0; };
    EXPECT_TRUE(same(ops::decode_fp8<Fp8::kE4m3fn>(byte), fp8_to_float(Fp8::kE4m3fn, byte))) << code;
    EXPECT_TRUE(same(ops::decode_fp8<Fp8::kE4m3fnuz>(byte), fp8_to_float(Fp8::kE4m3fnuz, byte))) << code;
  }
}

// Every bf16 number and its neighbours in float, and every float around each tie between two codes.
TEST(Convert, EncodesLikeTheDefinition) {
  const auto compare = [](std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    ASSERT_EQ(ops::encode_fp8<Fp8::kE4m3fn>(x), float_to_fp8(Fp8::kE4m3fn, x)) << std::hexfloat << x;
    ASSERT_EQ(ops::encode_fp8<Fp8::kE4m3fnuz>(x), float_to_fp8(Fp8::kE4m3fnuz, x)) << std::hexfloat << x;
  };
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) compare(high << 16 | low);
  }
  for (const Flavour f : {Flavour::kFn, Flavour::kFnuz}) {
    for (int code = 0; code < 127; ++code) {
      const auto tie = static_cast<float>((fp8_value(f, code) + fp8_value(f, code + 1)) / 2);
      if (std::isnan(tie)) continue;
      std::uint32_t bits;
      std::memcpy(&bits, &tie, 4);
      for (int offset = -3; offset <= 3; ++offset) compare(bits + static_cast<std::uint32_t>(offset));
    }
  }
}

// ---- one description of every format

struct Format {
  const char* name;
  pasa_kv_format format;
  int dim, record, scales;  // record: bytes of a page's token, without a tail; scales: of the side tensor
  int tail;
  bool paged;
  std::uint32_t flags = 0;
};
const Format kFormats[] = {
    {"bf16", PASA_KV_BF16, 512, 1024, 0, 0, false},
    {"bf16_576", PASA_KV_BF16, 576, 1152, 0, 0, false},
    {"f16", PASA_KV_F16, 512, 1024, 0, 0, false},
    {"fp8_e4m3fn", PASA_KV_FP8_E4M3FN, 512, 512, 8, 0, false},
    {"fp8_e4m3fnuz", PASA_KV_FP8_E4M3FNUZ, 512, 512, 8, 0, false},
    {"fp8_ds_mla", PASA_KV_FP8_DS_MLA, 512, 576, 0, 8, true},
    {"packed_bf16", PASA_KV_PACKED_BF16, 512, 1024, 0, 0, true},
    {"fp8_v32", PASA_KV_FP8_V32, 576, 656, 0, 0, true},
    {"fp8_v32_pow2", PASA_KV_FP8_V32, 576, 656, 0, 0, true, PASA_POWER_OF_TWO_SCALES},
};

// A token's bytes by the model: the record, and its scales (tail bytes or side floats).
void model_token(const Format& f, const std::uint16_t* k, std::uint8_t* record, std::uint8_t* scales) {
  switch (f.format) {
    case PASA_KV_FP8_DS_MLA:
      return model_ds_mla(k, record, scales);
    case PASA_KV_FP8_V32:
      return model_v32(f.flags != 0, k, record);
    case PASA_KV_FP8_E4M3FN:
      return model_uniform(Flavour::kFn, k, record, reinterpret_cast<float*>(scales));
    case PASA_KV_FP8_E4M3FNUZ:
      return model_uniform(Flavour::kFnuz, k, record, reinterpret_cast<float*>(scales));
    default:
      std::memcpy(record, k, static_cast<std::size_t>(f.record));
  }
}

// What gathering gives back, as bf16 (of an f16 cache as f16): code * scale in float, rounded.
void model_dequantised(const Format& f, const std::uint8_t* record, const std::uint8_t* scales, std::uint16_t* out) {
  const Flavour flavour = f.format == PASA_KV_FP8_E4M3FNUZ ? Flavour::kFnuz : Flavour::kFn;
  const int nope = f.format == PASA_KV_FP8_DS_MLA ? 448 : f.record == f.dim * 2 ? 0 : 512;
  for (int d = 0; d < nope; ++d) {
    float scale = 0;
    if (f.format == PASA_KV_FP8_DS_MLA) {
      const int byte = scales[d / 64];
      scale = byte == 255 ? std::nanf("") : static_cast<float>(std::ldexp(1.0, byte - 127));
    } else if (f.format == PASA_KV_FP8_V32) {
      std::memcpy(&scale, record + 512 + 4 * (d / 128), 4);
    } else {
      std::memcpy(&scale, scales + 4 * (d / 64), 4);
    }
    const float x = static_cast<float>(fp8_value(flavour, record[d])) * scale;
    out[d] = std::isnan(x) ? 0x7fc0 : bf16_word(x);
  }
  std::memcpy(out + nope, record + f.record - 2 * (f.dim - nope), static_cast<std::size_t>(2 * (f.dim - nope)));
}

// A cache with gaps between its pages (rows), full of canaries.
struct Pool {
  static constexpr std::uint8_t kCanary = 0xa5;
  const Format& f;
  std::int64_t blocks, page, stride, scale_stride;
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales;

  Pool(const Format& format, std::int64_t block_count, std::int64_t page_tokens, std::int64_t padding)
      : f(format),
        blocks(block_count),
        page(format.paged ? page_tokens : 1),
        stride(page * (format.record + format.tail) + padding),
        scale_stride(format.scales + (padding > 0 ? 3 : 0)),
        bytes(static_cast<std::size_t>(blocks * stride), kCanary),
        scales(static_cast<std::size_t>(blocks * scale_stride)) {
    if (!scales.empty()) std::memset(scales.data(), kCanary, scales.size() * 4);
  }

  std::int64_t slots() const { return blocks * page; }

  pasa_cache cache() {
    pasa_cache c{};
    c.format = f.format;
    const bool words = f.record == 2 * f.dim;
    const std::int64_t element = words ? 2 : 1, last = words ? f.dim : f.record + f.tail;
    if (f.paged) {
      c.kv = dense(bytes.data(), words ? PASA_BF16 : PASA_U8, {blocks, page, last});
    } else {
      c.kv = dense(bytes.data(), !words ? PASA_U8 : f.format == PASA_KV_F16 ? PASA_F16 : PASA_BF16, {blocks, last});
    }
    c.kv.stride[0] = stride / element;
    if (f.scales) {
      c.kv_scales = dense(scales.data(), PASA_F32, {blocks, f.scales});
      c.kv_scales.stride[0] = scale_stride;
    }
    return c;
  }

  std::uint8_t* record(std::int64_t slot) { return bytes.data() + slot / page * stride + slot % page * f.record; }
  std::uint8_t* token_scales(std::int64_t slot) {
    if (f.scales) return reinterpret_cast<std::uint8_t*>(scales.data() + slot * scale_stride);
    return bytes.data() + slot / page * stride + page * f.record + slot % page * f.tail;
  }
  void write_by_model(std::int64_t slot, const std::uint16_t* k) {
    model_token(f, k, record(slot), token_scales(slot));
  }
};

// Keys that meet the quantisers' edges: ordinary numbers, wide ranges, zeros, subnormals, NaN, infinities.
std::vector<std::uint16_t> random_keys(std::int64_t n, int dim, bool special, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<std::uint16_t> k;
  for (std::int64_t i = 0; i < n; ++i) {
    const int kind = special ? static_cast<int>(random() % 6) : 0;
    const float size = kind == 1 ? std::ldexp(1.0f, static_cast<int>(random() % 200) - 120) : 1.0f;
    for (int d = 0; d < dim; ++d) {
      std::uint16_t word = bf16_word(size * normal(random));
      if (kind == 2) word = static_cast<std::uint16_t>(random());
      if (kind == 3 && random() % 40 == 0) word = random() % 2 ? 0x7fc0 : 0xff80;
      if (kind == 4) word = random() % 2 ? 0 : 0x8000;
      if (kind == 5 && random() % 70 == 0) word = static_cast<std::uint16_t>(random() % 2 << 15 | 0x7f80);
      k.push_back(word);
    }
  }
  return k;
}

class Caches : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(All, Caches, ::testing::ValuesIn(kFormats), [](const auto& test) { return test.param.name; });

std::vector<std::int64_t> pages_of(const Format& f) {
  return f.paged ? std::vector<std::int64_t>{1, 2, 4, 16, 53, 61, 64, 69, 128, 256, 576} : std::vector<std::int64_t>{1};
}

// Bytes equal to the model's in a pool of every page size, padded or not; all other bytes, padding included, untouched.
TEST_P(Caches, WritesItsSlotsAndNothingElse) {
  const Format& f = GetParam();
  for (const std::int64_t page : pages_of(f)) {
    for (const std::int64_t padding : {std::int64_t{0}, std::int64_t{8}, std::int64_t{576}}) {
      const std::int64_t blocks = 1 + 40 / page + (page == 1 ? 20 : 1), n = 23;
      Pool got(f, blocks, page, padding), expected(f, blocks, page, padding);
      const std::int64_t slots = got.slots();
      std::vector<std::uint16_t> k = random_keys(n, f.dim, true, static_cast<std::uint32_t>(page));
      std::vector<std::int64_t> mapping = {
          0, slots - 1, -1, -7, slots, slots + 5, INT64_MIN, INT64_MAX, std::int64_t{1} << 32};
      for (std::int64_t s = 1; static_cast<std::int64_t>(mapping.size()) < n - 2; ++s)
        mapping.push_back((7 * s) % slots);
      std::set<std::int64_t> taken;
      for (std::int64_t& slot : mapping) {
        if (!taken.insert(slot).second) slot = -1;
      }
      auto args = make<pasa_cache_write_args>();
      args.cache = got.cache();
      args.k = view(k, {n, f.dim});  // two rows more than the mapping: padding
      if (f.format == PASA_KV_F16) args.k.dtype = PASA_F16;
      args.slot_mapping = view(mapping);
      args.flags = f.flags;
      ASSERT_EQ(pasa_cache_write(&args, nullptr), PASA_OK) << pasa_last_error();
      for (std::size_t i = 0; i < mapping.size(); ++i) {
        if (mapping[i] >= 0 && mapping[i] < slots)
          expected.write_by_model(mapping[i], k.data() + static_cast<int>(i) * f.dim);
      }
      ASSERT_EQ(got.bytes, expected.bytes) << "page " << page << ", padding " << padding;
      ASSERT_EQ(got.scales, expected.scales);
    }
  }
}

TEST_P(Caches, TakesStridedKeysNarrowMappingsAndALongRank) {
  const Format& f = GetParam();
  Pool got(f, 5, 4, 0), expected(f, 5, 4, 0);
  const int stride = f.dim + 3;
  std::vector<std::uint16_t> k = random_keys(3, stride, false, 1);
  const std::vector<std::int32_t> mapping = {3, -1, 1};
  auto args = make<pasa_cache_write_args>();
  args.cache = got.cache();
  args.k = view(k, {3, 1, f.dim});
  args.k.stride[0] = stride;
  if (f.format == PASA_KV_F16) args.k.dtype = PASA_F16;
  args.slot_mapping = view(mapping);
  args.flags = f.flags;
  ASSERT_EQ(pasa_cache_write(&args, nullptr), PASA_OK) << pasa_last_error();
  expected.write_by_model(3, k.data());
  expected.write_by_model(1, k.data() + 2 * stride);
  EXPECT_EQ(got.bytes, expected.bytes);
}

// All 65 536 bf16 inputs, in groups that also hold 2^e: with small e the inputs set the scale, with large e they are small
// beside it, and in between they meet every code.
class Quantisers : public Caches {};
INSTANTIATE_TEST_SUITE_P(All, Quantisers,
                         ::testing::Values(kFormats[3], kFormats[4], kFormats[5], kFormats[7], kFormats[8]),
                         [](const auto& test) { return test.param.name; });

TEST_P(Quantisers, EveryBf16) {
  const Format& f = GetParam();
  const int group = f.format == PASA_KV_FP8_V32 ? 128 : 64,
            per_row = (f.format == PASA_KV_FP8_DS_MLA ? 448 : 512) / group * (group - 1);
  for (const int exponent : {-126, -16, 0, 7, 120}) {
    const std::int64_t n = (65536 + per_row - 1) / per_row;
    std::vector<std::uint16_t> k(static_cast<std::size_t>(n * f.dim), 0);
    int next = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      for (int d = 0; d < per_row / (group - 1) * group; ++d) {
        const auto at = static_cast<std::size_t>(i * f.dim + d);
        k[at] = d % group == 0 ? bf16_word(std::ldexp(1.0f, exponent)) : static_cast<std::uint16_t>(next++ % 65536);
      }
    }
    Pool got(f, n, 1, 0), expected(f, n, 1, 0);
    std::vector<std::int64_t> mapping;
    for (std::int64_t i = 0; i < n; ++i) {
      mapping.push_back(i);
      expected.write_by_model(i, k.data() + i * f.dim);
    }
    auto args = make<pasa_cache_write_args>();
    args.cache = got.cache();
    args.k = view(k, {n, f.dim});
    args.slot_mapping = view(mapping);
    args.flags = f.flags;
    ASSERT_EQ(pasa_cache_write(&args, nullptr), PASA_OK) << pasa_last_error();
    ASSERT_EQ(got.bytes, expected.bytes) << exponent;
    ASSERT_EQ(got.scales, expected.scales) << exponent;
  }
}

// Powers of two times 448 and their bf16 neighbours: the edges of the power-of-two scales.
TEST(CacheOps, ScalesAtTheirEdges) {
  const Format& f = kFormats[5];
  std::vector<std::uint16_t> k;
  std::vector<int> exponents;
  for (int e = -10; e <= 110; ++e) {
    for (int step = -1; step <= 1; ++step) {
      std::vector<std::uint16_t> row(512, 0);
      row[5] = static_cast<std::uint16_t>(bf16_word(std::ldexp(448.0f, e)) + step);
      k.insert(k.end(), row.begin(), row.end());
      exponents.push_back(step == 1 ? e + 1 : e);
    }
  }
  const auto n = static_cast<std::int64_t>(exponents.size());
  Pool pool(f, n, 1, 0);
  std::vector<std::int64_t> mapping;
  for (std::int64_t i = 0; i < n; ++i) mapping.push_back(i);
  auto args = make<pasa_cache_write_args>();
  args.cache = pool.cache();
  args.k = view(k, {n, 512});
  args.slot_mapping = view(mapping);
  ASSERT_EQ(pasa_cache_write(&args, nullptr), PASA_OK);
  for (std::int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(pool.token_scales(i)[0], exponents[static_cast<std::size_t>(i)] + 127) << i;
    EXPECT_EQ(pool.token_scales(i)[1], 105);  // the floor, 1e-4
  }
}

TEST(CacheOps, GoldenVectors) {
  struct Golden {
    const Format& f;
    std::uint32_t record_crc, scale_crc;
  };
  const Golden golden[] = {{kFormats[5], 0xb44020e5, 0x70f2c03c},
                           {kFormats[3], 0x9e2310e7, 0xc61daa44},
                           {kFormats[4], 0xcf9fd78b, 0xbd32ae1d},
                           {kFormats[8], 0xd7659c46, 0},
                           {kFormats[7], 0x9dcdff32, 0}};
  for (const Golden& g : golden) {
    const std::vector<std::uint16_t> k = golden_key(g.f.dim);
    const std::vector<std::int64_t> mapping = {2};
    Pool pool(g.f, 3, 1, 0);
    auto args = make<pasa_cache_write_args>();
    args.cache = pool.cache();
    args.k = view(k, {1, g.f.dim});
    args.slot_mapping = view(mapping);
    args.flags = g.f.flags;
    ASSERT_EQ(pasa_cache_write(&args, nullptr), PASA_OK) << pasa_last_error();
    EXPECT_EQ(crc32(pool.record(2), static_cast<std::size_t>(g.f.record)), g.record_crc) << g.f.name;
    if (g.scale_crc) {
      EXPECT_EQ(crc32(pool.token_scales(2), g.f.scales ? 32 : 8), g.scale_crc) << g.f.name;
    }
  }
}

// ---- gathering

TEST_P(Caches, GathersWhatTheBytesMean) {
  const Format& f = GetParam();
  for (const std::int64_t page : pages_of(f)) {
    Pool pool(f, 1 + 64 / page, page, 8);
    std::mt19937 random(static_cast<std::uint32_t>(page));
    for (std::uint8_t& byte : pool.bytes) byte = static_cast<std::uint8_t>(random());  // all codes, all UE8M0 exponents
    for (float& scale : pool.scales) scale = random() % 9 ? static_cast<float>(random()) * 1e-9f - 1 : 0.0f;
    const std::int64_t slots = pool.slots();
    std::vector<std::int64_t> list;
    for (std::int64_t s = 0; s < slots; ++s) list.push_back((5 * s + 2) % slots);
    list.insert(list.end(), {-1, slots, INT64_MIN, INT64_MAX, std::int64_t{1} << 32});
    const auto n = static_cast<std::int64_t>(list.size());
    const int stride = f.dim + 8;
    std::vector<std::uint16_t> out(static_cast<std::size_t>(n * stride), 0xfefe), expected = out;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i] < 0 || list[i] >= slots) continue;
      model_dequantised(f, pool.record(list[i]), pool.token_scales(list[i]),
                        expected.data() + static_cast<int>(i) * stride);
    }
    auto args = make<pasa_cache_gather_args>();
    args.cache = pool.cache();
    args.out = view(out, {n, f.dim});
    args.out.stride[0] = stride;
    if (f.format == PASA_KV_F16) args.out.dtype = PASA_F16;
    args.slots = view(list);
    ASSERT_EQ(pasa_cache_gather(&args, nullptr), PASA_OK) << pasa_last_error();
    ASSERT_EQ(out, expected) << page;

    args.flags = PASA_NAN_TO_ZERO;
    ASSERT_EQ(pasa_cache_gather(&args, nullptr), PASA_OK);
    const unsigned infinity = f.format == PASA_KV_F16 ? 0x7c00 : 0x7f80;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i] < 0 || list[i] >= slots) continue;
      for (std::size_t d = i * static_cast<std::size_t>(stride);
           d < i * static_cast<std::size_t>(stride) + static_cast<std::size_t>(f.dim); ++d) {
        if ((expected[d] & 0x7fffu) > infinity) expected[d] = 0;
      }
    }
    ASSERT_EQ(out, expected) << page << " without NaN";
  }
}

// bf16 rounds to f16 and back through float.
TEST(CacheOps, GathersIntoTheOtherWord) {
  const std::vector<std::uint16_t> words = {0x3f80, 0x4049, 0x7f00, 0xff80, 0x0001, 0x8000, 0x3eaa, 0xc2f7};
  const std::vector<std::uint16_t> halves = {0x3c00, 0x4248, 0x7c00, 0xfc00, 0x0000, 0x8000, 0x3550, 0xd7b8};
  for (const bool from_bf16 : {true, false}) {
    std::vector<std::uint16_t> pool(512), out(512, 0xfefe);
    for (std::size_t i = 0; i < 512; ++i) pool[i] = (from_bf16 ? words : halves)[i % 8];
    const std::vector<std::int32_t> slots = {0};
    auto args = make<pasa_cache_gather_args>();
    args.cache.format = from_bf16 ? PASA_KV_BF16 : PASA_KV_F16;
    args.cache.kv = view(pool, {1, 512});
    args.out = view(out, {1, 512});
    (from_bf16 ? args.out : args.cache.kv).dtype = PASA_F16;
    args.slots = view(slots);
    ASSERT_EQ(pasa_cache_gather(&args, nullptr), PASA_OK) << pasa_last_error();
    for (std::size_t i = 0; i < 512; ++i) {
      const std::uint16_t back = words[i % 8];
      if (from_bf16) {
        EXPECT_EQ(out[i], halves[i % 8]) << i;
      } else if (back != 0x7f00 && back != 0x0001) {  // out of f16's range
        EXPECT_EQ(out[i], back) << i;
      }
    }
  }
}

// Sequences: positions seq - g ... seq - 1 through the table; holes, bad tables, too long and too short gathers.
TEST_P(Caches, GathersSequences) {
  const Format& f = GetParam();
  const std::int64_t page = f.paged ? 4 : 1, blocks = 12, requests = 6, columns = 5, max_tokens = 17, offset = 3;
  Pool pool(f, blocks, page, 0);
  const std::vector<std::uint16_t> k = random_keys(pool.slots(), f.dim, false, 3);
  for (std::int64_t s = 0; s < pool.slots(); ++s) pool.write_by_model(s, k.data() + s * f.dim);
  std::vector<std::int32_t> table = {7,  3, 9, 0, 11, 1, -1, 2, 4, 5, 12, 6, INT32_MAX, 8, INT32_MIN,
                                     10, 0, 1, 2, 3,  4, 5,  6, 7, 8, 2,  3, 4,         5, 6};
  const std::vector<std::int32_t> seq_lens = {page == 1 ? 5 : 18, 4, 20, 0, -3, 40}, gather_lens = {4, 9, 17, 2, 1, 30};
  for (const bool with_gather : {true, false}) {
    std::vector<std::uint16_t> out(static_cast<std::size_t>(requests * max_tokens * f.dim), 0xfefe), expected = out;
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t seq = seq_lens[static_cast<std::size_t>(r)],
                         g = with_gather ? gather_lens[static_cast<std::size_t>(r)] : seq;
      for (std::int64_t i = 0; i < g; ++i) {
        const std::int64_t p = seq - g + i;
        if (p < 0 || p / page >= columns || offset + i >= max_tokens) continue;
        const std::int64_t block = table[static_cast<std::size_t>(r * columns + p / page)];
        if (block < 0 || block >= blocks) continue;
        const std::int64_t slot = block * page + p % page;
        model_dequantised(f, pool.record(slot), pool.token_scales(slot),
                          expected.data() + (r * max_tokens + offset + i) * f.dim);
      }
    }
    auto args = make<pasa_cache_gather_args>();
    args.cache = pool.cache();
    args.out = view(out, {requests, max_tokens, f.dim});
    if (f.format == PASA_KV_F16) args.out.dtype = PASA_F16;
    args.seq_lens = view(seq_lens);
    if (with_gather) args.gather_lens = view(gather_lens);
    args.block_table = view(table, {requests, columns});
    args.offset = offset;
    ASSERT_EQ(pasa_cache_gather(&args, nullptr), PASA_OK) << pasa_last_error();
    ASSERT_EQ(out, expected);
  }
}

// |x - x'| <= 16 scales (half a step of the top binade), RoPE exact.
TEST(CacheOps, RoundTrip) {
  const Format& f = kFormats[5];
  Pool pool(f, 3, 64, 64);
  const std::int64_t n = pool.slots();
  const std::vector<std::uint16_t> k = random_keys(n, 512, false, 9);
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < n; ++i) slots.push_back(n - 1 - i);
  auto write = make<pasa_cache_write_args>();
  write.cache = pool.cache();
  write.k = view(k, {n, 512});
  write.slot_mapping = view(slots);
  ASSERT_EQ(pasa_cache_write(&write, nullptr), PASA_OK);
  std::vector<std::uint16_t> out(k.size(), 0xfefe);
  auto gather = make<pasa_cache_gather_args>();
  gather.cache = pool.cache();
  gather.out = view(out, {n, 512});
  gather.slots = view(slots);
  ASSERT_EQ(pasa_cache_gather(&gather, nullptr), PASA_OK);
  for (std::int64_t i = 0; i < n; ++i) {
    for (int d = 0; d < 512; ++d) {
      const auto at = static_cast<std::size_t>(i * 512 + d);
      if (d >= 448) {
        ASSERT_EQ(out[at], k[at]);
      } else {
        const double scale = std::ldexp(1.0, pool.token_scales(slots[static_cast<std::size_t>(i)])[d / 64] - 127);
        ASSERT_LE(std::fabs(bf16_value(out[at]) - bf16_value(k[at])), 16 * scale);
      }
    }
  }
}

// Pools of [blocks, page bytes], and the worked offsets of the specification.
TEST(CacheOps, WholePages) {
  struct Worked {
    std::int64_t slot, page, stride, nope, rope, scale;
  };
  const Worked worked[] = {{300, 256, 149504, 174848, 175296, 297312},
                           {300, 256, 149760, 175104, 175552, 297568},
                           {137, 64, 37376, 79936, 80384, 111688},
                           {137, 64, 37440, 80064, 80512, 111816},
                           {5, 2, 1168, 2912, 3360, 3496},
                           {5, 2, 1728, 4032, 4480, 4616}};
  const std::vector<std::uint16_t> k = golden_key(512);
  for (const Worked& w : worked) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(3 * w.stride), 0xa5);
    const std::vector<std::int64_t> mapping = {w.slot};
    auto args = make<pasa_cache_write_args>();
    args.cache = {.format = PASA_KV_FP8_DS_MLA, .kv = view(bytes, {3, w.stride}), .block_size = w.page};
    args.k = view(k, {1, 512});
    args.slot_mapping = view(mapping);
    ASSERT_EQ(pasa_cache_write(&args, nullptr), PASA_OK) << pasa_last_error();
    EXPECT_EQ(crc32(bytes.data() + w.nope, 576), 0xb44020e5);
    EXPECT_EQ(bytes[static_cast<std::size_t>(w.rope)], 0x98);
    EXPECT_EQ(crc32(bytes.data() + w.scale, 8), 0x70f2c03c);
  }
  std::vector<std::uint8_t> bytes(3 * 41984, 0xa5);
  const std::vector<std::uint16_t> k576 = golden_key(576);
  const std::vector<std::int64_t> mapping = {130};
  auto args = make<pasa_cache_write_args>();
  args.cache = {.format = PASA_KV_FP8_V32, .kv = view(bytes, {3, 64, 656})};
  args.k = view(k576, {1, 576});
  args.slot_mapping = view(mapping);
  ASSERT_EQ(pasa_cache_write(&args, nullptr), PASA_OK);
  EXPECT_EQ(crc32(bytes.data() + 85280, 656), 0x9dcdff32);
}

// Slots beyond 2 GiB and 4 GiB in every format, in address space that is mostly never touched.
TEST_P(Caches, BigPools) {
  const Format& f = GetParam();
  const std::int64_t token = f.record + f.tail, page = f.paged ? 64 : 1, stride = page * token;
  const std::int64_t blocks = (std::int64_t{9} << 29) / stride;  // 4.5 GiB
  const Sparse kv(static_cast<std::size_t>(blocks * stride)), scales(static_cast<std::size_t>(blocks) * 32);
  const bool words = f.record == 2 * f.dim;
  pasa_cache cache{};
  cache.format = f.format;
  const pasa_dtype dtype = !words ? PASA_U8 : f.format == PASA_KV_F16 ? PASA_F16 : PASA_BF16;
  cache.kv = f.paged ? dense(kv.data(), dtype, {blocks, page, words ? f.dim : token})
                     : dense(kv.data(), dtype, {blocks, words ? f.dim : token});
  if (f.scales) cache.kv_scales = dense(scales.data(), PASA_F32, {blocks, 8});
  std::vector<std::int64_t> slots;
  for (const std::int64_t edge : {std::int64_t{1} << 31, std::int64_t{1} << 32}) {
    for (int i = -1; i <= 1; ++i) slots.push_back((edge / stride + i) * page + (page > 1 ? 17 : 0));
  }
  slots.push_back(blocks * page - 1);
  const auto n = static_cast<std::int64_t>(slots.size());
  const std::vector<std::uint16_t> k = random_keys(n, f.dim, false, 4);
  auto write = make<pasa_cache_write_args>();
  write.cache = cache;
  write.k = view(k, {n, f.dim});
  write.slot_mapping = view(slots);
  write.flags = f.flags;
  std::vector<std::uint16_t> out(k.size(), 0xfefe), expected(k.size());
  auto gather = make<pasa_cache_gather_args>();
  gather.cache = cache;
  gather.out = view(out, {n, f.dim});
  gather.slots = view(slots);
  if (f.format == PASA_KV_F16) write.k.dtype = gather.out.dtype = PASA_F16;
  ASSERT_EQ(pasa_cache_write(&write, nullptr), PASA_OK) << pasa_last_error();
  ASSERT_EQ(pasa_cache_gather(&gather, nullptr), PASA_OK) << pasa_last_error();
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<std::uint8_t> record(static_cast<std::size_t>(f.record)), scale(64);
    const std::int64_t slot = slots[static_cast<std::size_t>(i)];
    model_token(f, k.data() + i * f.dim, record.data(), scale.data());
    ASSERT_EQ(0, std::memcmp(kv.data() + slot / page * stride + slot % page * f.record, record.data(), record.size()));
    model_dequantised(f, record.data(), scale.data(), expected.data() + i * f.dim);
  }
  EXPECT_EQ(out, expected);
}

TEST(CacheOps, NothingToDoIsNoError) {
  std::vector<std::uint8_t> bytes(584);
  std::vector<std::uint16_t> k(512), out(512, 0xfefe);
  const std::vector<std::int64_t> none;
  auto write = make<pasa_cache_write_args>();
  write.cache = {.format = PASA_KV_FP8_DS_MLA, .kv = view(bytes, {1, 1, 584})};
  write.k = view(k, {1, 512});
  write.slot_mapping = view(none);
  EXPECT_EQ(pasa_cache_write(&write, nullptr), PASA_OK) << pasa_last_error();
  EXPECT_EQ(bytes, std::vector<std::uint8_t>(584));
  const std::vector<std::int64_t> slots = {0};  // of a pool without slots
  auto gather = make<pasa_cache_gather_args>();
  gather.cache = {.format = PASA_KV_FP8_DS_MLA, .kv = dense(nullptr, PASA_U8, {0, 64, 584})};
  gather.out = view(out, {1, 512});
  gather.slots = view(slots);
  EXPECT_EQ(pasa_cache_gather(&gather, nullptr), PASA_OK) << pasa_last_error();
  EXPECT_EQ(out, std::vector<std::uint16_t>(512, 0xfefe));
}

}  // namespace
}  // namespace pasa::test
