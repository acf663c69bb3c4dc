// The portable kernel (hip:general) on the emulators of gfx942 and gfx950, and the resources of all three of its builds.
#include <tuple>

#include "harness/short_cases.h"
#include "hip/code_objects.h"
#include "tests/hip/emulated.h"
#include "tools/gfx950emu/gfx950emu.h"

namespace pasa::test {
namespace {

constexpr const char* kKernel = "hip:general";

class Portable : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  static std::string device() { return std::get<0>(GetParam()); }
  static void check(const std::string& rest) {
    check_emulated(concat("decode:", std::get<1>(GetParam()), ",", rest), device(), kKernel);
  }
};

TEST_P(Portable, LengthsAroundTiles) { check("T=9,H=3,len=66,lengths=edges,max_logits=1"); }
TEST_P(Portable, InvalidEntries) { check("T=2,H=17,len=70,invalid=0.3,bad=any,all_invalid=0.4,empty=0.3"); }
TEST_P(Portable, TwoSources) { check("T=2,H=16,len=40+33,invalid=0.1"); }
TEST_P(Portable, Splits) { check("T=2,H=20,len=150,splits=5,sink=mixed,max_logits=1"); }
TEST_P(Portable, Nan) { check("T=2,H=16,len=50,nan=0.02"); }
TEST_P(Portable, NanToZero) { check("T=2,H=16,len=50,nan=0.1,nan_to_zero=1"); }
TEST_P(Portable, Strided) { check("T=3,H=5,len=33,lists=rect_lengths,lengths=from0,strided=1"); }
TEST_P(Portable, Partials) { check("T=2,H=17,len=70,splits=3,skip_reduce=1,empty=0.3"); }
TEST_P(Portable, SharpScores) { check("T=1,H=16,len=200,std=1.5,q_std=1.5"); }

INSTANTIATE_TEST_SUITE_P(Hip, Portable,
                         testing::Combine(testing::Values("gfx950-emu", "gfx942-emu"),
                                          testing::Values("fmt=bf16", "fmt=packed_bf16", "fmt=bf16,D=576",
                                                          "fmt=f16,q=f16", "fmt=f16,D=576,q=f16", "fmt=fp8_e4m3fn",
                                                          "fmt=fp8_e4m3fnuz", "fmt=fp8_ds_mla", "fmt=fp8_v32",
                                                          "fmt=fp8_e4m3fnuz,q=f16", "fmt=fp8_ds_mla,q=f16",
                                                          "fmt=fp8_v32,q=f16")));

class PortableOn : public testing::TestWithParam<const char*> {
 protected:
  static void check(const std::string& text) { check_emulated(text, GetParam(), kKernel); }
};

TEST_P(PortableOn, MixedFormats) {
  for (const char* formats : {"fp8_ds_mla+packed_bf16", "fp8_e4m3fn+fp8_e4m3fnuz", "fp8_e4m3fnuz+fp8_ds_mla",
                              "bf16+fp8_e4m3fn", "f16+fp8_ds_mla,q=f16", "fp8_e4m3fn+f16,q=f16"}) {
    check(concat("decode:T=2,H=16,len=40+35,invalid=0.1,fmt=", formats));
  }
  check("decode:T=2,H=16,D=576,len=40+35,fmt=fp8_v32+bf16");
}

TEST_P(PortableOn, PagesAndAlignment) {
  check("decode:T=2,H=16,len=50,fmt=fp8_ds_mla,page=1");
  check("decode:T=2,H=16,len=50,fmt=fp8_ds_mla,page=53");
  check("decode:T=2,H=16,len=50,fmt=fp8_v32,page=64,stride=plus_row");
  check("decode:T=2,H=16,len=50,fmt=bf16,stride=1026");
  check("decode:T=2,H=16,len=50,fmt=fp8_e4m3fn,stride=515");
}

TEST_P(PortableOn, ValuesAtTheEdge) {
  for (const char* format : {"fp8_ds_mla,values=exponents", "fp8_e4m3fn,values=codes", "fp8_e4m3fnuz,values=codes"}) {
    check(concat("decode:T=2,H=16,len=60,fmt=", format));
  }
  for (const char* sink : {"none", "minus_inf", "plus_inf", "nan"}) {
    check(concat("decode:T=2,H=16,len=40,fmt=bf16,empty=0.5,sink=", sink));
  }
  check("decode:T=2,H=16,len=40,fmt=bf16,scale=0");
  check("decode:T=1,H=128,len=33,fmt=fp8_ds_mla");
  check("prefill:T=3,H=64,len=40+20,fmt=bf16,invalid=0.1");
}

TEST_P(PortableOn, DenseMla) {  // one scale for the pool, keys in two pieces, lists shared by several queries
  check("decode:T=2,H=16,D=576,fmt=fp8_e4m3fn,len=40,kv_scale=0.3");
  check("decode:T=2,H=16,D=576,fmt=fp8_e4m3fnuz,len=70,kv_scale=-3,splits=2");
  check("decode:T=2,H=16,D=576,fmt=bf16,len=40,pe=apart,kv_scale=2");
  check("decode:T=4,H=16,D=576,fmt=fp8_e4m3fn,len=40,pe=behind,queries=2");
}

TEST_P(PortableOn, QuickList) {
  constexpr std::int64_t kTiles = 100;
  int ran = 0;
  for (const TestCase& test : short_cases(kTiles)) {
    SCOPED_TRACE(to_text(test.spec));
    Case c = make_case(test.spec);
    ASSERT_NO_THROW(run_emulated(c, GetParam(), kKernel));
    if (c.problem.acc.rank) reduce_partials(c);
    const Comparison comparison = compare(c.problem, compute_reference(c.problem), find_tolerance(test.tolerance));
    EXPECT_TRUE(comparison.ok()) << comparison.text();
    ++ran;
  }
  EXPECT_GT(ran, 3);
}

TEST_P(PortableOn, SameBitsInAnyOrderOfWaves) {
  const auto run = [](std::uint64_t seed) {
    emulator(GetParam()).options.seed = seed;
    Case c = make_case(parse_text("decode:T=2,H=20,len=100,fmt=fp8_ds_mla,splits=2"));
    run_emulated(c, GetParam(), kKernel);
    return std::string(static_cast<const char*>(c.problem.out.data), span_bytes(c.problem.out));
  };
  const std::string first = run(0);
  for (std::uint64_t seed : {7u, 8u}) EXPECT_EQ(run(seed), first) << seed;
  emulator(GetParam()).options.seed = gfx950emu::Options().seed;
}

INSTANTIATE_TEST_SUITE_P(Hip, PortableOn, testing::Values("gfx950-emu", "gfx942-emu"));

// The library chooses it where there is nothing better.
TEST(PortableChoice, Gfx942AndWhatGfx950Declines) {
  const auto chosen = [](const char* text, const char* device) {
    Case c = make_case(parse_text(text));
    return run_emulated(c, device, nullptr);
  };
  EXPECT_EQ(chosen("decode:T=1,H=16,len=8,fmt=bf16", "gfx950-emu"), "hip:gfx950");
  EXPECT_EQ(chosen("decode:T=1,H=16,len=8,fmt=bf16", "gfx942-emu"), kKernel);
  EXPECT_EQ(chosen("decode:T=1,H=16,len=8,fmt=fp8_ds_mla,q=f16", "gfx950-emu"), kKernel);
}

TEST(PortableResources, NoSpillsNoScratch) {
  int kernels = 0;
  for (const hip::CodeObject& code : hip::code_objects()) {
    if (code.file == "decode") continue;
    const gfx950emu::Program program(code.bytes);
    for (const std::string& kernel : program.kernels()) {
      SCOPED_TRACE(concat(kernel, " for ", code.architecture));
      const gfx950emu::KernelInfo info = program.info(kernel);
      EXPECT_EQ(info.vgpr_spills + info.sgpr_spills + info.scratch_bytes, 0u);
      EXPECT_LE(info.vgprs, 256u);
      EXPECT_LE(info.lds_bytes, 64u * 1024);
      std::printf("%-20s %-8s %3u VGPRs, LDS %5u\n", kernel.c_str(), std::string(code.architecture).c_str(), info.vgprs,
                  info.lds_bytes);
      ++kernels;
    }
  }
  EXPECT_EQ(kernels, 3 * 4);
}

}  // namespace
}  // namespace pasa::test
