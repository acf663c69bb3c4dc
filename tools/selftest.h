// `pasa selftest`: one command for the owner of a machine that the developers do not have, one JSON file to send back.
#pragma once

#include "tools/runs.h"

namespace pasa {

// Checks every kernel of the device against the float64 reference, then times the DeepSeek-V4 workloads if the device keeps
// time, and writes options.output. Returns the exit status: 0, or 1 if a case differs. Throws Error where there is no such
// device, or none of the kernels runs on it.
int selftest(const Options& options);

}  // namespace pasa
