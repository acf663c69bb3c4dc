// A small legal problem that owns its memory, for tests of the API: each test spoils one thing in it, or compares two runs
// of it. All data is zero (a legal pool), the outputs are poisoned, so that a byte written by a refused call shows.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <vector>

#include "core/format.h"
#include "pasa/pasa.h"

namespace pasa::test {

// What outputs hold before a call: as bf16, f16 or f32 it is a NaN that no kernel makes.
constexpr std::uint8_t kPoison = 0xfe;

inline pasa_tensor dense(void* data, pasa_dtype dtype, std::initializer_list<std::int64_t> shape) {
  pasa_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  for (const std::int64_t size : shape) tensor.shape[tensor.rank++] = size;
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    tensor.stride[i] = stride;
    stride *= tensor.shape[i];
  }
  return tensor;
}

struct Rig {
  static constexpr int kTokens = 3, kHeads = 2, kPage = 4, kBlocks = 5, kSlots = kPage * kBlocks, kWidth = 6;

  pasa_problem problem{};
  std::vector<std::uint8_t*> outputs;
  std::vector<std::size_t> output_bytes;

  explicit Rig(pasa_kv_format main, pasa_kv_format extra = PASA_KV_NONE) {
    const int dim = main == PASA_KV_FP8_V32 ? 576 : 512;
    const pasa_dtype word = main == PASA_KV_F16 ? PASA_F16 : PASA_BF16;
    problem.struct_size = sizeof problem;
    problem.q = dense(take(kTokens * kHeads * kMaxDim * 2), word, {kTokens, kHeads, dim});
    add_source(problem.main, main, dim);
    if (extra != PASA_KV_NONE) add_source(problem.extra, extra, dim);
    problem.attn_sink = dense(take(kHeads * 4), PASA_F32, {kHeads});
    problem.out = output(word, {kTokens, kHeads, kValueDim});
    problem.lse = output(PASA_F32, {kTokens, kHeads});
    problem.max_logits = output(PASA_F32, {kTokens, kHeads});
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // Zeroed memory that lives as long as the rig, 64-byte aligned, with room behind for tests that grow a view.
  void* take(std::size_t bytes) {
    memory_.emplace_back(bytes + 4096);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.back().data());
    return memory_.back().data() + (64 - address % 64) % 64;
  }

  pasa_tensor output(pasa_dtype dtype, std::initializer_list<std::int64_t> shape) {
    std::size_t bytes = dtype == PASA_F32 ? 4 : 2;
    for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
    outputs.push_back(static_cast<std::uint8_t*>(take(bytes)));
    output_bytes.push_back(bytes);
    std::memset(outputs.back(), kPoison, bytes);
    return dense(outputs.back(), dtype, shape);
  }

  // acc, m, l for `splits` instead of out, lse, max_logits.
  void want_partials(int splits) {
    problem.flags |= PASA_SKIP_REDUCE;
    problem.kv_splits = splits;
    problem.acc = output(PASA_F32, {kTokens, splits, kHeads, kValueDim});
    problem.m = output(PASA_F32, {kTokens, splits, kHeads});
    problem.l = output(PASA_F32, {kTokens, splits, kHeads});
    problem.out = problem.lse = problem.max_logits = pasa_tensor{};
  }

  void make_rectangular(pasa_source& source, bool lengths) {
    source.indices = dense(take(kTokens * kWidth * 4), PASA_I32, {kTokens, kWidth});
    source.indptr = pasa_tensor{};
    if (lengths) source.lengths = dense(take(kTokens * 4), PASA_I32, {kTokens});
  }

  // Keys of 576 in a flat pool, their last 64 components in a tensor of their own or not.
  void make_mla(bool apart) {
    pasa_source& s = problem.main;
    problem.q = dense(problem.q.data, problem.q.dtype, {kTokens, kHeads, kMaxDim});
    s.kv = dense(s.kv.data, s.kv.dtype, {kSlots, apart ? kValueDim : kMaxDim});
    if (apart) s.kv_pe = dense(take(kSlots * kPeDim * 2), s.kv.dtype, {kSlots, kPeDim});
    s.kv_scales = pasa_tensor{};
  }

  // One list for all rows.
  void share_list() {
    problem.queries_per_list = kTokens;
    problem.main.indptr.shape[0] = 2;
  }

  bool untouched() const {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      for (std::size_t byte = 0; byte < output_bytes[i]; ++byte) {
        if (outputs[i][byte] != kPoison) return false;
      }
    }
    return true;
  }

 private:
  void add_source(pasa_source& source, pasa_kv_format format, int dim) {
    source.format = format;
    void* pool = take(static_cast<std::size_t>(kSlots) * kMaxDim * 2);
    switch (format) {
      case PASA_KV_BF16:
        source.kv = dense(pool, PASA_BF16, {kSlots, dim});
        break;
      case PASA_KV_F16:
        source.kv = dense(pool, PASA_F16, {kSlots, dim});
        break;
      case PASA_KV_FP8_E4M3FN:
        source.kv = dense(pool, PASA_F8_E4M3FN, {kSlots, dim});
        break;
      case PASA_KV_FP8_E4M3FNUZ:
        source.kv = dense(pool, PASA_F8_E4M3FNUZ, {kSlots, dim});
        break;
      case PASA_KV_FP8_DS_MLA:
        source.kv = dense(pool, PASA_U8, {kBlocks, kPage, 584});
        break;
      case PASA_KV_PACKED_BF16:
        source.kv = dense(pool, PASA_BF16, {kBlocks, kPage, 512});
        break;
      case PASA_KV_FP8_V32:
        source.kv = dense(pool, PASA_U8, {kBlocks, kPage, 656});
        break;
      case PASA_KV_NONE:
        break;
    }
    if (find_format(format)->has_side_scales(dim)) source.kv_scales = dense(take(kSlots * 32), PASA_F32, {kSlots, 8});
    auto* indptr = static_cast<std::int32_t*>(take((kTokens + 1) * 4));
    for (int t = 0; t <= kTokens; ++t) indptr[t] = 2 * t;
    source.indices = dense(take(2 * kTokens * 4), PASA_I32, {2 * kTokens});
    source.indptr = dense(indptr, PASA_I32, {kTokens + 1});
  }

  std::deque<std::vector<std::uint8_t>> memory_;
};

}  // namespace pasa::test
