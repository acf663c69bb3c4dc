#include "harness/case.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "harness/data.h"
#include "harness/device.h"

namespace pasa {

Memory Memory::anonymous(std::size_t bytes, bool sparse) {
  Memory memory;
  if (bytes == 0) return memory;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    throw Error(PASA_ERROR_MEMORY, concat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (!sparse && bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = bytes;
  return memory;
}

Memory Memory::file(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), path.string());
  Memory memory;
  struct stat status {};
  int error = fstat(fd, &status) != 0 ? errno : 0;
  if (!error && S_ISDIR(status.st_mode)) error = EISDIR;
  if (!error && !S_ISREG(status.st_mode)) error = ESPIPE;  // a pipe cannot be mapped
  if (!error && status.st_size > 0) {
    void* data = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      error = errno;
    } else {
      memory.data_ = static_cast<std::byte*>(data);
      memory.size_ = static_cast<std::size_t>(status.st_size);
    }
  }
  close(fd);
  if (error) throw std::system_error(error, std::generic_category(), path.string());
  return memory;
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Memory::~Memory() {
  if (data_) munmap(data_, size_);
}

std::size_t dtype_bytes(pasa_dtype dtype) {
  return dtype == PASA_DTYPE_NONE ? 0 : static_cast<std::size_t>(element_bytes(dtype));
}

std::int64_t element_count(const pasa_tensor& tensor) {
  if (tensor.rank == 0) return 0;
  std::int64_t count = 1;
  for (int i = 0; i < tensor.rank; ++i) count *= tensor.shape[i];
  return count;
}

std::size_t span_bytes(const pasa_tensor& tensor) {
  if (element_count(tensor) == 0) return 0;
  std::int64_t last = 0;
  for (int i = 0; i < tensor.rank; ++i) last += (tensor.shape[i] - 1) * tensor.stride[i];
  return static_cast<std::size_t>(last + 1) * dtype_bytes(tensor.dtype);
}

std::vector<std::span<std::byte>> contiguous_runs(const pasa_tensor& tensor) {
  std::vector<std::span<std::byte>> runs;
  if (element_count(tensor) == 0) return runs;
  // The inner dimensions that follow each other without a gap form one run.
  int outer = tensor.rank;
  std::int64_t run = 1;
  while (outer > 0 && (tensor.stride[outer - 1] == run || tensor.shape[outer - 1] == 1)) run *= tensor.shape[--outer];
  std::int64_t count = 1;
  for (int i = 0; i < outer; ++i) count *= tensor.shape[i];
  const std::size_t element = dtype_bytes(tensor.dtype);
  runs.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0, rest = i;
    for (int d = outer - 1; d >= 0; --d) {
      offset += rest % tensor.shape[d] * tensor.stride[d];
      rest /= tensor.shape[d];
    }
    runs.emplace_back(static_cast<std::byte*>(tensor.data) + offset * static_cast<std::int64_t>(element),
                      static_cast<std::size_t>(run) * element);
  }
  return runs;
}

pasa_tensor dense_view(void* data, pasa_dtype dtype, std::span<const std::int64_t> shape) {
  pasa_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    stride *= shape[i];
  }
  return tensor;
}

pasa_tensor Case::allocate(pasa_dtype dtype, std::initializer_list<std::int64_t> shape,
                           std::initializer_list<std::int64_t> stride, bool sparse) {
  pasa_tensor tensor = dense_view(nullptr, dtype, std::span(shape.begin(), shape.size()));
  std::copy(stride.begin(), stride.end(), tensor.stride);
  const std::size_t bytes = span_bytes(tensor);
  if (bytes) {
    memory.push_back(Memory::anonymous(bytes, sparse));
    tensor.data = memory.back().data();
  }
  return tensor;
}

pasa_tensor allocate_rows(Case& c, pasa_dtype dtype, std::int64_t columns, std::int64_t tokens, std::int64_t heads,
                          Gaps gaps) {
  if (gaps == Gaps::kNone) return c.allocate(dtype, {tokens, heads, columns});
  const std::int64_t row = columns + (gaps == Gaps::kOdd ? 2 : kAlignedGap);
  return c.allocate(dtype, {tokens, heads, columns}, {heads * row + (gaps == Gaps::kOdd ? 6 : row), row, 1});
}

void add_outputs(Case& c, const Outputs& outputs) {
  const std::int64_t tokens = c.tokens(), heads = c.heads();
  pasa_problem& p = c.problem;
  p.out = allocate_rows(c, p.q.dtype, kValueDim, tokens, heads, outputs.gaps);
  const auto per_head = [&] {
    return outputs.gaps == Gaps::kNone ? c.allocate(PASA_F32, {tokens, heads})
                                       : c.allocate(PASA_F32, {tokens, heads}, {heads + 3, 1});
  };
  if (outputs.lse) p.lse = per_head();
  if (outputs.max_logits) p.max_logits = per_head();
  poison_outputs(c);
}

