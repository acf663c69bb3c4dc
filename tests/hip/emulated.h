// Cases on the emulated AMD GPUs, for the tests of kernels that run there.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "harness/case.h"
#include "harness/compare.h"
#include "harness/data.h"
#include "harness/device_hip.h"
#include "tools/gfx950emu/driver.h"

namespace pasa::test {

// "gfx950-emu" or "gfx942-emu".
inline gfx950emu::EmulatedDriver& emulator(std::string_view device) {
  return static_cast<gfx950emu::EmulatedDriver&>(device == "gfx942-emu" ? gfx942_emulator() : gfx950_emulator());
}

// Runs a case; its outputs are fetched. `kernel`: nullptr lets the library choose. Returns the kernel's name.
inline std::string run_emulated(Case& c, std::string_view device_name, const char* kernel) {
  const std::unique_ptr<Device> device = open_device(device_name);
  c.problem.kernel = kernel;
  prepare_partials(c, *device);
  Placed placed(c, *device);
  Runner runner(placed.problem(), *device);
  placed.poison_outputs();
  runner.run();
  placed.fetch_outputs();
  return runner.kernel();
}

// ... and compares it with the reference.
inline void check_emulated(const std::string& text, std::string_view device, const char* kernel) {
  SCOPED_TRACE(text);
  Case c = make_case(parse_text(text));
  ASSERT_NO_THROW(run_emulated(c, device, kernel));
  const Comparison comparison = compare(c.problem, compute_reference(c.problem), default_tolerance(c.problem));
  EXPECT_TRUE(comparison.ok()) << comparison.text();
  EXPECT_TRUE(gaps_untouched(c));
}

}  // namespace pasa::test
