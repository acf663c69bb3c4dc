// The safetensors container: a strict reader over mapped memory and a writer that leaves no half-written file behind.
//
// The reader trusts nothing: it validates the whole header before it hands out a view, and allocates no more than the
// header itself is long. docs of the container: 8-byte little-endian header length, JSON header, tensor bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pasa {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "BF16", "F8_E4M3", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

struct Container {
  std::vector<StoredTensor> tensors;  // in the file's order of bytes
  std::map<std::string, std::string> metadata;
  const StoredTensor* find(std::string_view name) const;
};

// Views into `file`, which must outlive them. Throws Error(PASA_ERROR_VALUE) with one line that says what is wrong where.
Container parse_safetensors(std::span<const std::byte> file);

// A tensor to write, as the stretches of memory that make it up: a strided pool needs no dense copy.
struct TensorSource {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::span<const std::byte>> pieces;  // concatenated they are the tensor
};
// Writes to a temporary name beside `path`, then renames. Throws Error or std::system_error; then `path` is untouched.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace pasa
