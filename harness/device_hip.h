// AMD GPUs as devices: "hip:0", ...; and "gfx950-emu", "gfx942-emu": the emulator behind the same driver interface, so that
// the very planning, arguments and code objects of the HIP backend are executed where there is no such GPU.
#pragma once

#include "harness/device.h"
#include "hip/driver.h"

namespace pasa {

// tools/gfx950emu/driver.cpp, in builds that have it.
hip::Driver& gfx942_emulator();
hip::Driver& gfx950_emulator();
std::map<std::string, Counts> take_emulated_counts(hip::Driver& emulator);

}  // namespace pasa
