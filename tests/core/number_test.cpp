// Every code of every number format against a formula written a second time, from the tables of docs/formats.md, in double
// arithmetic; every rounding by exhaustive search over all codes. Nothing here calls the functions it checks for help.
#include "core/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace pasa {
namespace {

constexpr Fp8 kFlavours[] = {Fp8::kE4m3fn, Fp8::kE4m3fnuz};
const double kNone = std::numeric_limits<double>::quiet_NaN();

// (-1)^s 2^(E-bias) (1 + m/8), or (-1)^s 2^(1-bias) m/8 for E = 0; NaN where the flavour has one.
double e4m3(Fp8 flavour, int code) {
  const bool ocp = flavour == Fp8::kE4m3fn;
  if (ocp ? (code == 0x7f || code == 0xff) : code == 0x80) return kNone;
  const int exponent = code / 8 % 16, mantissa = code % 8, bias = ocp ? 7 : 8;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, 1 - bias) : std::ldexp(1 + mantissa / 8.0, exponent - bias);
  return code >= 128 ? -magnitude : magnitude;
}

// A 16-bit float with `mantissa_bits`, from its definition.
double small_float(int bits, int mantissa_bits, int bias) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1), top = (1 << (15 - mantissa_bits)) - 1;
  const int exponent = (bits >> mantissa_bits) & top;
  double magnitude;
  if (exponent == top) {
    magnitude = mantissa ? kNone : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    magnitude = std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

TEST(Fp8, All512CodesDecode) {
  for (const Fp8 flavour : kFlavours) {
    for (int code = 0; code < 256; ++code) {
      const float value = fp8_to_float(flavour, static_cast<std::uint8_t>(code));
      EXPECT_TRUE(same(value, e4m3(flavour, code))) << code << " decodes to " << value;
    }
  }
  static_assert(fp8_to_float(Fp8::kE4m3fn, 0x38) == 1.0f && fp8_to_float(Fp8::kE4m3fnuz, 0x38) == 0.5f);
  static_assert(fp8_to_float(Fp8::kE4m3fn, 0x7e) == 448.0f && fp8_to_float(Fp8::kE4m3fnuz, 0x7f) == 240.0f);
}

TEST(Fp8, AnOcpByteIsTwiceItsFnuzReading) {
  int compared = 0;
  for (int code = 0; code < 256; ++code) {
    const float ocp = fp8_to_float(Fp8::kE4m3fn, static_cast<std::uint8_t>(code));
    const float fnuz = fp8_to_float(Fp8::kE4m3fnuz, static_cast<std::uint8_t>(code));
    if (code == 0x80 || std::isnan(ocp) || std::isnan(fnuz)) continue;
    EXPECT_EQ(ocp, 2 * fnuz) << code;
    ++compared;
  }
  EXPECT_EQ(compared, 253);
}

TEST(Fp8, EveryValueIsExactInBothSixteenBitFormats) {
  for (const Fp8 flavour : kFlavours) {
    for (int code = 0; code < 256; ++code) {
      const float value = fp8_to_float(flavour, static_cast<std::uint8_t>(code));
      if (std::isnan(value)) continue;
      EXPECT_EQ(bf16_to_float(float_to_bf16(value)), value);
      EXPECT_EQ(f16_to_float(float_to_f16(value)), value);
    }
  }
}

// The nearest code by search over all; of two equally near ones the even code.
int nearest_e4m3(Fp8 flavour, double x) {
  const double limit = flavour == Fp8::kE4m3fn ? 448 : 240;
  x = std::fmin(std::fmax(x, -limit), limit);
  int best = -1;
  double best_distance = 0;
  for (int code = x < 0 || (x == 0 && std::signbit(x)) ? 128 : 0, end = code + 128; code < end; ++code) {
    const double value = flavour == Fp8::kE4m3fnuz && code == 0x80 ? 0 : e4m3(flavour, code);
    if (std::isnan(value)) continue;
    const double distance = std::fabs(value - x);
    if (best < 0 || distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return flavour == Fp8::kE4m3fnuz && best == 0x80 ? 0 : best;
}

TEST(Fp8, EveryBf16EncodesToTheNearestCode) {
  for (const Fp8 flavour : kFlavours) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const float x = std::bit_cast<float>(bits << 16);
      const int code = float_to_fp8(flavour, x);
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(e4m3(flavour, code)));
      } else {
        ASSERT_EQ(code, nearest_e4m3(flavour, x)) << x;
      }
    }
  }
}

