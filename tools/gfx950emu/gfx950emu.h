// A functional emulator of gfx942 and gfx950 code objects: it loads the very ELF file that an AMD GPU would and executes
// it on the CPU, one instruction at a time for the 64 lanes of a wave. The file says for which of the two it is (of gfx1250
// code, too, it tells the resources, but does not execute it). LLVM decodes; nothing here knows our kernels.
//
// It is a test tool, so it is stricter than the hardware. Each of these ends a launch with an Error that names the
// instruction: a register used while its load is in flight (a missing s_waitcnt), an LDS race between waves, an access
// outside LDS or outside the declared buffers, an MFMA result used too early (a missing s_nop), an unknown instruction.
// Memory operations complete as late as s_waitcnt allows, waves run in random order, uninitialised state holds NaN.
// What it does not know: time, caches, memory ordering between work-groups.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gfx950emu {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory that a kernel may touch. Device addresses are host addresses.
struct Range {
  std::uint64_t begin, end;
};

enum class Class : std::uint8_t {
  kMfma,
  kVector,  // vector ALU without the next two
  kAgprMove,
  kTranscendental,
  kLds,
  kMemory,  // global, buffer and scratch accesses
  kScalar,  // scalar ALU, branches, scalar loads
  kWait,
  kNop,
  kBarrier
};
constexpr int kClasses = 10;
std::string_view class_name(Class c);

// Dynamic counts of wave instructions.
struct Stats {
  std::array<std::uint64_t, kClasses> count{};
  std::uint64_t mfma_passes = 0;        // of 4 clocks
  std::uint64_t memory_bytes = 0;       // vector memory, direct-to-LDS loads included
  std::uint64_t lds_bytes = 0;          // LDS instructions; what direct loads write is not in it
  std::uint64_t lds_clocks = 0;         // with bank conflicts: 64 banks of 4 bytes, 128 bytes a clock, see lds_cost()
  std::uint64_t lds_ideal_clocks = 0;   // without
  std::uint64_t same_value_writes = 0;  // dwords that two waves stored alike in one barrier interval (allowed)
  std::map<std::string, std::uint64_t> by_name;

  std::uint64_t operator[](Class c) const { return count[static_cast<std::size_t>(c)]; }
  std::uint64_t instructions() const;
  // Clocks of one CU's four SIMDs if its pipes overlapped perfectly and waves were spread evenly: the largest of matrix,
  // vector (transcendental at a quarter rate) and LDS clocks. A cost model, not a time.
  std::uint64_t bound_clocks() const;
  Stats& operator+=(const Stats& other);
};

// Vector registers (v and a), LDS bytes and so on, as the code object states them.
struct KernelInfo {
  std::uint32_t vgprs = 0, agprs = 0, sgprs = 0;  // vgprs: of the unified file, agprs included
  std::uint32_t vgpr_spills = 0, sgpr_spills = 0;
  std::uint32_t lds_bytes = 0, scratch_bytes = 0, kernarg_bytes = 0, max_threads = 0;
  std::uint32_t cu_lds_bytes = 0;  // of the architecture
  // Waves that fit on one SIMD by registers (512 a lane, in eights) and LDS.
  std::uint32_t waves_per_simd() const;
};

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
};

struct Options {
  bool late_memory = true;    // complete memory operations only when a wait demands it
  bool check_races = true;    // LDS, between the waves of a group
  bool check_bounds = true;   // global memory against the given ranges
  bool check_hazards = true;  // MFMA results
  bool preload = true;     // arguments preloaded into SGPRs as current firmware does; else the fallback prologue runs
  bool trace = false;      // every instruction on stderr
  std::uint64_t seed = 1;  // of the order of waves; 0: in order, each up to its next barrier
  std::uint32_t resident = 2;  // work-groups that run interleaved
  std::uint32_t threads = 0;   // host threads; 0: all
  std::uint32_t dynamic_lds = 0;
};

class Program {
 public:
  explicit Program(std::span<const std::byte> elf);  // throws Error
  static Program from_file(const std::string& path);
  Program(Program&&) noexcept;
  ~Program();

  // "gfx942", "gfx950" or "gfx1250"; empty if it is none of them.
  static std::string_view architecture_of(std::span<const std::byte> elf);
  std::vector<std::string> kernels() const;
  KernelInfo info(const std::string& kernel) const;
  // `arguments`: the bytes of the explicit arguments. Throws Error on any finding.
  Stats launch(const std::string& kernel, std::span<const std::byte> arguments, Dim3 grid, Dim3 block,
               std::span<const Range> buffers, const Options& options = {});
  // Mnemonics of all kernels, with how often they stand in the code; and those that the emulator lacks.
  std::map<std::string, int> mnemonics();
  std::map<std::string, int> missing();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gfx950emu
