// Merging two results: the parts of exp and log1p, and out and lse against float64.
#include "ops/merge.h"

#include <gtest/gtest.h>

#include "tests/ops/model.h"

namespace pasa::test {
namespace {

TEST(MergeParts, ExpAndLog1p) {
  for (int i = 0; i <= 200000; ++i) {
    const double x = -i * 0.0035;
    EXPECT_NEAR(ops::exp_of(x), std::exp(x), 8e-16 * std::exp(x) + 1e-304) << x;
    const double w = i / 200000.0;
    EXPECT_NEAR(ops::log1p_of(w), std::log1p(w), 8e-16 * w + 1e-300) << w;
  }
  EXPECT_EQ(ops::exp_of(0), 1);
  EXPECT_EQ(ops::exp_of(-INFINITY), 0);
  EXPECT_TRUE(std::isnan(ops::exp_of(NAN)));
}

constexpr float kInf = INFINITY;

struct Case {
  float lse_a, lse_b, sink;
};

// One head per case, one token; out_a and out_b random, NaN where the row has no keys.
void expect_merged(const std::vector<Case>& cases, bool with_sink, pasa_dtype dtype) {
  const auto heads = static_cast<std::int64_t>(cases.size());
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> a, b, lse_a, lse_b, sink, out(cases.size() * 512, -7), lse(cases.size(), -7);
  std::vector<std::uint16_t> a16, b16, out16(out.size(), 0xfefe);
  for (const Case& c : cases) {
    lse_a.push_back(c.lse_a);
    lse_b.push_back(c.lse_b);
    sink.push_back(c.sink);
    for (int d = 0; d < 512; ++d) {
      a16.push_back(std::isinf(c.lse_a) ? 0x7fc0 : bf16_word(normal(random)));
      b16.push_back(std::isinf(c.lse_b) ? 0x7fc0 : bf16_word(normal(random)));
      a.push_back(bf16_value(a16.back()));
      b.push_back(bf16_value(b16.back()));
    }
  }
  auto args = make<pasa_merge_args>();
  const bool words = dtype == PASA_BF16;
  args.out_a = words ? view(a16, {1, heads, 512}) : view(a, {1, heads, 512});
  args.out_b = words ? view(b16, {1, heads, 512}) : view(b, {1, heads, 512});
  args.out = words ? view(out16, {1, heads, 512}) : view(out, {1, heads, 512});
  args.lse_a = view(lse_a, {1, heads});
  args.lse_b = view(lse_b, {1, heads});
  args.lse = view(lse, {1, heads});
  if (with_sink) args.attn_sink = view(sink);
  ASSERT_EQ(pasa_merge(&args, nullptr), PASA_OK) << pasa_last_error();
  for (std::size_t h = 0; h < cases.size(); ++h) {
    const Case& c = cases[h];
    const bool use_a = !std::isinf(c.lse_a), use_b = !std::isinf(c.lse_b);
    const double top =
        std::max({use_a ? c.lse_a : -1e30, use_b ? c.lse_b : -1e30, with_sink && !std::isinf(c.sink) ? c.sink : -1e30});
    const double keys = std::max(use_a ? c.lse_a : -1e30, use_b ? c.lse_b : -1e30);
    const double wa = use_a ? std::exp(c.lse_a - top) : 0, wb = use_b ? std::exp(c.lse_b - top) : 0;
    double sum = wa + wb;
    if (use_a || use_b) {
      const double sum_a = use_a ? std::exp(c.lse_a - keys) : 0, sum_b = use_b ? std::exp(c.lse_b - keys) : 0;
      EXPECT_NEAR(lse[h], keys + std::log(sum_a + sum_b), 1e-6 * (1 + std::fabs(keys))) << h;
    } else {
      EXPECT_EQ(lse[h], -kInf) << h;
    }
    if (with_sink && c.sink != -kInf) sum += c.sink == kInf ? kInf : std::exp(c.sink - top);
    for (std::size_t d = h * 512; d < h * 512 + 512; ++d) {
      const double expected = use_a || use_b ? ((use_a ? wa * a[d] : 0) + (use_b ? wb * b[d] : 0)) / sum : 0;
      const double got = words ? bf16_value(out16[d]) : out[d];
      ASSERT_NEAR(got, expected,
                  words ? 0.004 * std::fabs(expected) + 1e-6
                        : 4e-7 * ((use_a ? std::fabs(a[d]) : 0) + (use_b ? std::fabs(b[d]) : 0) + 1))
          << h;
    }
  }
}

TEST(Merge, AgainstFloat64) {
  std::vector<Case> cases = {{-kInf, -kInf, 0}, {kInf, kInf, 1}, {-kInf, 2, 1},  {3, kInf, -kInf},
                             {1, 2, kInf},      {0, 0, 0},       {700, -700, 3}, {-2, -2, 90}};
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0, 5);
  for (int i = 0; i < 300; ++i) cases.push_back({normal(random), normal(random), normal(random)});
  for (const bool sink : {false, true}) {
    for (const pasa_dtype dtype : {PASA_BF16, PASA_F32}) expect_merged(cases, sink, dtype);
  }
}

// Strided views, results in place.
TEST(Merge, InPlaceAndStrided) {
  const std::int64_t tokens = 5, heads = 3;
  std::vector<float> a(5 * 3 * 520, 1.0f), b(5 * 3 * 512, 3.0f), lse_a(5 * 4, 0.0f), lse_b(15, 0.0f);
  auto args = make<pasa_merge_args>();
  args.out_a = view(a, {tokens, heads, 512});
  args.out_a.stride[0] = 3 * 520;
  args.out_a.stride[1] = 520;
  args.out = args.out_a;
  args.out_b = view(b, {tokens, heads, 512});
  args.lse_a = view(lse_a, {tokens, heads});
  args.lse_a.stride[0] = 4;
  args.lse = args.lse_a;
  args.lse_b = view(lse_b, {tokens, heads});
  ASSERT_EQ(pasa_merge(&args, nullptr), PASA_OK) << pasa_last_error();
  for (int row = 0; row < 15; ++row) {
    EXPECT_FLOAT_EQ(a[static_cast<std::size_t>(row * 520 + 100)], 2.0f);
    EXPECT_EQ(a[static_cast<std::size_t>(row * 520 + 512)], 1.0f);  // between the rows
    EXPECT_FLOAT_EQ(lse_a[static_cast<std::size_t>(row / 3 * 4 + row % 3)], 0.6931472f);
  }
  EXPECT_EQ(lse_a[3], 0.0f);
}

}  // namespace
}  // namespace pasa::test
