// The Hopper decode kernel's row of the backend table.
#include "core/backend.h"
#include "cuda/device.h"

namespace pasa {

extern const Backend kCudaSm90;
const Backend kCudaSm90 = {
    .name = "cuda:sm90",
    .device = PASA_CUDA,
    .unavailable = [] { return cuda::unavailable(90); },
    .decline = [](const Problem&) -> std::string { return "it serves no format yet"; },
    .plan = nullptr,
    .run = nullptr,
    .reduce = nullptr,
};

}  // namespace pasa
