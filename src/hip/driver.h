// A HIP device as the backend and the harness need it: a dozen functions. One implementation finds libamdhip64.so at run
// time (driver.cpp), so the library neither links nor needs ROCm; the other executes the same code objects on a CPU
// (tools/gfx950emu/driver.cpp) and is installed by tests and the command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace pasa::hip {

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
};

struct DeviceInfo {
  std::string name;
  int compute_units = 0;
};

using Kernel = void*;

class Driver {
 public:
  virtual ~Driver() = default;

  // Empty if there is a device; else what is missing, in words. The others may only be called if it is empty.
  virtual std::string unavailable() = 0;
  virtual int device_count() = 0;
  virtual DeviceInfo device(int index) = 0;
  virtual std::string version() = 0;  // "HIP 6.4.1"; empty if there is none to tell

  // A kernel of a code object; nullptr if the device does not run such code. Both live for ever.
  virtual Kernel load(int device, std::span<const std::byte> code, const char* name) = 0;
  virtual void launch(int device, Kernel kernel, Dim3 grid, Dim3 block, std::span<const std::byte> arguments,
                      void* stream) = 0;

  // For the harness. Memory is aligned to 256 bytes; nullptr: there is none.
  virtual void* allocate(int device, std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;  // between host and device, either way; waits
  virtual void fill(void* memory, int byte, std::size_t bytes) = 0;
  virtual void synchronize(int device) = 0;
  // Milliseconds of what `body` enqueues on the default stream; negative if the driver cannot tell.
  virtual float time(int device, void (*body)(void*), void* context) = 0;
};

// The one in use.
Driver& driver();
// Replaces it from now on (nullptr: back to HIP's own). Not to be called while kernels run.
void use_driver(Driver* replacement);

}  // namespace pasa::hip
