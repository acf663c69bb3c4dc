// HIP devices as the rows of the backend table see them: which of the architectures that the library has code for they are,
// and launches of that code. Alike on a device and on the emulator, since both are a Driver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "core/gpu_args.h"
#include "hip/driver.h"

namespace pasa::hip {

constexpr int kThreads = 256;  // of a work-group, in every kernel

// "gfx950": the one whose code the device loads; empty if the library has none for it.
std::string_view architecture(int device);

std::string machine(const Problem& problem);  // Backend::machine

using Architectures = std::span<const std::string_view>;
// Empty if the device is one of these architectures; else why not.
std::string unavailable_on(int device, Architectures wanted);
// The same question about all devices.
std::string unavailable(Architectures wanted);
// Why a grid cannot have that many work-groups in x; empty if it can.
std::string too_many(std::int64_t tokens);

// Throws Error. `arguments` are the kernel's by value.
void launch(int device, std::string_view file, const char* kernel, Dim3 grid, std::span<const std::byte> arguments,
            void* stream);
template <typename Arguments>
void launch(int device, std::string_view file, const char* kernel, Dim3 grid, const Arguments& arguments,
            void* stream) {
  launch(device, file, kernel, grid, std::as_bytes(std::span(&arguments, 1)), stream);
}
void launch_merge(int device, const gpu::MergeArgs& args, void* stream);
void reduce(const Reduce& problem, void* stream);

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace pasa::hip