void add_partials(Case& c, int splits) {
  c.set_aside[0] = std::exchange(c.problem.out, {});
  c.set_aside[1] = std::exchange(c.problem.lse, {});
  c.problem.max_logits = {};
  c.problem.acc = c.allocate(PASA_F32, {c.tokens(), splits, c.heads(), kValueDim});
  c.problem.m = c.allocate(PASA_F32, {c.tokens(), splits, c.heads()});
  c.problem.l = c.allocate(PASA_F32, {c.tokens(), splits, c.heads()});
  poison_outputs(c);
}

void reduce_partials(Case& c) {
  pasa_problem& p = c.problem;
  p.out = c.set_aside[0];
  p.lse = c.set_aside[1];
  pasa_reduce_problem reduce{
      sizeof reduce, std::exchange(p.acc, {}), std::exchange(p.m, {}), std::exchange(p.l, {}), p.attn_sink, p.out,
      p.lse};
  check_status(pasa_reduce(&reduce, nullptr));
}

namespace {

// A span much larger than its contents is a sparse mapping: its gaps stay untouched.
bool has_wide_gaps(const pasa_tensor& tensor) {
  const std::size_t dense = static_cast<std::size_t>(element_count(tensor)) * dtype_bytes(tensor.dtype);
  return span_bytes(tensor) > 2 * dense + (std::size_t{64} << 20);
}

}  // namespace

void poison_outputs(const Case& c) {
  pasa_problem problem = c.problem;
  for (const auto& [name, tensor] : output_tensors(problem)) {
    if (has_wide_gaps(*tensor)) {
      for (std::span<std::byte> run : contiguous_runs(*tensor)) std::memset(run.data(), 0xff, run.size());
    } else if (tensor->data) {
      std::memset(tensor->data, 0xff, span_bytes(*tensor));
    }
  }
}

bool gaps_untouched(const Case& c) {
  pasa_problem problem = c.problem;
  for (const auto& [name, tensor] : output_tensors(problem)) {
    if (has_wide_gaps(*tensor)) continue;
    const std::byte* end = nullptr;
    for (std::span<std::byte> run : contiguous_runs(*tensor)) {
      for (const std::byte* gap = end ? end : run.data(); gap < run.data(); ++gap) {
        if (*gap != std::byte{0xff}) return false;
      }
      end = run.data() + run.size();
    }
  }
  return true;
}

std::vector<NamedTensor> input_tensors(pasa_problem& p) {
  return {{"q", &p.q},
          {"kv", &p.main.kv},
          {"extra_kv", &p.extra.kv},
          {"kv_pe", &p.main.kv_pe},
          {"extra_kv_pe", &p.extra.kv_pe},
          {"kv_scales", &p.main.kv_scales},
          {"extra_kv_scales", &p.extra.kv_scales},
          {"kv_indices", &p.main.indices},
          {"kv_indptr", &p.main.indptr},
          {"kv_lengths", &p.main.lengths},
          {"extra_indices", &p.extra.indices},
          {"extra_indptr", &p.extra.indptr},
          {"extra_lengths", &p.extra.lengths},
          {"attn_sink", &p.attn_sink}};
}

std::vector<NamedTensor> output_tensors(pasa_problem& p) {
  return {{"out", &p.out}, {"lse", &p.lse}, {"max_logits", &p.max_logits}, {"acc", &p.acc}, {"m", &p.m}, {"l", &p.l}};
}

std::int64_t pool_slots(const pasa_source& source) {
  return source.kv.rank == 2 ? source.kv.shape[0] : source.kv.shape[0] * source.kv.shape[1];
}

Work count_work(const pasa_problem& problem) {
  const Problem p = check(problem, Stage::kPlan);
  Work work;
  for (int s = 0; s < p.source_count; ++s) {
    const Source& source = p.sources[s];
    std::vector<bool> seen(static_cast<std::size_t>(source.slots));
    std::int64_t keys = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      const IndexRow row = row_range(source, t);
      work.listed += row.count;
      for (std::int64_t i = 0; i < row.count; ++i) {
        const std::int32_t slot = row.data[i];
        if (slot < 0 || slot >= source.slots) continue;
        ++keys;
        if (!seen[static_cast<std::size_t>(slot)]) ++work.distinct[s];
        seen[static_cast<std::size_t>(slot)] = true;
      }
    }
    work.keys += keys;
    work.gathered_bytes += static_cast<double>(keys) * bytes_per_key(p, s);
  }
  const double rows = static_cast<double>(p.tokens) * p.heads;
  work.flops = 2.0 * static_cast<double>(work.keys) * p.heads * (p.dim + kValueDim);
  work.bytes = work.gathered_bytes + 4.0 * static_cast<double>(work.listed) + rows * (2 * p.dim + 2 * kValueDim);
  if (problem.lse.rank) work.bytes += rows * 4;
  return work;
}

}  // namespace pasa
