// The gfx950 kernels on the emulator: the library's planning, arguments and code objects, as on a GPU, against the float64
// reference. What passes here was compiled for real; its resources are read from the code object; its instructions were
// executed with races, missing waits and stray accesses as failures. No time is measured.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "harness/case.h"
#include "harness/cases.h"
#include "harness/compare.h"
#include "harness/data.h"
#include "harness/device_hip.h"
#include "harness/short_cases.h"
#include "hip/order.h"
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

constexpr const char* kFormats[] = {"bf16",         "f16,q=f16",  "packed_bf16", "fp8_e4m3fn",
                                    "fp8_e4m3fnuz", "fp8_ds_mla", "fp8_v32"};

// Each format by each kernel that serves it: 16 and 64 heads of a row at a time.
class EveryFormat : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  std::string format() const { return std::get<0>(GetParam()); }
  std::string decode(const std::string& rest) const {
    return concat("decode:fmt=", format(), ",block_h=", std::get<1>(GetParam()), ",", rest);
  }
};

TEST_P(EveryFormat, Heads) {
  for (int heads : {1, 17, 63, 64, 65, 128}) check(decode(concat("T=1,len=40,splits=1,sink=mixed,H=", heads)));
}
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
  const bool exact = format().ends_with("f16") || format() == "fp8_ds_mla";
  check(decode(exact ? "T=2,H=16,len=400,std=4,q_std=4" : "T=2,H=16,len=400,std=1.5,q_std=1.5"));
}

