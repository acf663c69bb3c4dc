// Index lists to addresses: the only place on the CPU that looks at an index. Resolving a chunk of keys before it is read
// takes a few cycles a key, drops invalid indices, and lets a kernel prefetch as far ahead as it likes.
#include "cpu/kernel.h"

namespace pasa::cpu {

KeyList::KeyList(const Problem& problem, const Part& part) {
  for (int s = 0; s < problem.source_count; ++s) source_[s] = open(problem, part, s);
}

KeyList::Source KeyList::open(const Problem& problem, const Part& part, int source) {
  const pasa::Source& from = problem.sources[source];
  if (from.slots == 0) return {};  // no index is valid, and there may be no memory to point into
  const IndexRow list = split_range(row_range(from, part.row), part.split, part.splits);
  const auto page_tokens = problem.source[source].page_tokens;
  Source to{.indices = list.data, .count = list.count, .slots = static_cast<std::uint64_t>(from.slots), .kv = from.kv};
  to.page_stride = from.page_stride;
  to.page_tokens = static_cast<std::uint64_t>(page_tokens);
  // slot * reciprocal >> 64 is slot / page_tokens, exactly, for slots and pages below 2^32.
  to.reciprocal = page_tokens > 1 ? ~std::uint64_t{0} / to.page_tokens + 1 : 0;
  to.pe = from.pe;
  to.pe_stride = from.pe_stride;
  with_format(problem.source[source].format, problem.dim, [&]<typename Format>() {
    to.record_bytes = Format::kRecordBytes;
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
      to.scales = from.kv + page_tokens * Format::kRecordBytes;
      to.scales_page_stride = from.page_stride;
      to.scale_bytes = Format::kTailBytes;
    }
    if constexpr (Format::kScaling == Scaling::kSideFloat) {
      to.scales = from.scales;
      to.scales_page_stride = from.scale_stride;
    }
  });
  return to;
}

int KeyList::fill(Source& source, Row* rows, int capacity) {
  int filled = 0;
  for (; source.at < source.count && filled < capacity; ++source.at) {
    // One comparison: a negative index becomes a huge one.
    const auto slot = static_cast<std::uint64_t>(std::int64_t{source.indices[source.at]});
    if (slot >= source.slots) continue;
    std::uint64_t page = slot, place = 0;
    if (source.reciprocal) {
      page = static_cast<std::uint64_t>((static_cast<unsigned __int128>(slot) * source.reciprocal) >> 64);
      place = slot - page * source.page_tokens;
    }
    const auto p = static_cast<std::int64_t>(page), at = static_cast<std::int64_t>(place);
    rows[filled++] = {source.kv + p * source.page_stride + at * source.record_bytes,
                      source.scales + p * source.scales_page_stride + at * source.scale_bytes,
                      source.pe + p * source.pe_stride};
  }
  return filled;
}

Keys KeyList::next(Row* rows, int capacity) {
  const int main = fill(source_[0], rows, capacity);
  return {main + fill(source_[1], rows + main, capacity - main), main};
}

}  // namespace pasa::cpu
