// AMD GPUs as devices: "hip:0", ...; and "gfx950-emu", the gfx950 emulator behind the same driver interface, so that the
// very planning, arguments and code objects of the HIP backend are executed where there is no such GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/device.h"
#include "hip/driver.h"

namespace pasa {

std::vector<std::string> hip_device_names();
// nullptr: not a name of this kind. Throws PASA_ERROR_DEVICE that says what is missing.
std::unique_ptr<Device> open_hip(std::string_view name);

// tools/gfx950emu/driver.cpp, in builds that have it.
hip::Driver& gfx950_emulator();

}  // namespace pasa
