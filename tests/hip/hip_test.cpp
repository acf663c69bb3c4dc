// What the HIP backend does beside attention, on the emulator: which kernel it gives a problem to, merging given partials,
// and what it says to a device that it has no code for.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/format.h"
#include "hip/code_objects.h"
#include "tests/hip/emulated.h"

namespace pasa::test {
namespace {

constexpr const char* kDevice = "gfx950-emu";

std::string bytes_of(const pasa_tensor& tensor) { return {static_cast<const char*>(tensor.data), span_bytes(tensor)}; }

// Tensors of the emulator that hold what host tensors hold.
class OnDevice {
 public:
  explicit OnDevice(Device& device) : device_(device) {}
  void move(pasa_tensor& tensor) {
    if (!tensor.rank) return;
    memory_.push_back(device_.allocate(span_bytes(tensor)));
    device_.upload(memory_.back().get(), tensor.data, span_bytes(tensor));
    tensor.data = memory_.back().get();
    tensor.device = device_.type();
    tensor.device_index = device_.index();
  }

 private:
  Device& device_;
  std::vector<std::shared_ptr<void>> memory_;
};

// Partials of a case, merged into `out` and `lse` of `whole`, on the host or on the emulator.
void merge(const Case& partials, Case& whole, pasa_tensor out, Device* device) {
  pasa_reduce_problem problem{};
  problem.struct_size = sizeof problem;
  problem.acc = partials.problem.acc;
  problem.m = partials.problem.m;
  problem.l = partials.problem.l;
  problem.attn_sink = whole.problem.attn_sink;
  problem.out = out;
  problem.lse = whole.problem.lse;
  if (!device) {
    ASSERT_EQ(pasa_reduce(&problem, nullptr), PASA_OK) << pasa_last_error();
    return;
  }
  OnDevice placed(*device);
  for (pasa_tensor* t : {&problem.acc, &problem.m, &problem.l, &problem.attn_sink, &problem.out, &problem.lse}) {
    placed.move(*t);
  }
  ASSERT_EQ(pasa_reduce(&problem, nullptr), PASA_OK) << pasa_last_error();
  device->download(out.data, problem.out.data, span_bytes(out));
  device->download(whole.problem.lse.data, problem.lse.data, span_bytes(whole.problem.lse));
}

TEST(HipReduce, EqualsTheMergeOfARun) {
  const std::unique_ptr<Device> device = open_device(kDevice);
  for (const char* rest :
       {"splits=2", "splits=3,sink=mixed", "splits=17,invalid=0.2,empty=0.3", "splits=40,strided=1"}) {
    SCOPED_TRACE(rest);
    const std::string text = concat("decode:T=3,H=19,len=170,fmt=fp8_ds_mla,", rest);
    Case whole = make_case(parse_text(text)), merged = make_case(parse_text(text));
    Case partials = make_case(parse_text(text + ",skip_reduce=1,lse=0"));
    run_emulated(whole, kDevice, nullptr);
    run_emulated(partials, kDevice, nullptr);
    poison_outputs(merged);
    merge(partials, merged, merged.problem.out, device.get());
    EXPECT_EQ(bytes_of(merged.problem.out), bytes_of(whole.problem.out));
    EXPECT_EQ(bytes_of(merged.problem.lse), bytes_of(whole.problem.lse));
  }
}

TEST(HipReduce, EveryOutputType) {
  const std::unique_ptr<Device> device = open_device(kDevice);
  const std::string text = "decode:T=2,H=17,len=100,fmt=bf16,splits=5,empty=0.3";
  Case partials = make_case(parse_text(text + ",skip_reduce=1,lse=0"));
  run_emulated(partials, kDevice, nullptr);
  for (const pasa_dtype dtype : {PASA_F32, PASA_F16, PASA_BF16}) {
    SCOPED_TRACE(static_cast<int>(dtype));
    Case whole = make_case(parse_text(text));
    pasa_tensor want = whole.allocate(dtype, {2, 17, kValueDim}), got = whole.allocate(dtype, {2, 17, kValueDim});
    merge(partials, whole, want, nullptr);
    merge(partials, whole, got, device.get());
    for (std::int64_t i = 0; i < element_count(want); ++i) {
      const auto at = [&](const pasa_tensor& t) {
        if (dtype == PASA_F32) return static_cast<const float*>(t.data)[i];
        const std::uint16_t word = static_cast<const std::uint16_t*>(t.data)[i];
        return dtype == PASA_F16 ? f16_to_float(word) : bf16_to_float(word);
      };
      const float one_ulp = dtype == PASA_F32 ? 1e-5f : dtype == PASA_F16 ? 0x1p-10f : 0x1p-7f;
      ASSERT_NEAR(at(got), at(want), one_ulp * std::abs(at(want)) + 1e-6f) << i;
    }
  }
}

// A GPU of another architecture, or with a driver too old for the code: it loads none of it.
class OtherGpu final : public hip::Driver {
 public:
  std::string unavailable() override { return ""; }
  int device_count() override { return 1; }
  hip::DeviceInfo device(int) override { return {"AMD Instinct MI210", 104}; }
  std::string version() override { return "HIP 5.7.1"; }
  hip::Kernel load(int, std::span<const std::byte>, const char*) override { return nullptr; }
  void launch(int, hip::Kernel, hip::Dim3, hip::Dim3, std::span<const std::byte>, void*) override { FAIL(); }
  void* allocate(int, std::size_t) override { return nullptr; }
  void release(void*) override {}
  void copy(void*, const void*, std::size_t) override {}
  void fill(void*, int, std::size_t) override {}
  void synchronize(int) override {}
  float time(int, void (*)(void*), void*) override { return -1; }
};

TEST(HipDevice, AnotherGpuIsToldWhatWasFound) {
  static OtherGpu gpu;
  hip::use_driver(&gpu);
  int kernels = 0;
  for (std::int32_t i = 0; i < pasa_kernel_count(); ++i) {
    pasa_kernel_info info{sizeof info};
    ASSERT_EQ(pasa_get_kernel_info(i, nullptr, &info), PASA_OK);
    if (std::string_view(info.device) != "hip") continue;
    EXPECT_FALSE(info.available);
    EXPECT_NE(std::string(info.reason).find("AMD Instinct MI210 with HIP 5.7.1 does not load code for gfx950"),
              std::string::npos)
        << info.name << ": " << info.reason;
    ++kernels;
  }
  EXPECT_EQ(kernels, 2);
  EXPECT_EQ(open_device("hip")->description(), "AMD Instinct MI210, 104 compute units, HIP 5.7.1");
  hip::use_driver(nullptr);
}

TEST(HipDevice, CodeForAnotherArchitectureIsNotLoaded) {
  open_device("gfx942-emu");
  for (const hip::CodeObject& code : hip::code_objects()) {
    if (code.file != "reduce") continue;
    EXPECT_EQ(hip::driver().load(0, code.bytes, "reduce") != nullptr, code.architecture == "gfx942");
  }
}

// What the library's kernels are made of, the emulator has. Of it, what is more than plain arithmetic has a unit test: matrix
// instructions, conversions, exchange between lanes, memory.
TEST(HipCode, InstructionsAreKnownAndTested) {
  constexpr std::string_view kFamilies[] = {"v_mfma",    "v_cvt", "v_perm", "v_exp",  "v_log", "v_rcp",
                                            "v_fma_mix", "v_pk_", "ds_",    "global", "buffer"};
  const auto tested = gfx950emu::Program::from_file(PASA_INSTRUCTIONS).mnemonics();
  for (const hip::CodeObject& code : hip::code_objects()) {
    if (code.architecture == "gfx1250") continue;  // not executed
    SCOPED_TRACE(concat(code.file, " for ", code.architecture));
    gfx950emu::Program program(code.bytes);
    EXPECT_EQ(program.missing(), (std::map<std::string, int>{}));
    for (const auto& [name, count] : program.mnemonics()) {
      const std::string_view text = name;
      const bool special = std::ranges::any_of(kFamilies, [&](std::string_view f) { return text.starts_with(f); });
      EXPECT_TRUE(!special || tested.contains(name)) << name;
    }
  }
}

TEST(HipReduce, NoPartials) {  // T = 0
  const std::unique_ptr<Device> device = open_device(kDevice);
  Case empty = make_case(parse_text("decode:T=0,H=4,len=10,fmt=bf16,splits=2"));
  pasa_reduce_problem problem{};
  problem.struct_size = sizeof problem;
  problem.acc = empty.allocate(PASA_F32, {0, 2, 4, kValueDim});
  problem.m = problem.l = empty.allocate(PASA_F32, {0, 2, 4});
  problem.out = empty.allocate(PASA_F32, {0, 4, kValueDim});
  for (pasa_tensor* t : {&problem.acc, &problem.m, &problem.l, &problem.out}) t->device = PASA_HIP;
  EXPECT_EQ(pasa_reduce(&problem, nullptr), PASA_OK) << pasa_last_error();
}

}  // namespace
}  // namespace pasa::test
