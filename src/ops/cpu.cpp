// The operations on the CPU: loops over tokens or rows, shared by the OpenMP threads, whose bodies the compiler turns into
// vector code. Small calls stay on the calling thread.
#include <cstring>

#include "ops/cache.h"
#include "ops/lists.h"
#include "ops/merge.h"
#include "ops/run.h"

namespace pasa::ops {
namespace {

constexpr std::int64_t kMinParallel = 1 << 15;  // elements; below, waking threads costs more than it gains

// body(i) for i in [0, count), each about `cost` elements of work.
template <typename Body>
void for_each(std::int64_t count, std::int64_t cost, const Body& body) {
#pragma omp parallel for schedule(static) if (count * cost >= kMinParallel)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// ---- caches

template <typename Format>
void write_token(const CacheWrite& call, const std::uint16_t* k, Spot spot) {
  for (int group = 0; group < Format::kScales; ++group) {
    const std::uint16_t* from = k + group * Format::kScaleTile;
    std::uint8_t* to = spot.record + group * Format::kScaleTile;
    std::uint32_t amax = 0;
    for (int d = 0; d < Format::kScaleTile; ++d) amax = raise_amax_bits(amax, bf16_to_float(from[d]));
    const GroupScale scale = group_scale<Format>(amax, call.v32_scale);
    store_scale<Format>(spot, group, scale);
    for (int d = 0; d < Format::kScaleTile; ++d) to[d] = encode<Format>(bf16_to_float(from[d]), scale);
  }
  std::memcpy(spot.record + Format::kRopeOffset, k + Format::kNope, 2 * Format::kRope);
}

template <typename Format, Word16 Out>
void read_token(const CacheGather& call, Spot spot, std::uint16_t* out) {
  for (int group = 0; group < Format::kScales; ++group) {
    const std::uint8_t* from = spot.record + group * Format::kScaleTile;
    std::uint16_t* to = out + group * Format::kScaleTile;
    const float scale = load_scale<Format>(spot, group);
    const bool nan_to_zero = call.nan_to_zero;
    for (int d = 0; d < Format::kScaleTile; ++d) to[d] = dequantize<Format, Out>(from[d], scale, nan_to_zero);
  }
  const auto* from = reinterpret_cast<const std::uint16_t*>(spot.record + Format::kRopeOffset);
  for (int d = 0; d < Format::kRope; ++d) out[Format::kNope + d] = convert<Format, Out>(from[d], call.nan_to_zero);
}

template <typename Format, Word16 Out>
void gather(const CacheGather& call) {
  if (call.slots.given()) {
    for_each(call.max_tokens, Format::kDim, [&](std::int64_t i) {
      const std::int64_t slot = call.slots[i];
      if (slot < 0 || slot >= call.cache.slots) return;
      read_token<Format, Out>(call, locate<Format>(call.cache, slot), call.out + i * call.out_stride[1]);
    });
    return;
  }
  for (std::int64_t r = 0; r < call.requests; ++r) {
    const GatherRange range = gather_range(call, r);
    for_each(range.end - range.begin, Format::kDim, [&](std::int64_t step) {
      const std::int64_t i = range.begin + step;
      const auto position = static_cast<std::uint32_t>(range.first + i);
      const std::int64_t page = page_of(call, r, position);
      if (page < 0) return;
      const Spot spot = locate<Format>(call.cache, static_cast<std::uint32_t>(page), position % call.cache.block_size);
      read_token<Format, Out>(call, spot, call.out + r * call.out_stride[0] + (call.offset + i) * call.out_stride[1]);
    });
  }
}

// ---- lists

template <typename Row>
std::int64_t count_of(const Row& row, bool compact) {
  if (!compact) return row.count;
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < row.count; ++j) count += row[j] >= 0;
  return count;
}

template <typename Row>
std::int64_t write_row(const Row& row, bool compact, std::int32_t* out) {
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < row.count; ++j) {
    const std::int32_t index = row[j];
    if (!compact || index >= 0) out[count++] = index;
  }
  return count;
}

void run(const CacheWrite& call) {
  with_format(call.cache.format, call.cache.dim, [&]<typename Format>() {
    for_each(call.tokens, Format::kDim, [&](std::int64_t i) {
      const std::int64_t slot = call.slot_mapping[i];
      if (slot < 0 || slot >= call.cache.slots) return;
      write_token<Format>(call, call.k + i * call.k_stride, locate<Format>(call.cache, slot));
    });
  });
}

void run(const CacheGather& call) {
  with_format(call.cache.format, call.cache.dim, [&]<typename Format>() {
    if (call.word == Word16::kBf16) {
      gather<Format, Word16::kBf16>(call);
    } else {
      gather<Format, Word16::kF16>(call);
    }
  });
}

void run(const Slots& call) { for_each(call.count, 1, call); }

void run(const TokenCounts& call) { for_each(call.count, 1, call); }

// Ragged rows are counted into indptr, which a running sum then turns into itself.
template <typename Builder>
void run(const List<Builder>& list) {
  const Builder& builder = list.builder;
  const Lists& lists = list.lists;
  constexpr bool compact = Builder::kCompact;
  constexpr std::int64_t cost = 64;  // of a row, about
  if (lists.indptr) {
    for_each(lists.rows, cost, [&](std::int64_t t) {
      lists.indptr[t + 1] = static_cast<std::int32_t>(count_of(builder.row(t), compact));
    });
    lists.indptr[0] = 0;
    for (std::int64_t t = 0; t < lists.rows; ++t) {
      if (lists.lengths) lists.lengths[t] = lists.indptr[t + 1];
      lists.indptr[t + 1] += lists.indptr[t];
    }
    for_each(lists.rows, cost,
             [&](std::int64_t t) { write_row(builder.row(t), compact, lists.indices + lists.indptr[t]); });
  } else {
    for_each(lists.rows, cost, [&](std::int64_t t) {
      std::int32_t* out = lists.indices + t * lists.stride;
      const std::int64_t count = write_row(builder.row(t), compact, out);
      for (std::int64_t j = count; j < lists.width; ++j) out[j] = -1;
      if (lists.lengths) lists.lengths[t] = static_cast<std::int32_t>(count);
    });
  }
}

void run(const Merge& call) {
  for_each(call.tokens * call.heads, kValueDim, [&](std::int64_t i) {
    const std::int64_t t = i / call.heads, h = i % call.heads;
    const MergeWeights weights = call.weights(t, h);
    const std::int64_t a = call.out_a.at(t, h), b = call.out_b.at(t, h), o = call.out.at(t, h);
    for (std::int64_t d = 0; d < kValueDim; ++d) {
      const float x = weights.use_a ? load(call.out_a.data, call.dtype_a, a + d) : 0.0f;
      const float y = weights.use_b ? load(call.out_b.data, call.dtype_b, b + d) : 0.0f;
      store(call.out.data, call.dtype, o + d, merged(weights, x, y));
    }
    if (call.lse.data) call.lse.data[call.lse.at(t, h)] = canonical(weights.lse);
  });
}

}  // namespace

template <typename Call>
void run_cpu(const Call& call) {
  run(call);
}

template void run_cpu(const CacheWrite&);
template void run_cpu(const CacheGather&);
template void run_cpu(const Slots&);
template void run_cpu(const TokenCounts&);
template void run_cpu(const List<FromDense>&);
template void run_cpu(const List<FromTopk>&);
template void run_cpu(const List<Combine>&);
template void run_cpu(const List<Consecutive>&);
template void run_cpu(const Merge&);

}  // namespace pasa::ops
