// What stands in a CUtensorMap here: the driver's own layout is secret, and only this emulator reads it.
#pragma once

#include <cstdint>

namespace ptxemu {

struct TensorMap {
  static constexpr std::uint64_t kMagic = 0x7470'6d65'746d'6170;
  std::uint64_t magic;
  std::uint64_t base;
  std::uint32_t rank, element_bytes, swizzle_bytes;  // swizzle 0: none
  std::uint32_t size[5], box[5];                     // elements, the first is contiguous
  std::uint64_t stride[5];                           // bytes; of the first: unused
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace ptxemu
