#include "tools/gfx950emu/driver.h"

#include "harness/counts.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gfx950emu {

pasa::hip::Kernel EmulatedDriver::load(int, std::span<const std::byte> code, const char* name) {
  const std::lock_guard guard(lock_);
  if (Program::architecture_of(code) != architecture_) return nullptr;
  auto found = programs_.find(code.data());
  if (found == programs_.end()) found = programs_.emplace(code.data(), Program(code)).first;
  const std::vector<std::string> names = found->second.kernels();
  if (std::find(names.begin(), names.end(), name) == names.end()) return nullptr;
  kernels_.push_back({&found->second, name});
  return &kernels_.back();
}

void EmulatedDriver::launch(int, pasa::hip::Kernel kernel, pasa::hip::Dim3 grid, pasa::hip::Dim3 block,
                            std::span<const std::byte> arguments, void*) {
  const auto& loaded = *static_cast<Loaded*>(kernel);
  std::vector<Range> ranges;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [begin, end] : memory_) ranges.push_back({begin, end});
  }
  const Stats stats = loaded.program->launch(loaded.name, arguments, {grid.x, grid.y, grid.z},
                                             {block.x, block.y, block.z}, ranges, options);
  const std::lock_guard guard(lock_);
  Counts& counts = counts_[loaded.name];
  counts.stats += stats;
  counts.groups += std::uint64_t{grid.x} * grid.y * grid.z;
  ++counts.launches;
}

void* EmulatedDriver::allocate(int, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!memory) return nullptr;
  const auto begin = reinterpret_cast<std::uint64_t>(memory);
  const std::lock_guard guard(lock_);
  memory_[begin] = begin + bytes;
  return memory;
}

void EmulatedDriver::release(void* memory) {
  {
    const std::lock_guard guard(lock_);
    memory_.erase(reinterpret_cast<std::uint64_t>(memory));
  }
  std::free(memory);
}

void EmulatedDriver::copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void EmulatedDriver::fill(void* memory, int byte, std::size_t bytes) { std::memset(memory, byte, bytes); }

std::map<std::string, EmulatedDriver::Counts> EmulatedDriver::take_counts() {
  const std::lock_guard guard(lock_);
  return std::exchange(counts_, {});
}

std::map<std::string, KernelInfo> EmulatedDriver::kernels() {
  const std::lock_guard guard(lock_);
  std::map<std::string, KernelInfo> all;
  for (auto& [code, program] : programs_) {
    for (const std::string& name : program.kernels()) all[name] = program.info(name);
  }
  return all;
}

}  // namespace gfx950emu

namespace pasa {

// With as many compute units as an MI300X and an MI355X have.
hip::Driver& gfx942_emulator() {
  static gfx950emu::EmulatedDriver driver("gfx942", 304);
  return driver;
}
hip::Driver& gfx950_emulator() {
  static gfx950emu::EmulatedDriver driver("gfx950", 256);
  return driver;
}

std::map<std::string, Counts> take_emulated_counts(hip::Driver& emulator) {
  using C = gfx950emu::Class;
  std::map<std::string, Counts> all;
  for (const auto& [kernel, counted] : static_cast<gfx950emu::EmulatedDriver&>(emulator).take_counts()) {
    const gfx950emu::Stats& s = counted.stats;
    const std::pair<Counts::Kind, std::uint64_t> counts[] = {
        {Counts::kMatrix, s[C::kMfma]},
        {Counts::kVector, s[C::kVector] + s[C::kAgprMove]},
        {Counts::kTranscendental, s[C::kTranscendental]},
        {Counts::kLds, s[C::kLds]},
        {Counts::kMemory, s[C::kMemory]},
        {Counts::kScalar, s[C::kScalar]},
        {Counts::kWaits, s[C::kWait] + s[C::kNop] + s[C::kBarrier]},
        {Counts::kMatrixPasses, s.mfma_passes},
        {Counts::kMemoryBytes, s.memory_bytes},
        {Counts::kLdsBytes, s.lds_bytes},
        {Counts::kLdsClocks, s.lds_clocks}};
    for (const auto& [kind, n] : counts) all[kernel].of[kind] = static_cast<double>(n);
  }
  return all;
}

}  // namespace pasa
