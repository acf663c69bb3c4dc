// The writers of docs/formats.md against its golden vectors (bytes and zlib CRC-32), its amax tables and its worked groups,
// and against the rule written a second time in double arithmetic for every bf16 there is.
#include "core/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace pasa {
namespace {

using Bytes = std::vector<std::uint8_t>;

// zlib's: reflected, polynomial 0xedb88320, bits inverted before and after.
std::uint32_t crc32(const Bytes& bytes) {
  std::uint32_t crc = ~0u;
  for (const std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

std::string hex(const Bytes& bytes, std::size_t begin, std::size_t count) {
  std::string text;
  for (std::size_t i = begin; i < begin + count; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[bytes[i] / 16];
    text += kDigits[bytes[i] % 16];
  }
  return text;
}

// k[d] = (((37 d) mod 101) - 50) / 16 * 2^-(d div 64): exact in bf16.
std::vector<float> golden_key(int dim) {
  std::vector<float> key;
  for (int d = 0; d < dim; ++d) {
    key.push_back(static_cast<float>(std::ldexp((37 * d % 101 - 50) / 16.0, -(d / 64))));
  }
  return key;
}

Bytes bytes_of(const std::vector<float>& floats) {
  Bytes bytes(floats.size() * 4);
  std::memcpy(bytes.data(), floats.data(), bytes.size());
  return bytes;
}

TEST(Golden, TheCrcIsZlibs) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32(Bytes(text.begin(), text.end())), 0xcbf43926u);
}

TEST(Golden, TheKeyStartsAsWritten) {
  const std::vector<float> first = {-3.125f, -0.8125f, 1.5f, -2.5f, -0.1875f, 2.125f, -1.875f, 0.4375f};
  const std::vector<float> key = golden_key(512);
  EXPECT_EQ(std::vector<float>(key.begin(), key.begin() + 8), first);
}

TEST(Golden, Fp8DsMla) {
  Bytes record(576, 0xaa), tail(8, 0xaa);
  quantize_ds_mla(golden_key(512).data(), record.data(), tail.data());
  EXPECT_EQ(hex(record, 0, 16), "fced74fadc78f7667bf270fcea76f900");
  EXPECT_EQ(hex(record, 64, 8), "e278f8627af36ffc");
  EXPECT_EQ(hex(record, 448, 8), "98bc00ba903c60bc");
  EXPECT_EQ(hex(tail, 0, 8), "7877767574737200");
  EXPECT_EQ(crc32(record), 0xb44020e5u);
  EXPECT_EQ(crc32(tail), 0x70f2c03cu);
  const float read[] = {-3.0f, -0.8125f, 1.5f, -2.5f, -0.1875f, 2.0f, -1.875f, 0.4375f};
  for (int d = 0; d < 8; ++d) EXPECT_EQ(Fp8DsMla::element({record.data(), tail.data()}, d), read[d]);
}

TEST(Golden, UniformFp8) {
  Bytes codes(512);
  std::vector<float> scales(8);
  quantize_uniform(Fp8::kE4m3fn, golden_key(512).data(), codes.data(), scales.data());
  EXPECT_EQ(hex(codes, 0, 16), "feef75fbdd7af8687cf372fdeb77fa00");
  EXPECT_EQ(crc32(codes), 0x9e2310e7u);
  EXPECT_EQ(crc32(bytes_of(scales)), 0xc61daa44u);
  EXPECT_EQ(scales[0], 0.0069754463620483875f);
  for (int g = 1; g < 8; ++g)
    EXPECT_EQ(scales[static_cast<std::size_t>(g)], scales[static_cast<std::size_t>(g - 1)] / 2);

  quantize_uniform(Fp8::kE4m3fnuz, golden_key(512).data(), codes.data(), scales.data());
  EXPECT_EQ(hex(codes, 0, 16), "fff076fcde7af9687df472feec78fb00");
  EXPECT_EQ(crc32(codes), 0xcf9fd78bu);
  EXPECT_EQ(crc32(bytes_of(scales)), 0xbd32ae1du);
  EXPECT_EQ(scales[0], 0.013020833022892475f);
}

TEST(Golden, Fp8V32) {
  Bytes record(656, 0xaa);
  quantize_v32(V32Scale::kPowerOfTwo, golden_key(576).data(), record.data());
  EXPECT_EQ(hex(record, 0, 16), "fced74fadc78f7667bf270fcea76f900");
  EXPECT_EQ(hex(record, 528, 8), "e03a303ca0bb883b");
  EXPECT_EQ(crc32(record), 0xd7659c46u);
  for (int tile = 0; tile < 4; ++tile)
    EXPECT_EQ(Fp8V32::scale({record.data(), nullptr}, tile), std::ldexp(1.0, -7 - 2 * tile));

  quantize_v32(V32Scale::kPlain, golden_key(576).data(), record.data());
  EXPECT_EQ(hex(record, 0, 16), "feef75fbdd7af8687cf372fdeb77fa00");
  EXPECT_EQ(hex(record, 512, 4), "4992e43b");
  EXPECT_EQ(crc32(record), 0x9dcdff32u);
}

TEST(Golden, Bf16BitsGiveTheSameBytesAsFloats) {
  std::vector<std::uint16_t> bits;
  for (const float x : golden_key(512)) bits.push_back(float_to_bf16(x));
  Bytes record(576), tail(8);
  quantize_ds_mla(bits.data(), record.data(), tail.data());
  EXPECT_EQ(crc32(record), 0xb44020e5u);
  EXPECT_EQ(crc32(tail), 0x70f2c03cu);
}

TEST(DsMla, ExponentsOfTheAmaxTable) {
  struct {
    float amax;
    int exponent;
  } const rows[] = {{0.0f, -22},  {1e-9f, -22}, {1e-4f, -22}, {0.01f, -15},    {0.5f, -9},     {1.0f, -8},
                    {1.75f, -8},  {3.0f, -7},   {3.5f, -7},   {3.515625f, -6}, {7.0f, -6},     {7.03125f, -5},
                    {100.0f, -2}, {448.0f, 0},  {449.0f, 1},  {1e4f, 5},       {3.38e38f, 120}};
  for (const auto& row : rows) EXPECT_EQ(ds_mla_exponent(row.amax), row.exponent) << row.amax;
}

TEST(DsMla, TheBoundary448TimesAPowerOfTwoStaysBelow) {
  for (int k = -22; k <= 119; ++k) {
    const float boundary = std::ldexp(448.0f, k);
    EXPECT_EQ(ds_mla_exponent(boundary), k);
    EXPECT_EQ(ds_mla_exponent(std::nextafter(boundary, 3e38f)), k + 1);
  }
}

// The smallest e with amax <= 448 * 2^e, by search.
TEST(DsMla, ExponentOfEveryPositiveBf16) {
  for (int bits = 0; bits < 0x7f80; ++bits) {
    const float amax = bf16_to_float(static_cast<std::uint16_t>(bits));
    const double floored = amax > 1e-4f ? amax : 1e-4f;
    int want = -40;
    while (floored > std::ldexp(448.0, want)) ++want;
    ASSERT_EQ(ds_mla_exponent(amax), want) << amax;
  }
}

TEST(Groups, WorkedGroupsOfAmaxThree) {
  std::vector<float> key(512, 0.0f);
  const float values[] = {3.0f, 1.0f, -0.5f, 0.30078125f, 0.0f};
  std::copy(std::begin(values), std::end(values), key.begin());
  Bytes codes(512), record(576), tail(8);
  std::vector<float> scales(8);
  quantize_uniform(Fp8::kE4m3fn, key.data(), codes.data(), scales.data());
  EXPECT_EQ(hex(codes, 0, 5), "7e71e96300");
  EXPECT_EQ(scales[0], 3.0f / 448.0f);
  quantize_uniform(Fp8::kE4m3fnuz, key.data(), codes.data(), scales.data());
  EXPECT_EQ(hex(codes, 0, 5), "7f72ea6400");
  EXPECT_EQ(scales[0], 0.0125f);
  quantize_ds_mla(key.data(), record.data(), tail.data());
  EXPECT_EQ(hex(record, 0, 5), "7c70e86200");
  EXPECT_EQ(tail[0], 120);
  EXPECT_EQ(tail[1], 105) << "an all-zero group has the floor's exponent";
}

// The nearest e4m3 value (ties to the even code), searched in double.
double nearest(Fp8 flavour, double x) {
  const double limit = fp8_max(flavour);
  x = std::fmin(std::fmax(x, -limit), limit);
  double best = 0;
  int best_code = 0;
  for (int code = 0; code < 128; ++code) {
    const double value = fp8_to_float(flavour, static_cast<std::uint8_t>(code));
    if (std::isnan(value)) continue;
    const double distance = std::fabs(value - std::fabs(x)), best_distance = std::fabs(best - std::fabs(x));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0 && best_code % 2 == 1)) {
      best = value;
      best_code = code;
    }
  }
  return x < 0 ? -best : best;
}

