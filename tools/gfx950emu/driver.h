// The emulator as a HIP driver: launches run at once, on the host's memory, and are counted.
#pragma once

#include <list>
#include <map>
#include <mutex>

#include "hip/driver.h"
#include "tools/gfx950emu/gfx950emu.h"

namespace gfx950emu {

class EmulatedDriver : public pasa::hip::Driver {
 public:
  EmulatedDriver(std::string architecture, int units) : compute_units(units), architecture_(std::move(architecture)) {}

  std::string unavailable() override { return ""; }
  int device_count() override { return 1; }
  pasa::hip::DeviceInfo device(int) override { return {architecture_ + " emulator", compute_units}; }
  std::string version() override { return ""; }
  pasa::hip::Kernel load(int device, std::span<const std::byte> code, const char* name) override;
  void launch(int device, pasa::hip::Kernel kernel, pasa::hip::Dim3 grid, pasa::hip::Dim3 block,
              std::span<const std::byte> arguments, void* stream) override;
  void* allocate(int device, std::size_t bytes) override;
  void release(void* memory) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill(void* memory, int byte, std::size_t bytes) override;
  void synchronize(int) override {}
  float time(int, void (*)(void*), void*) override { return -1; }

  Options options;    // of the launches to come
  int compute_units;  // of the device: plans depend on them

  // Kernel name -> counts and work-groups since the last call.
  struct Counts {
    Stats stats;
    std::uint64_t groups = 0, launches = 0;
  };
  std::map<std::string, Counts> take_counts();
  // The resources of every kernel loaded so far.
  std::map<std::string, KernelInfo> kernels();

 private:
  struct Loaded {
    Program* program;
    std::string name;
  };
  std::string architecture_;
  std::mutex lock_;
  std::map<const std::byte*, Program> programs_;
  std::list<Loaded> kernels_;
  std::map<std::uint64_t, std::uint64_t> memory_;  // begin -> end
  std::map<std::string, Counts> counts_;
};

}  // namespace gfx950emu

namespace pasa {
hip::Driver& gfx942_emulator();  // both always an EmulatedDriver
hip::Driver& gfx950_emulator();
}  // namespace pasa
