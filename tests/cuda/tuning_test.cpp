// A tuning table and the general CUDA kernel: the plan takes the entry's head tile and splits, and the results stay what
// they are. A program of its own, because a process reads its table once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "cuda/device.h"
#include "harness/cases.h"
#include "harness/compare.h"
#include "harness/data.h"
#include "harness/device.h"

namespace pasa {
namespace {

constexpr const char* kShape = "decode:T=2,H=20,fmt=fp8_ds_mla,len=40+56,lists=rect";

std::string entry(int length, int block_h, int splits) {
  return concat(R"({"kernel": "cuda:general", "keys": "fp8", "heads": 32, "tokens": 2, "length": )", length,
                R"(, "block_h": )", block_h, R"(, "splits": )", splits, "}");
}

class CudaTuning : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!cuda::unavailable(80).empty()) return;
    const std::filesystem::path path = testing::TempDir() + "pasa_cuda_tuning_test.json";
    std::ofstream(path) << R"({"pasa": ")" << pasa_version() << R"(", "machines": {")" << cuda::device(0).name
                        << R"(": [)" << entry(96, 64, 3) << ", " << entry(200, 16, 7) << "]}}";
    setenv("PASA_TUNE_TABLE", path.c_str(), 1);
  }
  void SetUp() override {
    if (const std::string reason = cuda::unavailable(80); !reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
    device_ = open_device("cuda");
  }

  struct Ran {
    std::string summary;
    int splits = 0;
    Case c;
    Comparison against_reference;
  };
  Ran run(const std::string& text) {
    Ran ran{.c = make_case(find_problem(text))};
    ran.c.problem.kernel = "cuda:general";
    const Reference want = compute_reference(ran.c.problem, 1, {});
    Placed placed(ran.c, *device_);
    placed.poison_outputs();
    Runner runner(placed.problem(), *device_);
    runner.run();
    device_->synchronize();
    placed.fetch_outputs();
    ran.summary = runner.summary();
    ran.splits = runner.splits();
    ran.against_reference = compare(ran.c.problem, want, default_tolerance(ran.c.problem));
    return ran;
  }

  std::unique_ptr<Device> device_;
};

TEST_F(CudaTuning, APlanTakesTheEntry) {
  const Ran tuned = run(kShape);
  EXPECT_EQ(tuned.splits, 3);
  EXPECT_TRUE(tuned.summary.starts_with("cuda:general: 64 heads x 32 keys, splits 3, ")) << tuned.summary;
  EXPECT_NE(tuned.summary.find("; tuned: "), std::string::npos) << tuned.summary;
  EXPECT_TRUE(tuned.against_reference.ok());
}

TEST_F(CudaTuning, AsIfItsCallerHadAskedForIt) {
  const Ran tuned = run(kShape), asked = run(concat(kShape, ",splits=3,block_h=64"));
  EXPECT_NE(asked.summary.find("asked for"), std::string::npos) << asked.summary;
  EXPECT_EQ(std::memcmp(tuned.c.problem.out.data, asked.c.problem.out.data, std::size_t{2} * 20 * 512 * 2), 0);
  EXPECT_EQ(std::memcmp(tuned.c.problem.lse.data, asked.c.problem.lse.data, std::size_t{2} * 20 * 4), 0);
}

TEST_F(CudaTuning, OtherShapesAreThePlanners) {
  for (const char* text :
       {"decode:T=3,H=20,fmt=fp8_ds_mla,len=96,lists=rect", "decode:T=2,H=20,fmt=bf16,len=96,lists=rect"}) {
    const Ran planned = run(text);
    EXPECT_NE(planned.summary.find("; not tuned: "), std::string::npos) << planned.summary;
    EXPECT_TRUE(planned.against_reference.ok());
  }
}

// Choices of the model that timed launches confirm (docs/results/tune_general.json), on a GPU with as many multiprocessors.
TEST_F(CudaTuning, ThePlannersOwnChoices) {
  if (cuda::device(0).sms != 132) GTEST_SKIP() << "timed on 132 multiprocessors";
  struct Want {
    const char *text, *tiles;
  };
  for (const Want& want : {
           Want{"decode:T=64,H=64,fmt=bf16,len=128+64", "16 heads x 32 keys, splits 1,"},         // 25 us; 64 x 2: 37
           Want{"decode:T=16,H=128,fmt=fp8_ds_mla,len=128+64", "16 heads x 32 keys, splits 1,"},  // 21 us; 64 x 4: 29
           Want{"decode:T=16,H=64,fmt=bf16,len=128+1024", "64 heads x 32 keys, splits 8,"},       // 37 us; 16 x 4: 41
           Want{"decode:T=256,H=128,fmt=fp8_ds_mla,len=128+1024", "64 heads x 32 keys, splits 1,"},
           Want{"decode:T=1,H=16,fmt=fp8_ds_mla,len=128+1024", "16 heads x 32 keys, splits 32,"},
           Want{"decode:T=0,H=16,fmt=bf16,len=128", "16 heads x 32 keys, splits 1,"},
       }) {
    Case c = make_case(find_problem(concat(want.text, ",lists=rect,slots=4096,poison=none")));
    for (const auto& [name, tensor] : input_tensors(c.problem)) tensor->data = nullptr, tensor->device = PASA_CUDA;
    for (const auto& [name, tensor] : output_tensors(c.problem)) *tensor = {};
    c.problem.kernel = "cuda:general";
    pasa_plan* plan = nullptr;
    ASSERT_EQ(pasa_plan_create(&c.problem, &plan), PASA_OK) << pasa_last_error();
    EXPECT_NE(std::string(pasa_plan_summary(plan)).find(want.tiles), std::string::npos)
        << want.text << ": " << pasa_plan_summary(plan);
    pasa_plan_destroy(plan);
  }
}

// Many short splits of shorter lists than were timed: parts without keys among them.
TEST_F(CudaTuning, ShorterListsThanTimed) {
  const Ran tuned = run("decode:T=2,H=32,fmt=fp8_ds_mla,len=160,lists=rect_lengths,lengths=from0");
  EXPECT_EQ(tuned.splits, 7);
  EXPECT_TRUE(tuned.summary.starts_with("cuda:general: 16 heads")) << tuned.summary;
  EXPECT_TRUE(tuned.against_reference.ok());
}

}  // namespace
}  // namespace pasa