// Every finite bf16 in a group with every of several amax values: the code must be that of the rule.
TEST(DsMla, EveryBf16UnderSeveralScales) {
  for (const float amax : {1e-5f, 0.01f, 3.0f, 448.0f, 449.0f, 1e20f, kMaxBf16}) {
    std::vector<float> key(512, 0.0f);
    const float top = bf16_to_float(float_to_bf16(amax));
    const int exponent = ds_mla_exponent(top);
    Bytes record(576), tail(8);
    int at = 1;
    key[0] = top;
    const auto flush = [&] {
      quantize_ds_mla(key.data(), record.data(), tail.data());
      ASSERT_EQ(tail[0], exponent + 127);
      for (int d = 0; d < at; ++d) {
        const double scaled = std::ldexp(static_cast<double>(key[static_cast<std::size_t>(d)]), -exponent);
        ASSERT_EQ(fp8_to_float(Fp8::kE4m3fn, record[static_cast<std::size_t>(d)]), nearest(Fp8::kE4m3fn, scaled))
            << key[static_cast<std::size_t>(d)] << " under 2^" << exponent;
      }
      at = 1;
    };
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const float x = bf16_to_float(static_cast<std::uint16_t>(bits));
      if (!(std::fabs(x) <= top)) continue;
      key[static_cast<std::size_t>(at++)] = x;
      if (at == 64) flush();
    }
    flush();
  }
}

