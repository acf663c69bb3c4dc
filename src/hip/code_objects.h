// The device code that was built into the library.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace pasa::hip {

struct CodeObject {
  std::string_view file, architecture;  // "decode", "gfx950"
  std::span<const std::byte> bytes;
};

std::span<const CodeObject> code_objects();

}  // namespace pasa::hip
