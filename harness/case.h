// A problem together with the memory its tensors live in: what the generator (data.h) and the case-file reader
// (case_file.h) make, and what tests, benchmarks and the command line hand to the C API.
//
// Every tensor is a view into a Memory of the Case, which is a mapping: anonymous (lazily backed, so a pool may span far
// more address space than the machine has memory) or of a file, read-only and never copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "pasa/pasa.h"

namespace pasa {

class Memory {
 public:
  Memory() = default;
  // Zero-filled; pages are backed on first touch. Huge pages are asked for, as serving engines do for their pools, unless
  // the region is meant to stay sparse. Throws PASA_ERROR_MEMORY.
  static Memory anonymous(std::size_t bytes, bool sparse = false);
  // The whole file, read-only. Throws std::system_error.
  static Memory file(const std::filesystem::path& path);

  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

struct Case {
  std::string name;
  pasa_problem problem{};      // struct_size is set by the makers below
  pasa_tensor expected_out{};  // optional, from a case file: F32 or BF16 [T, H, 512]
  pasa_tensor expected_lse{};  // F32 [T, H]
  pasa_tensor set_aside[2]{};  // out, lse while the problem has partials
  std::vector<Memory> memory;
  std::vector<std::string> notes;  // what a user should know, e.g. a tensor that had to be copied

  // A new tensor in memory of its own; strides in elements, dense if none are given. Contents are zero.
  pasa_tensor allocate(pasa_dtype dtype, std::initializer_list<std::int64_t> shape,
                       std::initializer_list<std::int64_t> stride = {}, bool sparse = false);

  std::int64_t tokens() const { return problem.q.shape[0]; }
  std::int64_t heads() const { return problem.q.shape[1]; }
  std::int64_t dim() const { return problem.q.shape[2]; }
};

// What lies between the rows of q, of rectangular lists and of outputs.
enum class Gaps {
  kNone,
  kOdd,      // rows are at multiples of an element, and no more
  kAligned,  // 128 elements and a row, as FlashMLA's tests have it: what was aligned still is
};
inline constexpr std::int64_t kAlignedGap = 128;

// Adds out and what else is asked for.
struct Outputs {
  bool lse = true;
  bool max_logits = false;
  Gaps gaps = Gaps::kNone;
};
void add_outputs(Case& c, const Outputs& outputs);
// [T, H, columns].
pasa_tensor allocate_rows(Case& c, pasa_dtype dtype, std::int64_t columns, std::int64_t tokens, std::int64_t heads,
                          Gaps gaps);
// For a plan whose result is partial (PASA_SKIP_REDUCE): acc, m, l take the place of the other outputs; after the run,
// reduce_partials() merges them into out and lse, which are then those of the problem again.
void add_partials(Case& c, int splits);
void reduce_partials(Case& c);
// Every byte of every output, gaps between rows included, becomes 0xff (NaN in each output type): stale output cannot pass
// for a result. For use before each kernel call.
void poison_outputs(const Case& c);
// True if the gaps between the rows of the outputs still hold 0xff.
bool gaps_untouched(const Case& c);

// Sizes.
std::size_t dtype_bytes(pasa_dtype dtype);
std::int64_t element_count(const pasa_tensor& tensor);
// From the first to one past the last addressed byte; 0 if the tensor is empty or absent.
std::size_t span_bytes(const pasa_tensor& tensor);
// The tensor's bytes in row-major order, as the fewest stretches without a gap.
std::vector<std::span<std::byte>> contiguous_runs(const pasa_tensor& tensor);
// A dense view of given memory.
pasa_tensor dense_view(void* data, pasa_dtype dtype, std::span<const std::int64_t> shape);

// What one call has to do, counted from its lists (host memory): the figures of `pasa bench`.
struct Work {
  std::int64_t keys = 0;       // valid entries of all lists
  std::int64_t listed = 0;     // entries, valid or not
  std::int64_t distinct[2]{};  // different slots each source's rows name
  double flops = 0;            // 2 * H * (D + 512) a key
  double gathered_bytes = 0;   // every key at its format's size: what a kernel without reuse between rows reads
  double bytes = 0;            // gathered + q + lists + out + lse
};
Work count_work(const pasa_problem& problem);

// The tensors of a problem by their case-file names, absent ones included: for code that treats them all alike.
struct NamedTensor {
  const char* name;
  pasa_tensor* tensor;
};
std::vector<NamedTensor> input_tensors(pasa_problem& problem);
std::vector<NamedTensor> output_tensors(pasa_problem& problem);

}  // namespace pasa