TEST(Uniform, EveryBf16UnderSeveralScales) {
  for (const Fp8 flavour : {Fp8::kE4m3fn, Fp8::kE4m3fnuz}) {
    for (const float top : {1e-20f, 0.01f, 3.0f, 1e20f}) {
      std::vector<float> key(512, 0.0f), scales(8);
      Bytes codes(512);
      std::size_t at = 1;
      key[0] = top;
      const float scale = std::fmax(top, 1e-12f) / fp8_max(flavour);
      const auto flush = [&] {
        quantize_uniform(flavour, key.data(), codes.data(), scales.data());
        ASSERT_EQ(scales[0], scale);
        for (std::size_t d = 0; d < at; ++d) {
          ASSERT_EQ(fp8_to_float(flavour, codes[d]), nearest(flavour, key[d] / scale)) << key[d];
        }
        at = 1;
      };
      for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const float x = bf16_to_float(static_cast<std::uint16_t>(bits));
        if (!(std::fabs(x) <= top)) continue;
        key[at++] = x;
        if (at == 64) flush();
      }
      flush();
    }
  }
}

TEST(Specials, NanBecomesNanAndDoesNotRaiseTheScale) {
  std::vector<float> key(576, 1.0f);
  key[3] = kNan;
  Bytes record(656), tail(8), codes(512);
  std::vector<float> scales(8);
  quantize_ds_mla(key.data(), record.data(), tail.data());
  EXPECT_EQ(record[3] & 0x7f, 0x7f);
  EXPECT_EQ(tail[0], 119);
  quantize_uniform(Fp8::kE4m3fn, key.data(), codes.data(), scales.data());
  EXPECT_EQ(codes[3] & 0x7f, 0x7f);
  EXPECT_EQ(scales[0], 1.0f / 448.0f);
  quantize_uniform(Fp8::kE4m3fnuz, key.data(), codes.data(), scales.data());
  EXPECT_EQ(codes[3], 0x80);
  quantize_v32(V32Scale::kPlain, key.data(), record.data());
  EXPECT_EQ(record[3] & 0x7f, 0x7f);
  EXPECT_EQ(Fp8V32::scale({record.data(), nullptr}, 0), 1.0f / 448.0f);
}

TEST(Specials, InfinitySaturates) {
  std::vector<float> key(576, 1.0f);
  key[3] = -kInfinity;
  Bytes record(656), tail(8), codes(512);
  std::vector<float> scales(8);
  quantize_ds_mla(key.data(), record.data(), tail.data());
  EXPECT_EQ(record[3], 0xfe);
  EXPECT_EQ(tail[0], 247) << "as the largest finite bf16";
  quantize_uniform(Fp8::kE4m3fn, key.data(), codes.data(), scales.data());
  EXPECT_EQ(codes[3], 0xfe);
  EXPECT_EQ(scales[0], std::numeric_limits<float>::max() / 448.0f);
}

TEST(Specials, RopeIsCopiedBitForBit) {
  std::vector<std::uint16_t> key(512, 0);
  for (std::size_t j = 0; j < 64; ++j) key[448 + j] = static_cast<std::uint16_t>(0x7f00 + 3 * j);  // infinities, NaNs
  Bytes record(576), tail(8);
  quantize_ds_mla(key.data(), record.data(), tail.data());
  EXPECT_EQ(std::memcmp(record.data() + 448, key.data() + 448, 128), 0);
}

TEST(Specials, ScaleFloors) {
  EXPECT_EQ(uniform_scale(Fp8::kE4m3fn, 0.0f), 1e-12f / 448.0f);
  EXPECT_EQ(uniform_scale(Fp8::kE4m3fnuz, 0.0f), 1e-12f / 240.0f);
  EXPECT_EQ(v32_scale(V32Scale::kPlain, 0.0f), std::numeric_limits<float>::min());
  EXPECT_EQ(v32_scale(V32Scale::kPowerOfTwo, 0.0f), std::ldexp(1.0f, -13));  // the power of two above 1e-4
  EXPECT_EQ(v32_scale(V32Scale::kPowerOfTwo, 448.0f), 1.0f);
  EXPECT_EQ(v32_scale(V32Scale::kPowerOfTwo, 449.0f), 2.0f);
}

}  // namespace
}  // namespace pasa
