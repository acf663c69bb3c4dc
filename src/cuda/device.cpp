// Implements device.h over the CUDA runtime, which is linked statically and finds the driver, if any, by itself.
#include "cuda/device.h"

#include <vector>

#include "core/error.h"

namespace pasa::cuda {
namespace {

struct Devices {
  std::vector<Device> list;
  std::string problem;  // why the list is empty
};

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, index) == cudaSuccess ? value : 0;
}

Devices find_devices() {
  Devices devices;
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();  // or the next caller would be told
    devices.problem = cudaGetErrorString(status);
    return devices;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) break;
    devices.list.push_back({.major = properties.major,
                            .minor = properties.minor,
                            .sms = properties.multiProcessorCount,
                            .shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, i),
                            .shared_bytes_per_sm = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, i),
                            .name = properties.name});
  }
  if (devices.list.empty()) devices.problem = "no CUDA device";
  return devices;
}

const Devices& devices() {
  static const Devices found = find_devices();
  return found;
}

std::string version(int capability) { return concat(capability / 10, ".", capability % 10); }

}  // namespace

int device_count() { return static_cast<int>(devices().list.size()); }

const Device& device(int index) { return devices().list.at(static_cast<std::size_t>(index)); }

std::string unavailable(int capability) {
  std::string reason = devices().problem;
  for (int i = 0; i < device_count(); ++i) {
    reason = unavailable_on(i, capability);
    if (reason.empty()) break;
  }
  return reason;
}

std::string unavailable_on(int index, int capability) {
  if (index < 0 || index >= device_count()) {
    return concat("there is no CUDA device ", index, " (", device_count(), " found)");
  }
  const Device& found = device(index);
  if (found.capability() >= capability) return "";
  return concat(found.name, " has compute capability ", version(found.capability()), ", needed is ",
                version(capability));
}

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(PASA_ERROR_INTERNAL, concat(call, ": ", cudaGetErrorString(status)));
}

DeviceScope::DeviceScope(int index) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (index == previous_) {
    previous_ = -1;
  } else {
    check(cudaSetDevice(index), "cudaSetDevice");
  }
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace pasa::cuda
