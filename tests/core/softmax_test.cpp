// The softmax pieces on the worked example of docs/math.md (scores 0.5, 1.0, -0.25; values 1, 2, 4; sink 0.3), whole and cut
// into two splits, and on the rows whose answer is a rule rather than a number: empty, sink +-inf or NaN.
#include "core/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>

namespace pasa {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

struct Split {
  float m = -kInfinity, l = 0, acc = 0;
};

// One split by definition: m = max s2, l = sum 2^(s2 - m), acc = sum 2^(s2 - m) v.
Split split_of(std::initializer_list<std::pair<float, float>> score_value) {
  Split split;
  for (const auto& [score, value] : score_value) split.m = std::fmax(split.m, score * kLog2E);
  for (const auto& [score, value] : score_value) {
    const float weight = std::exp2(score * kLog2E - split.m);
    split.l += weight;
    split.acc += weight * value;
  }
  return split;
}

Split merge(const Split& a, const Split& b) {
  const float top = std::fmax(a.m, b.m);
  const float wa = merge_weight(a.m, top), wb = merge_weight(b.m, top);
  return {top, wa * a.l + wb * b.l, wa * a.acc + wb * b.acc};
}

TEST(Softmax, WorkedExampleWithoutSink) {
  const Split all = split_of({{0.5f, 1}, {1.0f, 2}, {-0.25f, 4}});
  const Finish row = finish(all.m, all.l, -kInfinity);
  EXPECT_NEAR(all.acc * row.scale, 1.9822924f, 1e-6f);
  EXPECT_NEAR(row.lse, 1.6381816f, 1e-6f);
}

TEST(Softmax, WorkedExampleWithSinkLeavesLseAlone) {
  const Split all = split_of({{0.5f, 1}, {1.0f, 2}, {-0.25f, 4}});
  const Finish row = finish(all.m, all.l, 0.3f);
  EXPECT_NEAR(all.acc * row.scale, 1.5703537f, 1e-6f);
  EXPECT_NEAR(row.lse, 1.6381816f, 1e-6f);
}

TEST(Softmax, WorkedExampleInTwoSplits) {
  const Split a = split_of({{0.5f, 1}, {1.0f, 2}}), b = split_of({{-0.25f, 4}});
  EXPECT_NEAR(a.m, 1.4426950f, 1e-6f);
  EXPECT_NEAR(a.l, 1.6065307f, 1e-6f);
  EXPECT_NEAR(a.acc, 2.6065307f, 1e-6f);
  EXPECT_NEAR(b.m, -0.3606738f, 1e-6f);
  EXPECT_NEAR(merge_weight(b.m, a.m), 0.2865048f, 1e-6f);
  const Split whole = merge(a, b);
  const Finish row = finish(whole.m, whole.l, 0.3f);
  EXPECT_NEAR(whole.acc * row.scale, 1.5703537f, 1e-6f);
}

TEST(Softmax, EmptySplitsWeighNothing) {
  EXPECT_EQ(merge_weight(-kInfinity, 3.0f), 0.0f);
  EXPECT_EQ(merge_weight(-kInfinity, -kInfinity), 0.0f);
  EXPECT_EQ(merge_weight(3.0f, 3.0f), 1.0f);
}

TEST(Softmax, EmptyRowIsZeroWhateverTheSink) {
  for (const float sink : {-kInfinity, 0.0f, 5.0f, kInfinity, kNan}) {
    const Finish row = finish(-kInfinity, 0.0f, sink);
    EXPECT_EQ(row.scale, 0.0f) << sink;
    EXPECT_EQ(row.lse, -kInfinity) << sink;
  }
}

TEST(Softmax, SinkPlusInfinityGivesZeroAndKeepsLse) {
  const Finish row = finish(2.0f, 3.0f, kInfinity);
  EXPECT_EQ(row.scale, 0.0f);
  EXPECT_NEAR(row.lse, 0.6931472f * (2.0f + std::log2(3.0f)), 1e-6f);
}

TEST(Softmax, SinkMinusInfinityIsNoSink) { EXPECT_FLOAT_EQ(finish(2.0f, 4.0f, -kInfinity).scale, 0.25f); }

TEST(Softmax, SinkNanMakesTheRowNan) {
  EXPECT_TRUE(std::isnan(finish(2.0f, 4.0f, kNan).scale));
  EXPECT_FALSE(std::isnan(finish(2.0f, 4.0f, kNan).lse));
}

TEST(Softmax, NanScoreMakesTheRowNan) { EXPECT_TRUE(std::isnan(finish(2.0f, kNan, 0.0f).scale)); }

TEST(Softmax, SinkEqualToLseHalvesTheRow) {
  const float without = finish(2.0f, 4.0f, -kInfinity).scale;
  const float lse = finish(2.0f, 4.0f, -kInfinity).lse;
  EXPECT_FLOAT_EQ(finish(2.0f, 4.0f, lse).scale, without / 2);
}

// A sink far above or below the scores must neither overflow nor lose the row.
TEST(Softmax, FarSinksStayFinite) {
  EXPECT_EQ(finish(-1000.0f, 1.0f, 1000.0f).scale, 0.0f);
  EXPECT_FLOAT_EQ(finish(1000.0f, 2.0f, -1000.0f).scale, 0.5f);
}

}  // namespace
}  // namespace pasa