TEST(Fp8, TiesGoToTheEvenCodeAndOneUlpDecides) {
  for (const Fp8 flavour : kFlavours) {
    const int top = flavour == Fp8::kE4m3fn ? 0x7e : 0x7f;
    for (int code = 0; code < top; ++code) {
      const auto middle = static_cast<float>((e4m3(flavour, code) + e4m3(flavour, code + 1)) / 2);
      const int even = code % 2 == 0 ? code : code + 1;
      EXPECT_EQ(float_to_fp8(flavour, middle), even);
      EXPECT_EQ(float_to_fp8(flavour, std::nextafter(middle, 0.0f)), code);
      EXPECT_EQ(float_to_fp8(flavour, std::nextafter(middle, 1e9f)), code + 1);
    }
  }
}

TEST(Fp8, SaturatesAndHasNoNegativeZeroInFnuz) {
  for (const float huge : {449.0f, 1e9f, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(float_to_fp8(Fp8::kE4m3fn, huge), 0x7e);
    EXPECT_EQ(float_to_fp8(Fp8::kE4m3fn, -huge), 0xfe);
    EXPECT_EQ(float_to_fp8(Fp8::kE4m3fnuz, huge), 0x7f);
    EXPECT_EQ(float_to_fp8(Fp8::kE4m3fnuz, -huge), 0xff);
  }
  for (const float tiny : {-0.0f, -1e-30f, -std::numeric_limits<float>::denorm_min(), -0x1p-11f}) {
    EXPECT_EQ(float_to_fp8(Fp8::kE4m3fnuz, tiny), 0x00);
    EXPECT_EQ(float_to_fp8(Fp8::kE4m3fn, tiny), 0x80);
  }
}

TEST(Bf16, All65536CodesDecodeAndRoundTrip) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_TRUE(same(value, small_float(bits, 7, 127))) << bits;
    const std::uint16_t back = float_to_bf16(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16_to_float(back))) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST(F16, All65536CodesDecodeAndRoundTrip) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_TRUE(same(value, small_float(bits, 10, 15))) << bits;
    const std::uint16_t back = float_to_f16(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(f16_to_float(back))) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

// Between every two neighbours of a 16-bit format: the midpoint goes to the even one, one float ulp beside it decides.
template <typename Encode>
void expect_rounds_to_even(Encode encode, int mantissa_bits, int bias, int largest_finite) {
  for (int bits = 0; bits < largest_finite; ++bits) {
    const double low = small_float(bits, mantissa_bits, bias), high = small_float(bits + 1, mantissa_bits, bias);
    const auto middle = static_cast<float>((low + high) / 2);
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(encode(middle), even);
    ASSERT_EQ(encode(-middle), even | 0x8000);
    ASSERT_EQ(encode(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(encode(std::nextafter(middle, std::numeric_limits<float>::infinity())), bits + 1);
  }
}

TEST(Bf16, RoundsToNearestEven) {
  expect_rounds_to_even(float_to_bf16, 7, 127, 0x7f7f);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
}

TEST(F16, RoundsToNearestEvenAndOverflowsToInfinity) {
  expect_rounds_to_even(float_to_f16, 10, 15, 0x7bff);
  EXPECT_EQ(float_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Floats, NanOfEveryPayloadStaysNan) {
  for (std::uint32_t payload = 1; payload < 0x800000; payload = payload * 2 + 1) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(nan))));
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(nan))));
      EXPECT_EQ(float_to_fp8(Fp8::kE4m3fn, nan) & 0x7f, 0x7f);
      EXPECT_EQ(float_to_fp8(Fp8::kE4m3fnuz, nan), 0x80);
    }
  }
}

TEST(Ue8m0, All256CodesDecode) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(ue8m0_to_float(static_cast<std::uint8_t>(byte)), std::ldexp(1.0, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_float(255)));
  EXPECT_GT(ue8m0_to_float(0), 0.0f);  // a float subnormal, not flushed
}

}  // namespace
}  // namespace pasa
