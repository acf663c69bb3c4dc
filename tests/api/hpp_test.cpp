// pasa.hpp over the shared library, as a user has it: no internal header, no internal symbol.
#include <gtest/gtest.h>

#include <pasa/pasa.hpp>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kTokens = 2, kHeads = 3, kSlots = 8;

struct Data {
  std::vector<std::uint16_t> q = std::vector<std::uint16_t>(kTokens * kHeads * 512, 0x3c00);
  std::vector<std::uint16_t> kv = std::vector<std::uint16_t>(kSlots * 512, 0x3f80);
  std::vector<std::int32_t> slots = {0, 7, -1, 3, 100, 2};
  std::vector<std::uint16_t> out = std::vector<std::uint16_t>(kTokens * kHeads * 512, 0xffff);
  pasa::Problem problem;
  Data() {
    problem.q = pasa::tensor(q.data(), PASA_BF16, {kTokens, kHeads, 512});
    problem.main.format = PASA_KV_BF16;
    problem.main.kv = pasa::tensor(kv.data(), PASA_BF16, {kSlots, 512});
    problem.main.indices = pasa::tensor(slots.data(), PASA_I32, {kTokens, 3});
    problem.out = pasa::tensor(out.data(), PASA_BF16, {kTokens, kHeads, 512});
  }
};

TEST(Hpp, AttendSolvesAProblem) {
  Data data;
  pasa::attend(data.problem);
  for (const std::uint16_t word : data.out) ASSERT_EQ(word, 0x3f80);  // all keys are 1
}

// Both tokens of a sequence by one list, the RoPE part before the latent one in rows of 576.
TEST(Hpp, AttendSolvesDenseMla) {
  Data data;
  std::vector<std::uint16_t> q(kTokens * kHeads * 576, 0x3c00), kv(kSlots * 576, 0x3f80);
  std::vector<float> lse(kTokens * kHeads);
  data.problem.q = pasa::tensor(q.data(), PASA_BF16, {kTokens, kHeads, 576});
  data.problem.main.kv = pasa::tensor(kv.data() + 64, PASA_BF16, {kSlots, 512}, {576, 1});
  data.problem.main.kv_pe = pasa::tensor(kv.data(), PASA_BF16, {kSlots, 64}, {576, 1});
  data.problem.main.indices = pasa::tensor(data.slots.data(), PASA_I32, {1, 2});
  data.problem.queries_per_list = kTokens;
  data.problem.kv_scale = 0.5;
  data.problem.lse = pasa::tensor(lse.data(), PASA_F32, {kTokens, kHeads});
  pasa::attend(data.problem);
  for (const std::uint16_t word : data.out) ASSERT_EQ(word, 0x3f00);   // all keys are 1/2
  EXPECT_NEAR(lse[kTokens * kHeads - 1] - lse[0], 0.6931472f, 1e-6f);  // the first token sees one key, the last two
}

TEST(Hpp, APlanIsMadeOnceAndRunOften) {
  Data data;
  data.problem.kv_splits = 2;
  pasa::Plan plan(data.problem);
  const pasa::HostWorkspace workspace(plan.workspace_bytes());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace.span().data()) % 256, 0u);
  pasa::Plan moved = std::move(plan);
  for (int layer = 0; layer < 3; ++layer) moved.run(data.problem, workspace.span());
  for (const std::uint16_t word : data.out) ASSERT_EQ(word, 0x3f80);
  EXPECT_FALSE(moved.kernel().empty());
  EXPECT_FALSE(moved.summary().empty());
  EXPECT_FALSE(moved.is_partial());
}

TEST(Hpp, ErrorsCarryStatusAndText) {
  Data data;
  data.problem.kv_splits = -3;
  try {
    pasa::attend(data.problem);
    FAIL() << "no exception";
  } catch (const pasa::Error& error) {
    EXPECT_EQ(error.status(), PASA_ERROR_RANGE);
    EXPECT_TRUE(std::string(error.what()).starts_with("range: kv_splits")) << error.what();
  }
  for (const std::uint16_t word : data.out) ASSERT_EQ(word, 0xffff);
}

TEST(Hpp, ValidateCountsAndThrows) {
  Data data;
  EXPECT_EQ(pasa::validate(data.problem), 2);
  const std::vector<std::int32_t> indptr = {0, 5, 3};
  data.problem.main.indices = pasa::tensor(data.slots.data(), PASA_I32, {6});
  data.problem.main.indptr = pasa::tensor(indptr.data(), PASA_I32, {3});
  EXPECT_THROW(pasa::validate(data.problem), pasa::Error);
}

TEST(Hpp, TensorRefusesNonsense) {
  EXPECT_THROW(pasa::tensor(nullptr, PASA_BF16, {}), std::invalid_argument);
  EXPECT_THROW(pasa::tensor(nullptr, PASA_BF16, {1, 2}, {1}), std::invalid_argument);
  const pasa_tensor strided = pasa::tensor(nullptr, PASA_BF16, {4, 512}, {1024, 1});
  EXPECT_EQ(strided.stride[0], 1024);
  EXPECT_EQ(pasa::tensor(nullptr, PASA_BF16, {4, 3, 512}).stride[0], 3 * 512);
}

TEST(Hpp, KernelsAreListed) {
  const Data data;
  const std::vector<pasa_kernel_info> kernels = pasa::kernels(&data.problem);
  ASSERT_FALSE(kernels.empty());
  EXPECT_STREQ(kernels.back().name, "reference");
  EXPECT_EQ(kernels.back().accepts, 1);
}

TEST(Hpp, ReduceMergesTwoSplits) {
  // The worked example of docs/math.md, cut into {0, 1} and {2}.
  std::vector<float> acc(2 * 512), m = {1.4426950f, -0.3606738f}, l = {1.6065307f, 1.0f}, sink = {0.3f}, out(512, 9.0f),
                                   lse(1);
  acc[0] = 2.6065307f;
  acc[512] = 4.0f;
  pasa_reduce_problem problem{};
  problem.acc = pasa::tensor(acc.data(), PASA_F32, {1, 2, 1, 512});
  problem.m = pasa::tensor(m.data(), PASA_F32, {1, 2, 1});
  problem.l = pasa::tensor(l.data(), PASA_F32, {1, 2, 1});
  problem.attn_sink = pasa::tensor(sink.data(), PASA_F32, {1});
  problem.out = pasa::tensor(out.data(), PASA_F32, {1, 1, 512});
  problem.lse = pasa::tensor(lse.data(), PASA_F32, {1, 1});
  pasa::reduce(problem);
  EXPECT_NEAR(out[0], 1.5703537f, 1e-6f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_NEAR(lse[0], 1.6381816f, 1e-6f);
}

}  // namespace
