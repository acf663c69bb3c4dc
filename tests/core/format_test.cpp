// Where a byte is: every worked offset of docs/formats.md, padded pages and unpadded ones, and what the bytes at those places
// mean: rows written by hand, byte by byte, and read back through `element`.
#include "core/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/problem.h"

namespace pasa {
namespace {

using Ocp = UniformFp8<Fp8::kE4m3fn>;
using Fnuz = UniformFp8<Fp8::kE4m3fnuz>;

TEST(Format, Fp8DsMlaOffsetsOfTheTable) {
  struct {
    std::int64_t slot, page_tokens, stride, nope, rope, scale;
  } const rows[] = {
      {300, 256, 149504, 174848, 175296, 297312},
      {300, 256, 149760, 175104, 175552, 297568},
      {137, 64, 37376, 79936, 80384, 111688},
      {137, 64, 37440, 80064, 80512, 111816},
      {5, 2, 1168, 2912, 3360, 3496},
      {5, 2, 1728, 4032, 4480, 4616},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(Fp8DsMla::record_offset(row.stride, row.page_tokens, row.slot), row.nope);
    EXPECT_EQ(Fp8DsMla::record_offset(row.stride, row.page_tokens, row.slot) + Fp8DsMla::kRopeOffset, row.rope);
    EXPECT_EQ(Fp8DsMla::tail_offset(row.stride, row.page_tokens, row.slot), row.scale);
  }
}

TEST(Format, Fp8V32OffsetsOfTheExample) {
  const std::int64_t record = Fp8V32::record_offset(41984, 64, 130);
  EXPECT_EQ(record, 85280);
  EXPECT_EQ(record + Fp8V32::kNope + 4 * 1, 85796);
  EXPECT_EQ(record + Fp8V32::kRopeOffset, 85808);
  EXPECT_EQ(Fp8V32::record_offset(65 * 656, 64, 130), 2 * 65 * 656 + 2 * 656);  // a page of B + 1 rows
}

TEST(Format, FlatOffsetsOfTheExamples) {
  EXPECT_EQ(Ocp::record_offset(512, 1, 1000) + 200, 512200);
  EXPECT_EQ(1000 * 8 + 200 / Ocp::kScaleTile, 8003);
  EXPECT_EQ(Bf16<512>::record_offset(1024, 1, 2097152), std::int64_t{1} << 31);  // the first slot beyond 2 GiB
  EXPECT_EQ(Ocp::record_offset(512, 1, 4194304), std::int64_t{1} << 31);
  EXPECT_EQ(PackedBf16::record_offset(256 * 1024, 256, 300), 256 * 1024 + 44 * 1024);
}

TEST(Format, OffsetsAre64Bit) {
  EXPECT_GE(Fp8DsMla::record_offset(37376, 64, 57457 * 64), std::int64_t{1} << 31);
  EXPECT_LT(Fp8DsMla::record_offset(37376, 64, 57456 * 64), std::int64_t{1} << 31);
  EXPECT_EQ(Fp8DsMla::record_offset(1435968, 64, 47232 * 64), 47232 * std::int64_t{1435968});
}

TEST(Format, SizesOfTheSummaryTable) {
  EXPECT_EQ(Fp8DsMla::kTokenBytes, 584);
  EXPECT_EQ(Fp8DsMla::kRecordBytes, 576);
  EXPECT_EQ(Fp8V32::kTokenBytes, 656);
  EXPECT_EQ(Bf16<512>::kTokenBytes, 1024);
  EXPECT_EQ(Bf16<576>::kTokenBytes, 1152);
  EXPECT_EQ(Ocp::kTokenBytes, 512);
  EXPECT_EQ(Fnuz::kBytesRead, 544);
  EXPECT_EQ(Fp8V32::kDim, 576);
}

TEST(Format, NamesAreThoseOfCaseFiles) {
  const char* names[] = {"bf16", "f16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_ds_mla", "packed_bf16", "fp8_v32"};
  ASSERT_EQ(std::size(kFormats), std::size(names));
  for (std::size_t i = 0; i < std::size(names); ++i) {
    EXPECT_EQ(kFormats[i].name, names[i]);
    EXPECT_EQ(find_format(kFormats[i].format), &kFormats[i]);
  }
  EXPECT_EQ(find_format(PASA_KV_NONE), nullptr);
}

TEST(Format, WithFormatGivesTheTypeOfTheTable) {
  for (const FormatInfo& info : kFormats) {
    const int dim = info.dim ? info.dim : 512;
    with_format(info.format, dim, [&]<class F>() {
      EXPECT_EQ(F::kDim, dim) << info.name;
      EXPECT_EQ(F::kScaling == Scaling::kSideFloat, info.side_scales) << info.name;
      EXPECT_EQ(F::kRecordBytes % info.alignment, 0) << info.name;
    });
  }
  for (const pasa_kv_format flat : {PASA_KV_BF16, PASA_KV_F16, PASA_KV_FP8_E4M3FN, PASA_KV_FP8_E4M3FNUZ}) {
    with_format(flat, 576, [&]<class F>() {
      EXPECT_EQ(F::kDim, 576);
      EXPECT_TRUE(F::kTwoPieces);
      EXPECT_EQ(F::kFirstBytes, 8 * F::kPeBytes);
      EXPECT_EQ(F::kFirstBytes + F::kPeBytes, F::kRecordBytes);
    });
  }
  EXPECT_THROW(with_format(PASA_KV_NONE, 512, [&]<class F>() {}), Error);
}

void put16(std::uint8_t* where, std::uint16_t bits) { std::memcpy(where, &bits, 2); }
void put_float(std::uint8_t* where, float value) { std::memcpy(where, &value, 4); }

TEST(Format, Fp8DsMlaReadsCodesScalesAndRope) {
  std::vector<std::uint8_t> page(4 * 584 + 100, 0xff);  // page of 4, padded, everything else NaN
  Source source{.kv = page.data(), .page_stride = 4 * 584 + 100, .slots = 4};
  std::uint8_t* record = page.data() + 3 * 576;
  std::uint8_t* tail = page.data() + 4 * 576 + 3 * 8;
  std::memset(record, 0x40, 448);  // code 2.0
  for (int tile = 0; tile < 7; ++tile) tail[tile] = static_cast<std::uint8_t>(127 + tile - 3);
  for (int j = 0; j < 64; ++j) put16(record + 448 + 2 * j, float_to_bf16(static_cast<float>(j)));
  const Row row = locate<Fp8DsMla>(source, 4, 3);
  for (int d = 0; d < 448; ++d) EXPECT_EQ(Fp8DsMla::element(row, d), std::ldexp(2.0, d / 64 - 3)) << d;
  for (int d = 448; d < 512; ++d) EXPECT_EQ(Fp8DsMla::element(row, d), d - 448) << d;
}

TEST(Format, ScaleByteZeroAnd255) {
  std::vector<std::uint8_t> page(584, 0);
  page[0] = 0x38;
  page[64] = 0x38;
  page[576] = 0;
  page[577] = 255;
  const Row row{page.data(), page.data() + 576};
  EXPECT_EQ(Fp8DsMla::element(row, 0), std::ldexp(1.0, -127));
  EXPECT_TRUE(std::isnan(Fp8DsMla::element(row, 64)));
  EXPECT_TRUE(std::isnan(Fp8DsMla::element(row, 127)));
  EXPECT_FALSE(std::isnan(Fp8DsMla::element(row, 128)));
}

TEST(Format, UniformFp8TakesAnyFiniteScale) {
  std::vector<std::uint8_t> codes(512, 0x38), scales(32);
  const float values[] = {1.0f, 0.0f, -2.5f, 1e-3f, 3.0f, -0.0f, 1e30f, 7.0f};
  for (int g = 0; g < 8; ++g) put_float(scales.data() + 4 * g, values[g]);
  const Row row{codes.data(), scales.data()};
  for (int d = 0; d < 512; ++d) {
    EXPECT_EQ(Ocp::element(row, d), values[d / 64]);
    EXPECT_EQ(Fnuz::element(row, d), 0.5f * values[d / 64]);
  }
}

TEST(Format, UniformFp8SideScalesMayHaveARowStride) {
  std::vector<std::uint8_t> codes(3 * 520, 0xff), scales(3 * 40, 0xff);
  Source source{.kv = codes.data(), .page_stride = 520, .slots = 3, .scales = scales.data(), .scale_stride = 40};
  codes[2 * 520 + 511] = 0x40;
  put_float(scales.data() + 2 * 40 + 28, 3.0f);
  EXPECT_EQ(Ocp::element(locate<Ocp>(source, 1, 2), 511), 6.0f);
}

TEST(Format, Fp8V32ReadsInlineScales) {
  std::vector<std::uint8_t> record(656, 0);
  for (int tile = 0; tile < 4; ++tile) put_float(record.data() + 512 + 4 * tile, 0.1f * static_cast<float>(tile + 1));
  std::memset(record.data(), 0xc0, 512);  // code -2.0
  for (int j = 0; j < 64; ++j) put16(record.data() + 528 + 2 * j, float_to_bf16(static_cast<float>(-j)));
  const Row row{record.data(), nullptr};
  for (int d = 0; d < 512; ++d) EXPECT_EQ(Fp8V32::element(row, d), -2.0f * (0.1f * static_cast<float>(d / 128 + 1)));
  for (int d = 512; d < 576; ++d) EXPECT_EQ(Fp8V32::element(row, d), static_cast<float>(512 - d));
}

TEST(Format, SixteenBitRowsAreRead) {
  std::vector<std::uint8_t> bytes(1152);
  for (int d = 0; d < 576; ++d) put16(bytes.data() + 2 * d, float_to_bf16(static_cast<float>(d)));
  const Row whole{.record = bytes.data(), .pe = bytes.data() + 1024};
  EXPECT_EQ(Bf16<576>::element(whole, 511), bf16_to_float(float_to_bf16(511.0f)));
  EXPECT_EQ(Bf16<576>::element(whole, 570), bf16_to_float(float_to_bf16(570.0f)));
  put16(bytes.data() + 1022, 0x3c00);
  EXPECT_EQ(F16<512>::element({.record = bytes.data()}, 511), 1.0f);
}

TEST(Format, TheLast64Of576MayLieApart) {
  std::vector<std::uint8_t> codes(3 * 520, 0xff), pe(3 * 66, 0xff);
  Source source{.kv = codes.data(), .page_stride = 520, .slots = 3, .pe = pe.data(), .pe_stride = 66};
  std::memset(codes.data() + 2 * 520, 0x40, 512);
  std::memset(pe.data() + 2 * 66, 0x48, 64);
  for (int d = 0; d < 576; ++d) {
    EXPECT_EQ(DenseFp8<Fp8::kE4m3fn>::element(locate<DenseFp8<Fp8::kE4m3fn>>(source, 1, 2), d), d < 512 ? 2.0f : 4.0f);
    EXPECT_EQ(DenseFp8<Fp8::kE4m3fnuz>::element(locate<DenseFp8<Fp8::kE4m3fnuz>>(source, 1, 2), d),
              d < 512 ? 1.0f : 2.0f);
  }
}

}  // namespace
}  // namespace pasa
