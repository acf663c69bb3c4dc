// The GPU kernels' own arithmetic on the host: division by multiplication, list ranges in 32 bits, byte addresses. Each must
// agree with core/problem.h, which the reference uses. Needs no GPU.
#include "core/gpu_args.h"

#include <gtest/gtest.h>

#include <climits>
#include <random>
#include <vector>

#include "core/backend.h"
#include "core/problem.h"

namespace pasa::gpu {
namespace {

TEST(Divider, IsExactBelow2To31) {
  std::vector<std::uint32_t> divisors;
  for (std::uint32_t d = 1; d <= 1200; ++d) divisors.push_back(d);
  for (int bit = 10; bit < 31; ++bit) {
    for (int around = -2; around <= 2; ++around) divisors.push_back((1u << bit) + static_cast<std::uint32_t>(around));
  }
  divisors.push_back(INT32_MAX);
  std::mt19937 random(1);
  for (const std::uint32_t d : divisors) {
    const Divider by = make_divider(d);
    std::vector<std::uint32_t> dividends = {
        0, 1, d - 1, d, INT32_MAX, INT32_MAX - 1u, INT32_MAX / d * d, INT32_MAX / d * d - 1};
    for (int i = 0; i < 200; ++i) {
      const std::uint32_t multiple =
          static_cast<std::uint32_t>(random() >> 1) / d * d;  // quotients change at multiples
      dividends.insert(dividends.end(),
                       {multiple, multiple ? multiple - 1 : 0, static_cast<std::uint32_t>(random() >> 1)});
    }
    for (const std::uint32_t n : dividends) {
      ASSERT_EQ(divide(n & INT32_MAX, by), (n & INT32_MAX) / d) << n << " / " << d;
    }
  }
}

void expect_same(const Source& source, const SourceArgs& args, std::int64_t token, int splits) {
  const IndexRow whole = row_range(source, token);
  const Part row = row_of(args, token);
  ASSERT_EQ(row.count, whole.count);
  const auto load = [](const std::int32_t* from) { return *from; };
  ASSERT_TRUE(bounds_at(args, bounds_place(args, token), load) == bounds_of(args, token));
  if (row.count > 0) {
    ASSERT_EQ(row.indices, whole.data);
  }
  for (int split = 0; split < splits; ++split) {
    const IndexRow want = split_range(whole, split, splits);
    const Part part = part_of(row, split, splits, make_divider(static_cast<std::uint32_t>(splits)));
    ASSERT_EQ(part.count, want.count) << "length " << whole.count << ", part " << split << " of " << splits;
    if (part.count > 0) {
      ASSERT_EQ(part.indices, want.data);
    }
  }
}

TEST(Ranges, AgreeWithTheCore) {
  const std::vector<std::int32_t> indices(4096);
  const std::vector<std::int32_t> odd = {0, 0, 1, 64, 63, -5, INT_MIN, INT_MAX, 4095, 4096, 4097, 100};
  Source ragged{.indices = indices.data(), .indptr = odd.data(), .nnz = 4096};
  Source wide{.indices = indices.data(), .lengths = odd.data(), .width = 300, .index_stride = 333};
  for (Source* source : {&ragged, &wide}) {
    SourceArgs args{};
    args.indices = source->indices;
    args.indptr = source->indptr;
    args.lengths = source->lengths;
    args.index_stride = source->index_stride;
    args.queries = 1;
    args.by_queries = make_divider(1);
    args.entries = static_cast<std::int32_t>(source->indptr ? source->nnz : source->width);
    for (std::int64_t t = 0; t + 1 < static_cast<std::int64_t>(odd.size()); ++t) {
      for (const int splits : {1, 2, 3, 7, 16, 64, 255, 256}) expect_same(*source, args, t, splits);
    }
  }
}

// T rows on T / n lists, the causal cut included.
TEST(Ranges, SharedListsAgreeWithTheCore) {
  const std::vector<std::int32_t> indices(4096);
  const std::vector<std::int32_t> bounds = {0, 5, 5, 6, 100, 90, -5, INT_MAX};
  for (const int queries : {1, 2, 4, 8, 17}) {
    Source ragged{.indices = indices.data(), .indptr = bounds.data(), .queries_per_list = queries, .nnz = 4096};
    Source wide{.indices = indices.data(),
                .lengths = bounds.data(),
                .queries_per_list = queries,
                .width = 300,
                .index_stride = 333};
    for (Source* source : {&ragged, &wide}) {
      SourceArgs args{};
      args.indices = source->indices;
      args.indptr = source->indptr;
      args.lengths = source->lengths;
      args.index_stride = source->index_stride;
      args.queries = queries;
      args.by_queries = make_divider(static_cast<std::uint32_t>(queries));
      args.entries = static_cast<std::int32_t>(source->indptr ? source->nnz : source->width);
      for (std::int64_t t = 0; t < 7 * queries; ++t) {
        for (const int splits : {1, 2, 7, 256}) expect_same(*source, args, t, splits);
      }
    }
  }
}

TEST(Ranges, LongListsDoNotOverflow) {
  const auto* list = reinterpret_cast<const std::int32_t*>(std::uintptr_t{1} << 40);
  for (const std::int32_t count : {INT32_MAX, INT32_MAX - 1, 1 << 30}) {
    for (const int splits : {2, 3, 255, 256}) {
      const Divider by = make_divider(static_cast<std::uint32_t>(splits));
      std::int64_t covered = 0;
      for (int split = 0; split < splits; ++split) covered += part_of({list, count}, split, splits, by).count;
      EXPECT_EQ(covered, count);
    }
  }
}

template <typename Format>
void expect_addresses(std::int64_t page_tokens, std::int64_t page_stride) {
  const auto* base = reinterpret_cast<const std::uint8_t*>(std::uintptr_t{1} << 40);
  const Source source{.kv = base,
                      .page_stride = page_stride,
                      .slots = INT32_MAX,
                      .scales = base,
                      .scale_stride = 36,
                      .pe = base + 12345,
                      .pe_stride = 130};
  SourceArgs args{};
  args.kv = args.scales = base;
  args.page_stride = page_stride;
  args.scale_stride = 36;
  args.pe = source.pe;
  args.pe_stride = source.pe_stride;
  args.slots = INT32_MAX;
  args.page_tokens = static_cast<std::uint32_t>(page_tokens);
  args.page = make_divider(args.page_tokens);
  for (const std::int64_t slot : {std::int64_t{0}, std::int64_t{1}, page_tokens - 1, page_tokens, std::int64_t{2097152},
                                  std::int64_t{4194304}, std::int64_t{123456789}, std::int64_t{INT32_MAX} - 1}) {
    const Row want = locate<Format>(source, page_tokens, slot);
    const Row got = locate<Format>(args, static_cast<std::uint32_t>(slot));
    ASSERT_EQ(got.record, want.record) << slot << " page " << page_tokens;
    ASSERT_EQ(got.scales, want.scales) << slot << " page " << page_tokens;
    ASSERT_EQ(got.pe, want.pe) << slot << " page " << page_tokens;
  }
}

TEST(Addresses, AgreeWithTheCore) {
  for (const std::int64_t page : {1, 2, 53, 64, 69, 256, 576, 1 << 20}) {
    expect_addresses<Fp8DsMla>(page, page * 584 + 8);
    expect_addresses<Fp8V32>(page, page * 656);
    expect_addresses<PackedBf16>(page, page * 1024);
  }
  expect_addresses<Fp8DsMla>(64, 1435968);
  expect_addresses<UniformFp8<Fp8::kE4m3fn>>(1, 515);
  expect_addresses<Bf16<576>>(1, 1152);
  expect_addresses<DenseFp8<Fp8::kE4m3fnuz>>(1, 576);
}

TEST(Args, AlignmentIsThatOfEveryRecord) {
  Problem problem;
  problem.source_count = 1;
  problem.dim = 512;
  problem.source[0] = {.format = PASA_KV_FP8_DS_MLA, .page_tokens = 64};
  Plan plan;
  const auto alignment = [&](std::uintptr_t base, std::int64_t stride) {
    problem.sources[0].kv = reinterpret_cast<const std::uint8_t*>(base);
    problem.sources[0].page_stride = stride;
    return make_args(problem, plan, nullptr).source[0].alignment;
  };
  EXPECT_EQ(alignment(4096, 64 * 584), 16);
  EXPECT_EQ(alignment(4096, 64 * 584 + 8), 8);
  EXPECT_EQ(alignment(4096 + 8, 64 * 584), 8);
  problem.source[0] = {.format = PASA_KV_FP8_E4M3FN, .page_tokens = 1};
  EXPECT_EQ(alignment(4096, 512), 16);
  EXPECT_EQ(alignment(4097, 512), 1);
  EXPECT_EQ(alignment(4096, 514), 2);
  problem.dim = 576;
  problem.sources[0].pe = reinterpret_cast<const std::uint8_t*>(std::uintptr_t{8192});
  problem.sources[0].pe_stride = 64;
  EXPECT_EQ(alignment(4096, 512), 16);
  problem.sources[0].pe_stride = 68;
  EXPECT_EQ(alignment(4096, 512), 4);
  problem.sources[0].pe += 2;
  EXPECT_EQ(alignment(4096, 512), 2);
}

TEST(Validity, IsTheIntervalFromZero) {
  SourceArgs source{};
  for (const std::uint32_t slots : {0u, 1u, 7u, static_cast<std::uint32_t>(INT32_MAX)}) {
    source.slots = slots;
    for (const std::int32_t slot : {INT_MIN, -123456, -1, 0, 1, 6, 7, 8, INT_MAX - 1, INT_MAX}) {
      EXPECT_EQ(is_valid(source, slot), slot >= 0 && static_cast<std::uint32_t>(slot) < slots)
          << slot << " of " << slots;
    }
  }
}

}  // namespace
}  // namespace pasa::gpu
