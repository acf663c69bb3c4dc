// Case files: one attention problem on disk, as a safetensors file with fixed names; docs/case_file.md lists them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "harness/case.h"

namespace pasa {

// Maps the file; the pools are never copied. Throws Error: container, names, dtypes and ranks are checked here, the rest by
// the library when a plan is made. Outputs are absent: add_outputs().
Case open_case(const std::filesystem::path& path);
// The same from memory that outlives the case (a fuzzer's, a test's).
Case parse_case(std::span<const std::byte> file);

// The inputs of a case, and what it expects if anything, as a case file. Strided tensors are written dense.
void save_case(const std::filesystem::path& path, const Case& c);
// A result file: out, lse, and who made it.
void save_result(const std::filesystem::path& path, const Case& c, const std::string& device,
                 const std::string& kernel);

}  // namespace pasa
