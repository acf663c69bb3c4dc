// Shared-memory tiles of the Hopper kernels and the descriptors by which the tensor cores read them.
//
// Every tile is a row of panels: 64 columns of bf16 (128 bytes) by up to 64 rows, the 16-byte chunks of a row permuted by
// the 128-byte swizzle (chunk ^ row % 8). The one idea: a panel of keys can be read both ways without a copy, as K (rows
// are tokens, the sum runs along a row) for the scores and as V (the sum runs down a column) for the output.
#pragma once

#include <cstdint>

namespace pasa::cuda {

constexpr int kPanelColumns = 64, kPanelRows = 64, kPanelRowBytes = 2 * kPanelColumns;
constexpr int kPanelBytes = kPanelRows * kPanelRowBytes;
constexpr int kSwizzleRows = 8, kSwizzleBytes = kSwizzleRows * kPanelRowBytes;  // the pattern repeats every 8 rows

// Byte offset of a 16-byte chunk (0..7) of a row inside a panel.
constexpr std::uint32_t chunk_offset(std::uint32_t row, std::uint32_t chunk) {
  return row * kPanelRowBytes + ((chunk ^ (row % kSwizzleRows)) * 16);
}

// A matrix descriptor: address, the two distances and the 128-byte swizzle. `leading` is read only when the sum runs down
// the columns: the distance between panels; `stride` is the distance between groups of 8 rows.
constexpr std::uint64_t descriptor(std::uint32_t address, std::uint32_t leading, std::uint32_t stride) {
  return std::uint64_t{1} << 62 | std::uint64_t{stride >> 4} << 32 | std::uint64_t{leading >> 4} << 16 |
         (address & 0x3ffff) >> 4;
}

// Rows of a tile that starts at `address`, the sum along the row: 64 rows x 16 columns from column 16 * step on.
constexpr std::uint64_t along_rows(std::uint32_t address, int step) {
  const int panel = step / 4, inside = step % 4;
  return descriptor(address + static_cast<std::uint32_t>(panel * kPanelBytes + inside * 32), 16, kSwizzleBytes);
}

// Columns of a tile, the sum down the column: 16 rows from row 16 * step on, any number of panels.
constexpr std::uint64_t down_columns(std::uint32_t address, int step) {
  return descriptor(address + static_cast<std::uint32_t>(step * 2 * kSwizzleBytes), kPanelBytes, kSwizzleBytes);
}

}  // namespace pasa::cuda
