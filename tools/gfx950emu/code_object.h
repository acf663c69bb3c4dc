// An AMDGPU code object in memory: its segments, symbols, kernel descriptors and the metadata note.
#pragma once

#include <optional>

#include "machine.h"

namespace gfx950emu {

struct KernelSymbol {
  KernelInfo info;
  u64 descriptor = 0;  // offset of the 64-byte kernel descriptor in the image
  u64 code = 0, code_bytes = 0;
};

class CodeObject {
 public:
  explicit CodeObject(std::span<const std::byte> elf);  // throws Error

  static std::optional<Architecture> architecture_of(std::span<const std::byte> elf);
  Architecture architecture() const { return architecture_; }
  const u8* image() const { return image_.data() + align_; }
  std::size_t image_bytes() const { return image_.size() - align_; }
  const std::map<std::string, KernelSymbol>& kernels() const { return kernels_; }
  const KernelSymbol& kernel(const std::string& name) const;

 private:
  Architecture architecture_;
  std::vector<u8> image_;
  std::size_t align_ = 0;  // the image starts at a page boundary
  std::map<std::string, KernelSymbol> kernels_;
};

}  // namespace gfx950emu