TEST_P(EveryFormat, Partials) {  // merged on the host by pasa_reduce: the same as the whole
  SCOPED_TRACE(format());
  const CaseSpec spec = parse_text(decode("T=2,H=17,len=150,splits=3,skip_reduce=1,lse=0,invalid=0.2,empty=0.3"));
  Case c = make_case(spec);
  ASSERT_NO_THROW(run_case(c));
  Case whole = make_case(parse_text(decode("T=2,H=17,len=150,invalid=0.2,empty=0.3")));
  pasa_reduce_problem merge{};
  merge.struct_size = sizeof merge;
  merge.acc = c.problem.acc;
  merge.m = c.problem.m;
  merge.l = c.problem.l;
  merge.attn_sink = whole.problem.attn_sink;
  merge.out = whole.problem.out;
  merge.lse = whole.problem.lse;
  ASSERT_EQ(pasa_reduce(&merge, nullptr), PASA_OK) << pasa_last_error();
  const Comparison comparison =
      compare(whole.problem, compute_reference(whole.problem), default_tolerance(whole.problem));
  EXPECT_TRUE(comparison.ok()) << comparison.text();
  for (std::int64_t i = 0; i < element_count(c.problem.l); ++i) {  // the contract of an empty split
    const auto l = static_cast<const float*>(c.problem.l.data)[i], m = static_cast<const float*>(c.problem.m.data)[i];
    EXPECT_EQ(l == 0, std::isinf(m) && m < 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Gfx950, EveryFormat, testing::Combine(testing::ValuesIn(kFormats), testing::Values(16, 64)));

// Pairs of formats, each way round, and pages of any size and alignment.
TEST(Gfx950, MixedFormats) {
  for (const char* formats : {"fp8_ds_mla+packed_bf16", "packed_bf16+fp8_ds_mla", "fp8_e4m3fn+fp8_e4m3fnuz",
                              "bf16+fp8_e4m3fn", "fp8_e4m3fnuz+fp8_ds_mla"}) {
    check(concat("decode:T=2,H=16,len=70+40,invalid=0.1,fmt=", formats));
  }
  check("decode:T=2,H=16,D=576,len=70+40,fmt=fp8_v32+bf16");
  for (const char* format : {"bf16", "f16,q=f16"}) check(concat("decode:T=2,H=16,D=576,len=140,fmt=", format));
}

// Every row once, neighbours on one chiplet, late rows on all.
TEST(Gfx950, OrderOfRows) {
  for (int run : {1, 3, 32}) {
    const hip::Order order{.groups = 0, .run = run, .by_run = gpu::make_divider(static_cast<std::uint32_t>(run))};
    for (int rows : {1, 7, 8, 9, 23, 24, 25, 255, 256, 257, 1000}) {
      std::vector<int> chiplet(static_cast<std::size_t>(rows), -1);
      for (int i = 0; i < rows; ++i) {
        const int row = hip::row_at(i, rows, order);
        ASSERT_TRUE(row >= 0 && row < rows && chiplet[static_cast<std::size_t>(row)] == -1)
            << run << " " << rows << " " << i;
        chiplet[static_cast<std::size_t>(row)] = i % hip::kChiplets;
      }
      const int rounds = rows / (run * hip::kChiplets) + 1;
      int changes = 0;
      for (std::size_t i = 1; i < chiplet.size(); ++i) changes += chiplet[i] != chiplet[i - 1];
      EXPECT_LT(changes, rounds * hip::kChiplets) << run << " " << rows;
    }
  }
}

// More rows than the device runs at once: work-groups take several, each chiplet its own run of rows.
TEST(Gfx950, GroupsTakeSeveralRows) {
  const int units = std::exchange(emulator().compute_units, 8);
  check("prefill:T=8,H=64,len=70,fmt=bf16");
  check("prefill:T=37,H=64,len=100,fmt=bf16,lengths=edges,empty=0.3,invalid=0.1,max_logits=1");
  check("prefill:T=21,H=128,len=70+20,fmt=fp8_ds_mla,sink=mixed,lengths=from0");
  check("decode:T=18,H=65,len=130,splits=2,fmt=fp8_e4m3fn,lengths=from0");
  check("decode:T=17,H=64,len=100,fmt=fp8_v32,lengths=from0,block_h=64");
  check("decode:T=9,H=64,D=576,len=100,fmt=bf16,lengths=edges,block_h=64");
  check("prefill:T=19,H=64,len=70,fmt=fp8_e4m3fnuz,lengths=from0");
  check("prefill:T=19,H=64,len=70,fmt=f16,q=f16,lengths=from0");
  check("decode:T=41,H=16,len=20,fmt=bf16");
  emulator().compute_units = units;
}

// Which kernel serves a shape, and that block_h forces it.
TEST(Gfx950, HeadTiles) {
  const auto kernel = [](const std::string& text) {
    Case c = make_case(parse_text(text));
    emulator().take_counts();
    run_case(c);
    const auto counts = emulator().take_counts();
    return counts.empty() ? "" : counts.begin()->first;
  };
  EXPECT_EQ(kernel("decode:T=1,H=16,len=20,fmt=bf16"), "decode_bf16_512");
  EXPECT_EQ(kernel("decode:T=1,H=16,len=20,fmt=bf16,block_h=64"), "decode64_bf16_512");
  EXPECT_EQ(kernel("prefill:T=9,H=64,len=70,fmt=fp8_ds_mla,block_h=16"), "decode_fp8_ds_mla");
  EXPECT_EQ(kernel("decode:T=2,H=64,len=20+20,fmt=bf16+fp8_e4m3fn,block_h=64"), "decode_any_512");
  const int units = std::exchange(emulator().compute_units, 8);  // few: many heads fill them at once
  EXPECT_EQ(kernel("prefill:T=9,H=128,len=200,fmt=fp8_ds_mla"), "decode64_fp8_ds_mla");
  EXPECT_EQ(kernel("prefill:T=9,H=16,len=200,fmt=fp8_ds_mla"), "decode_fp8_ds_mla");
  emulator().compute_units = units;
}

TEST(Gfx950, PagesAndAlignment) {
  for (int block_h : {16, 64}) {
    const auto with = [&](const char* rest) { check(concat("decode:T=2,H=16,len=90,block_h=", block_h, ",", rest)); };
    with("fmt=fp8_ds_mla,page=1");
    with("fmt=fp8_ds_mla,page=53");  // whole pages alternate between 16 and 8 bytes of alignment
    with("fmt=fp8_ds_mla,page=2,stride=x576");
    with("fmt=fp8_v32,page=64,stride=plus_row");
    with("fmt=bf16,stride=1026");  // rows 2 bytes from any alignment
    with("fmt=bf16,D=576,stride=1154");
    with("fmt=fp8_e4m3fn,stride=515");  // codes at any byte
    with("fmt=packed_bf16,page=3");
  }
}

TEST(Gfx950, ValuesAtTheEdge) {
  check("decode:T=2,H=16,len=90,fmt=fp8_ds_mla,values=exponents");
  check("decode:T=2,H=16,len=90,fmt=fp8_e4m3fn,values=codes");
  check("decode:T=2,H=16,len=90,fmt=fp8_e4m3fnuz,values=codes");
  for (const char* sink : {"none", "minus_inf", "plus_inf", "nan"}) {
    check(concat("decode:T=2,H=16,len=90,fmt=bf16,empty=0.5,sink=", sink));
    check(concat("decode:T=2,H=16,len=90,fmt=bf16,empty=0.5,splits=20,sink=", sink));
  }
  check("decode:T=2,H=16,len=90,fmt=bf16,scale=0");
  check("decode:T=2,H=16,len=90,fmt=bf16,scale=-0.1");
  check("prefill:T=5,H=64,len=70+20,fmt=bf16,invalid=0.1");
  check("decode:T=1,H=128,len=65,fmt=fp8_ds_mla");
}

TEST(Gfx950, SameBitsInAnyOrderOfWaves) {
  const auto run = [](std::uint64_t seed) {
    emulator().options.seed = seed;
    Case c = make_case(parse_text("decode:T=2,H=20,len=200,fmt=fp8_ds_mla,splits=2"));
    run_case(c);
    const auto* bytes = static_cast<const char*>(c.problem.out.data);
    return std::string(bytes, span_bytes(c.problem.out));
  };
  const std::string first = run(0);
  for (std::uint64_t seed : {7u, 8u, 9u}) EXPECT_EQ(run(seed), first) << seed;
  emulator().options.seed = gfx950emu::Options().seed;
}

// Of the harness's quick list an even selection of what is short enough for the emulator (PASA_FULL=1: all of it).
TEST(Gfx950, QuickList) {
  constexpr std::int64_t kTiles = 300;
  const char* full = std::getenv("PASA_FULL");
  int ran = 0, declined = 0;
  for (const TestCase& test : short_cases(full && *full != '0' ? 0 : kTiles)) {
    if (test.spec.skip_reduce) continue;  // EveryFormat.Partials
    SCOPED_TRACE(to_text(test.spec));
    Case c = make_case(test.spec);
    try {
      run_case(c);
    } catch (const Error& error) {
      EXPECT_EQ(error.status, PASA_ERROR_UNSUPPORTED) << error.what();
      ++declined;
      continue;
    }
    ++ran;
    const Comparison comparison = compare(c.problem, compute_reference(c.problem), find_tolerance(test.tolerance));
    EXPECT_TRUE(comparison.ok()) << comparison.text();
  }
  std::printf("%d short cases of the quick list ran, %d were declined\n", ran, declined);
  EXPECT_GT(ran, 0);
}

// Nothing spilled; two waves on each SIMD at 16 heads, one at 64.
TEST(Gfx950, Resources) {
  for (const char* format : kFormats) {
    for (int block_h : {16, 64}) check(concat("decode:T=1,H=1,len=1,splits=2,fmt=", format, ",block_h=", block_h));
  }
  check("decode:T=1,H=1,len=1+1,fmt=bf16+fp8_ds_mla");
  check("decode:T=1,H=1,D=576,len=1+1,fmt=bf16+fp8_v32");
  for (const char* format : {"bf16", "f16,q=f16"}) {
    for (int block_h : {16, 64}) check(concat("decode:T=1,H=1,D=576,len=1,fmt=", format, ",block_h=", block_h));
  }
  for (const auto& [name, info] : emulator().kernels()) {
    SCOPED_TRACE(name);
    const bool many_heads = name.starts_with("decode64");
    EXPECT_EQ(info.vgpr_spills, 0u);
    EXPECT_EQ(info.sgpr_spills, 0u);
    EXPECT_EQ(info.scratch_bytes, 0u);
    EXPECT_LE(info.vgprs, many_heads ? 512u : 256u);
    EXPECT_LE(info.lds_bytes, (many_heads ? 160u : 80u) * 1024);
    EXPECT_GE(info.waves_per_simd(), many_heads ? 1u : 2u);
    std::printf("%-22s %3u VGPRs, %3u SGPRs, LDS %6u, %u waves a SIMD\n", name.c_str(), info.vgprs, info.sgprs,
                info.lds_bytes, info.waves_per_simd());
  }
}

// Wave instructions of one row, all four waves together: a token's are the slope between 512 and 1024 tokens.
struct Budget {
  const char* text;
  int heads;
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
  const Budget budgets[] = {{"bf16", 16, 18, 2100},       {"fp8_e4m3fn", 16, 30, 2100},  {"fp8_e4m3fnuz", 16, 46, 2100},
                            {"fp8_ds_mla", 16, 25, 2100}, {"packed_bf16", 16, 18, 2100}, {"fp8_v32", 16, 32.5, 2100},
                            {"bf16", 64, 31, 5000},       {"fp8_e4m3fn", 64, 43, 5000},  {"fp8_e4m3fnuz", 64, 59, 5000},
                            {"fp8_ds_mla", 64, 37, 5000}, {"packed_bf16", 64, 31, 5000}, {"fp8_v32", 64, 49, 5000}};
  std::printf("%-14s %5s %6s %6s %6s %6s %6s %6s %6s %6s %6s %6s %7s %7s\n", "a token", "heads", "all", "MFMA",
              "vector", "transc", "LDS", "memory", "scalar", "waits", "fixed", "tail", "LDS clk", "ideal");
  for (const auto& [format, heads, per_token, fixed_limit] : budgets) {
    SCOPED_TRACE(concat(format, ", heads ", heads));
    const auto at = [&](int len) {
      return count(
          concat("decode:T=1,splits=1,invalid=0.1,H=", heads, ",block_h=", heads, ",fmt=", format, ",len=", len),
          "decode");
    };
    const gfx950emu::Stats low = at(512), high = at(1024);
    const auto slope = [](std::uint64_t a, std::uint64_t b) { return static_cast<double>(b - a) / 512; };
    const auto of = [&](gfx950emu::Class c) { return slope(low[c], high[c]); };
    const double all = slope(low.instructions(), high.instructions());
    const double fixed = static_cast<double>(low.instructions()) - 512 * all;
    // One token beyond the last full tile, compared with what it would cost inside one.
    const double tail = static_cast<double>(at(1025).instructions() - high.instructions()) - all;
    using enum gfx950emu::Class;
    const double clocks = slope(low.lds_clocks, high.lds_clocks),
                 ideal = slope(low.lds_ideal_clocks, high.lds_ideal_clocks);
    std::printf("%-14s %5d %6.1f %6.1f %6.1f %6.1f %6.1f %6.1f %6.1f %6.1f %6.0f %6.0f %7.1f %7.1f\n", format, heads,
                all, of(kMfma), of(kVector) + of(kAgprMove), of(kTranscendental), of(kLds), of(kMemory), of(kScalar),
                of(kWait) + of(kNop) + of(kBarrier), fixed, tail, clocks, ideal);
    EXPECT_LE(all, per_token);
    EXPECT_LE(fixed, fixed_limit);
    EXPECT_LE(tail, heads == 16 ? 1600 : 2500);
    EXPECT_LE(clocks, 1.05 * ideal);
    const double dims = std::string(format) == "fp8_v32" ? 576 + 512 : 2 * 512;
    EXPECT_EQ(slope(low.mfma_passes, high.mfma_passes), dims * heads / 2048);
  }
  const gfx950emu::Stats reduce = count("decode:T=1,H=16,splits=4,fmt=bf16,len=256", "reduce");
  std::printf("reduce, 4 splits of 16 heads: %llu\n", static_cast<unsigned long long>(reduce.instructions()));
  EXPECT_LE(reduce.instructions(), 2500u);
}

}  // namespace
}  // namespace pasa
