// A functional emulator of NVIDIA GPUs: it executes the PTX that nvcc makes of our CUDA kernels on the CPU, one instruction
// at a time for the 32 lanes of a warp. Nothing here knows our kernels.
//
// It is a test tool, so it is stricter than the hardware. Each of these ends a launch with an Error that names the kernel,
// the instruction and the source line: an access outside the allocations, the block's or a neighbour's shared memory, a
// misaligned access, a shared-memory race between warps, shared memory that wgmma reads without a proxy fence behind the
// stores, wgmma registers touched before wait_group, a barrier with too many arrivals, a deadlock, an unknown instruction.
// Asynchronous copies and products complete as late as the waits allow, warps run in random order, shared memory and the
// targets of copies on their way hold NaN. What it does not know: time, caches, memory order between blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptxemu {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Global memory that a kernel may touch. Device addresses are host addresses.
struct Range {
  std::uint64_t begin, end;
};

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

struct Options {
  std::uint64_t seed = 1;     // of the order of warps and of when copies land; 0: in order
  bool check_races = true;    // shared memory between warps, and proxies
  bool count_banks = false;   // conflicts of shared memory
  bool trace = false;         // every instruction on stderr
  std::uint32_t threads = 0;  // of the host; 0: all
};

// Dynamic counts of warp instructions.
struct Stats {
  std::uint64_t instructions = 0, thread_instructions = 0;
  std::uint64_t global_bytes = 0;
  std::uint64_t shared_wavefronts = 0;        // with bank conflicts: 32 banks of 4 bytes
  std::uint64_t shared_ideal_wavefronts = 0;  // without
  std::map<std::string, std::uint64_t> by_name;
  Stats& operator+=(const Stats& other);
};

struct Launch {
  Dim3 grid, block, cluster;
  std::uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;  // all blocks at once
};

class Module {
 public:
  // Throws Error.
  explicit Module(std::string ptx);
  static Module from_file(const std::string& path);
  Module(Module&&) noexcept;
  ~Module();

  std::vector<std::string> kernels() const;
  // Sizes in bytes of the kernel's parameters, in order, at their offsets.
  struct Parameter {
    std::uint64_t at, bytes;
  };
  std::vector<Parameter> parameters(const std::string& kernel);
  std::uint64_t static_shared_bytes(const std::string& kernel);
  // Decodes the kernel; throws Error on any instruction that the emulator lacks.
  void check(const std::string& kernel);
  // `arguments`: the parameters' bytes. Throws Error on any finding.
  Stats launch(const std::string& kernel, std::span<const std::byte> arguments, const Launch& how,
               std::span<const Range> memory, const Options& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ptxemu
