// Stands in for device_cuda.cpp where the build has no CUDA compiler.
#include "core/error.h"
#include "harness/device.h"

namespace pasa {

int cuda_device_count() { return 0; }

std::unique_ptr<Device> open_cuda(int) {
  throw Error(PASA_ERROR_DEVICE,
              "cuda is not in this build of pasa, expected cpu (rebuild with nvcc in PATH for cuda)");
}

}  // namespace pasa
