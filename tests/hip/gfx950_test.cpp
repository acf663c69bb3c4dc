// The gfx950 kernels on the emulator: the library's planning, arguments and code objects, as on a GPU, against the float64
// reference. What passes here was compiled for real; its resources are read from the code object; its instructions were
// executed with races, missing waits and stray accesses as failures. No time is measured.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/error.h"
#include "harness/case.h"
#include "harness/cases.h"
#include "harness/compare.h"
#include "harness/data.h"
#include "harness/device_hip.h"
#include "tools/gfx950emu/driver.h"

namespace pasa {
namespace {

gfx950emu::EmulatedDriver& emulator() { return static_cast<gfx950emu::EmulatedDriver&>(gfx950_emulator()); }

// Runs a case on the emulator; its outputs are fetched.
void run_case(Case& c) {
  const std::unique_ptr<Device> device = open_device("gfx950-emu");
  c.problem.kernel = "hip:gfx950";
  prepare_partials(c, *device);
  Placed placed(c, *device);
  Runner runner(placed.problem(), *device);
  placed.poison_outputs();
  runner.run();
  placed.fetch_outputs();
}

void check(const std::string& text) {
  SCOPED_TRACE(text);
  Case c = make_case(parse_text(text));
  ASSERT_NO_THROW(run_case(c));
  const Comparison comparison = compare(c.problem, compute_reference(c.problem), default_tolerance(c.problem));
  EXPECT_TRUE(comparison.ok()) << comparison.text();
  EXPECT_TRUE(gaps_untouched(c));
}

constexpr const char* kFormats[] = {"bf16", "packed_bf16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_ds_mla", "fp8_v32"};

class EveryFormat : public testing::TestWithParam<const char*> {
 protected:
  std::string decode(const std::string& rest) const { return std::string("decode:fmt=") + GetParam() + "," + rest; }
};

TEST_P(EveryFormat, OneTile) { check(decode("T=1,H=16,len=64,splits=1")); }
TEST_P(EveryFormat, LengthsAroundTiles) { check(decode("T=13,H=3,len=130,lengths=edges,max_logits=1")); }
TEST_P(EveryFormat, InvalidEntries) { check(decode("T=3,H=17,len=150,invalid=0.3,bad=any,all_invalid=0.4,empty=0.3")); }
TEST_P(EveryFormat, TwoSources) { check(decode("T=2,H=16,len=70+129,invalid=0.1")); }
TEST_P(EveryFormat, Splits) { check(decode("T=2,H=20,len=300,splits=5,sink=mixed,max_logits=1")); }
TEST_P(EveryFormat, Nan) { check(decode("T=3,H=16,len=100,nan=0.02")); }
TEST_P(EveryFormat, NanToZero) { check(decode("T=3,H=16,len=100,nan=0.1,nan_to_zero=1")); }
TEST_P(EveryFormat, Strided) { check(decode("T=3,H=5,len=65,lists=rect_lengths,lengths=from0,strided=1")); }
// Scores that rise by more than a tile's slack; where keys are rounded to bf16, only as sharp as that rounding allows.
TEST_P(EveryFormat, SharpScores) {
  const std::string format = GetParam();
  const bool exact = format.ends_with("bf16") || format == "fp8_ds_mla";
  check(decode(exact ? "T=2,H=16,len=400,std=4,q_std=4" : "T=2,H=16,len=400,std=1.5,q_std=1.5"));
}

INSTANTIATE_TEST_SUITE_P(Gfx950, EveryFormat, testing::ValuesIn(kFormats));

TEST(Gfx950, Resources) {  // two waves on each SIMD, nothing spilled
  check("decode:T=1,H=1,fmt=bf16,len=1,splits=2");
  for (const auto& [name, info] : emulator().kernels()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(info.vgpr_spills, 0u);
    EXPECT_EQ(info.sgpr_spills, 0u);
    EXPECT_EQ(info.scratch_bytes, 0u);
    EXPECT_LE(info.vgprs, 256u);
    EXPECT_LE(info.lds_bytes, 80u * 1024);
    EXPECT_GE(info.waves_per_simd(), 2u);
    std::printf("%-22s %3u VGPRs, %3u SGPRs, LDS %5u, %u waves a SIMD\n", name.c_str(), info.vgprs, info.sgprs,
                info.lds_bytes, info.waves_per_simd());
  }
}

// Wave instructions of one row of 16 heads, all four waves together: a token's are the slope between 512 and 1024 tokens.
struct Budget {
  const char* text;
  double per_token, fixed;
};

gfx950emu::Stats count(const std::string& text, const char* kernel) {
  Case c = make_case(parse_text(text));
  emulator().take_counts();
  run_case(c);
  for (const auto& [name, counts] : emulator().take_counts()) {
    if (name.starts_with(kernel)) return counts.stats;
  }
  ADD_FAILURE() << "no kernel " << kernel << " ran for " << text;
  return {};
}

TEST(Gfx950, InstructionBudget) {
  const Budget budgets[] = {{"bf16", 24, 3000},       {"fp8_e4m3fn", 30, 3000},  {"fp8_e4m3fnuz", 52, 3000},
                            {"fp8_ds_mla", 32, 3000}, {"packed_bf16", 26, 3000}, {"fp8_v32", 32, 3000}};
  std::printf("%-14s %6s %6s %6s %6s %6s %6s %6s %6s %6s %7s\n", "a token", "all", "MFMA", "vector", "transc", "LDS",
              "memory", "scalar", "waits", "fixed", "LDS clk");
  for (const Budget& budget : budgets) {
    SCOPED_TRACE(budget.text);
    const auto at = [&](int len) {
      return count(concat("decode:T=1,H=16,splits=1,invalid=0.1,fmt=", budget.text, ",len=", len), "decode");
    };
    const gfx950emu::Stats low = at(512), high = at(1024);
    const auto slope = [](std::uint64_t a, std::uint64_t b) { return static_cast<double>(b - a) / 512; };
    const auto of = [&](gfx950emu::Class c) { return slope(low[c], high[c]); };
    const double all = slope(low.instructions(), high.instructions());
    const double fixed = static_cast<double>(low.instructions()) - 512 * all;
    using enum gfx950emu::Class;
    std::printf("%-14s %6.1f %6.1f %6.1f %6.1f %6.1f %6.1f %6.1f %6.1f %6.0f %7.1f\n", budget.text, all, of(kMfma),
                of(kVector) + of(kAgprMove), of(kTranscendental), of(kLds), of(kMemory), of(kScalar),
                of(kWait) + of(kNop) + of(kBarrier), fixed, slope(low.lds_clocks, high.lds_clocks));
    EXPECT_LE(all, budget.per_token);
    EXPECT_LE(fixed, budget.fixed);
    EXPECT_EQ(slope(low.mfma_passes, high.mfma_passes), std::string(budget.text) == "fp8_v32" ? 8.5 : 8);
  }
  const gfx950emu::Stats reduce = count("decode:T=1,H=16,splits=4,fmt=bf16,len=256", "reduce");
  std::printf("reduce, 4 splits of 16 heads: %llu\n", static_cast<unsigned long long>(reduce.instructions()));
  EXPECT_LE(reduce.instructions(), 5400u);
}

}  // namespace
}  // namespace pasa
