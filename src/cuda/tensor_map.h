// The copy engine's view of queries and outputs.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace pasa::cuda {

// [tokens, heads, columns] of 16-bit words with the strides of tokens and heads in elements (multiples of 8, as `data` is of
// 16 bytes) as boxes of one token, `box_heads` heads and 64 columns, the 128 bytes that a panel in shared memory is wide and
// swizzled by. What of a box lies beyond the heads reads as zeros and is not written. Throws PASA_ERROR_INTERNAL where the
// driver refuses.
CUtensorMap make_tensor_map(const void* data, std::int64_t tokens, int heads, int columns,
                            const std::int64_t (&stride)[2], int box_heads);

}  // namespace pasa::cuda
