// What the host sides of the Hopper kernels share: which tensors they take, and the copy engine's view of queries and outputs.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/problem.h"

namespace pasa::cuda {

// 16-bit pools, packed or flat, are one format to these kernels.
inline pasa_kv_format layout_of(pasa_kv_format format) { return format == PASA_KV_PACKED_BF16 ? PASA_KV_BF16 : format; }

inline bool is_multiple(const void* pointer, std::uintptr_t of) {
  return reinterpret_cast<std::uintptr_t>(pointer) % of == 0;
}

// Can rows [T, H, ...] of 16-bit words be copied by pieces of 16 bytes, or by a tensor map? The stride of a dimension of one
// element may be anything.
inline bool copies_in_16_bytes(const Problem& problem, const void* data, const std::int64_t (&stride)[2]) {
  return is_multiple(data, 16) && (problem.tokens < 2 || stride[0] % 8 == 0) &&
         (problem.heads < 2 || stride[1] % 8 == 0);
}

// [T, H, columns] of 16-bit words with these strides of tokens and heads in elements, which copies_in_16_bytes(), as [token][panel]
// [head][column of 64] in boxes of one token, `box_panels` panels and `box_heads` heads: the panels of shared memory, 128 bytes
// wide and swizzled by that. What of a box lies beyond the heads reads as zeros and is not written. Throws PASA_ERROR_INTERNAL
// where the driver refuses.
CUtensorMap make_tensor_map(const Problem& problem, const void* data, const std::int64_t (&stride)[2], int columns,
                            int box_heads, int box_panels);

}  // namespace pasa::cuda
