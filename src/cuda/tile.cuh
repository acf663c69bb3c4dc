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

// A matrix descriptor without its constant high word: the address of a tile's first byte in 16-byte units, with, for products
// that run down the columns, the distance between panels. Steps through a tile are additions.
constexpr std::uint32_t along_rows(std::uint32_t address) { return (address & 0x3ffff) >> 4; }
constexpr std::uint32_t down_columns(std::uint32_t address) {
  return (address & 0x3ffff) >> 4 | (kPanelBytes >> 4) << 16;
}
// The high word: 128-byte swizzle, and the distance between groups of 8 rows.
constexpr std::uint32_t kDescriptorHigh = 1u << 30 | kSwizzleBytes >> 4;

// Added to along_rows(): columns 16 * step to 16 * step + 15; to down_columns(): rows likewise.
constexpr std::uint32_t column_step(int step, int panel_bytes = kPanelBytes) {
  return static_cast<std::uint32_t>(step / 4 * panel_bytes + step % 4 * 32) >> 4;
}
constexpr std::uint32_t row_step(int step) { return static_cast<std::uint32_t>(step * 2 * kSwizzleBytes) >> 4; }

}  // namespace pasa::cuda
