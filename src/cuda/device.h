// The CUDA devices of this machine as the backends see them. Asking is always safe: without a driver or a card every
// question has an answer in words and nothing is printed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace pasa::cuda {

struct Device {
  int major = 0, minor = 0;  // compute capability
  int sms = 0;
  int shared_bytes_per_block = 0, shared_bytes_per_sm = 0;
  std::string name;
  int capability() const { return 10 * major + minor; }
};

// Devices that can be used; 0 without a driver. Looked up once.
int device_count();
const Device& device(int index);  // index in [0, device_count())

// Empty if some device has at least this compute capability (90 = 9.0); else why not.
std::string unavailable(int capability);
// The same question about one device.
std::string unavailable_on(int index, int capability);

// Throws Error{PASA_ERROR_INTERNAL} that names the call unless it succeeded.
void check(cudaError_t status, const char* call);

// Makes a device current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace pasa::cuda
