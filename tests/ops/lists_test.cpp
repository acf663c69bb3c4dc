// Addresses and index lists: the worked examples of the specification, and every builder against a model that writes rows as
// vectors, over random tables with holes, bad requests, padding and lengths of every kind, in both output forms.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/ops/model.h"

namespace pasa::test {
namespace {

using Row = std::vector<std::int32_t>;
using I32 = std::vector<std::int32_t>;
using I64 = std::vector<std::int64_t>;
constexpr std::int32_t kStale = 0x5a5a5a5a;

// Runs a builder ragged and rectangular and expects the model's rows. `longest`: the capacity that the API asks for.
template <typename Args>
void expect_rows(Args args, pasa_status (*build)(const Args*, pasa_stream), const std::vector<Row>& rows,
                 std::int64_t longest) {
  const auto count = static_cast<std::int64_t>(rows.size());
  I32 ragged, indptr = {0}, lengths;
  for (const Row& row : rows) {
    ragged.insert(ragged.end(), row.begin(), row.end());
    indptr.push_back(static_cast<std::int32_t>(ragged.size()));
    lengths.push_back(static_cast<std::int32_t>(row.size()));
  }
  I32 got(static_cast<std::size_t>(count * longest + 3), kStale), got_indptr(indptr.size(), kStale),
      got_lengths(lengths.size(), kStale);
  args.lists = {view(got), view(got_indptr), view(got_lengths)};
  ASSERT_EQ(build(&args, nullptr), PASA_OK) << pasa_last_error();
  EXPECT_EQ(got_indptr, indptr);
  EXPECT_EQ(got_lengths, lengths);
  EXPECT_EQ(I32(got.begin(), got.begin() + indptr.back()), ragged);
  EXPECT_TRUE(std::all_of(got.begin() + indptr.back(), got.end(), [](std::int32_t x) { return x == kStale; }));

  const std::int64_t width = longest + 5, stride = width + 2;
  I32 table(static_cast<std::size_t>(std::max<std::int64_t>(count, 1) * stride), kStale), expected = table;
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const auto begin = expected.begin() + static_cast<std::int64_t>(t) * stride;
    std::fill(begin, begin + width, -1);
    std::copy(rows[t].begin(), rows[t].end(), begin);
  }
  std::fill(got_lengths.begin(), got_lengths.end(), kStale);
  args.lists = {view(table, {count, width}), {}, view(got_lengths)};
  args.lists.indices.stride[0] = stride;
  ASSERT_EQ(build(&args, nullptr), PASA_OK) << pasa_last_error();
  EXPECT_EQ(table, expected);
  EXPECT_EQ(got_lengths, lengths);
}

// ---- models

struct Table {
  I32 entries;
  std::int64_t requests, columns, stride, block, blocks;  // blocks 0: not known
  std::int64_t base = 0;
  bool ring = false;

  std::int64_t slot(std::int64_t request, std::int64_t e) const {
    if (request < 0 || request >= requests || e < 0) return -1;
    const std::int64_t column = ring ? e / block % columns : e / block;
    if (column >= columns) return -1;
    const std::int64_t b = entries[static_cast<std::size_t>(request * stride + column)];
    if (b < 0 || (blocks > 0 && b >= blocks)) return -1;
    const std::int64_t slot = base + b * block + e % block;
    return slot > INT32_MAX ? -1 : slot;
  }
  pasa_paging paging() const {
    pasa_paging p{};
    p.block_table = view(entries, {requests, columns});
    p.block_table.stride[0] = stride;
    p.block_size = block;
    p.num_blocks = blocks;
    p.base = base;
    p.ring = ring;
    return p;
  }
};

struct Random {
  std::mt19937 engine;
  explicit Random(std::uint32_t seed) : engine(seed) {}
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  }
  std::int32_t wild() {
    constexpr std::int32_t values[] = {INT32_MIN, -123456, -1, 0, 114514, 1919810, 2147480000, INT32_MAX};
    return values[in(0, 7)];
  }
  I32 vector(std::int64_t n, std::int64_t low, std::int64_t high, int wild_percent) {
    I32 result;
    for (std::int64_t i = 0; i < n; ++i) {
      result.push_back(in(1, 100) <= wild_percent ? wild() : static_cast<std::int32_t>(in(low, high)));
    }
    return result;
  }
  Table table() {
    Table t{{}, in(1, 6), in(1, 9), 0, in(1, 3) == 1 ? 1 : in(1, 70), 0};
    t.stride = t.columns + in(0, 3);
    if (in(0, 1)) t.blocks = in(1, 300);
    t.base = in(0, 2) ? 0 : in(1, 1000);
    t.ring = in(0, 4) == 0;
    t.entries = vector(t.requests * t.stride, 0, 250, 10);
    return t;
  }
};

// ---- addresses

TEST(Slots, WorkedExamples) {
  const Table table{{7, 3, 9}, 1, 3, 3, 256, 0}, compressed4{{7, 3, 9}, 1, 3, 3, 64, 0},
      compressed128{{7, 3, 9}, 1, 3, 3, 2, 0};
  const auto run = [](const Table& t, const I64& positions, std::int64_t ratio) {
    I64 slots(positions.size(), kStale);
    const I32 requests(positions.size(), 0);
    auto args = make<pasa_slots_args>();
    args.positions = view(positions);
    args.token_to_req = view(requests);
    args.paging = t.paging();
    args.ratio = ratio;
    args.slots = view(slots);
    EXPECT_EQ(pasa_slots(&args, nullptr), PASA_OK) << pasa_last_error();
    return slots;
  };
  EXPECT_EQ(run(table, {0, 300, 600, 768, -1}, 0), (I64{1792, 812, 2392, -1, -1}));
  EXPECT_EQ(run(compressed4, {2, 3, 299, 255}, 4), (I64{-1, 448, 202, 511}));
  EXPECT_EQ(run(compressed128, {127, 255, 383, 382}, 128), (I64{14, 15, 6, -1}));
}

// ATOM's unified pool: a ring of window + speculative rows per request slot, compressed rows behind all rings.
TEST(Slots, RingAndUnifiedPool) {
  Table ring{{2, 5}, 2, 1, 1, 131, 0};
  ring.ring = true;
  Table compressed{{4, 9, 1, 1}, 2, 2, 2, 32, 0};
  compressed.base = 10000;
  const I32 positions = {0, 130, 131, 1000, 40, 33};
  for (const Table* t : {&ring, &compressed}) {
    I32 slots(6, kStale);
    const I32 requests = {0, 1, 0, 1, 0, 1};
    auto args = make<pasa_slots_args>();
    args.positions = view(positions);
    args.token_to_req = view(requests);
    args.paging = t->paging();
    args.slots = view(slots);
    ASSERT_EQ(pasa_slots(&args, nullptr), PASA_OK) << pasa_last_error();
    const I32 expected = t == &ring ? I32{262, 655 + 130, 262, 655 + 1000 % 131, 262 + 40, 655 + 33}
                                    : I32{10128, -1, -1, -1, 10000 + 9 * 32 + 8, 10000 + 32 + 1};
    EXPECT_EQ(slots, expected);
  }
}

TEST(Slots, MatchTheModel) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    const Table table = random.table();
    const std::int64_t rows = random.in(0, 40), width = random.in(1, 5), ratio = round % 3 ? random.in(0, 5) : 128;
    const I32 positions = random.vector(rows * width, -2, table.columns * table.block * 5, 5);
    const I32 requests = random.vector(rows, -1, table.requests, 3);
    I32 slots(positions.size(), kStale), expected;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const std::int64_t p = positions[i], r = std::max<std::int64_t>(ratio, 1);
      const bool complete = p >= 0 && (p + 1) % r == 0;
      expected.push_back(
          static_cast<std::int32_t>(complete ? table.slot(requests[i / static_cast<std::size_t>(width)], p / r) : -1));
    }
    auto args = make<pasa_slots_args>();
    args.positions = view(positions, {rows, width});
    args.token_to_req = view(requests);
    args.paging = table.paging();
    args.ratio = ratio;
    args.slots = view(slots, {rows, width});
    ASSERT_EQ(pasa_slots(&args, nullptr), PASA_OK) << pasa_last_error();
    ASSERT_EQ(slots, expected) << round;
  }
}

TEST(TokenCounts, TheTable) {
  struct Line {
    std::int32_t context, window, pro, flash, all, capped;
  };
  const Line lines[] = {{3, 3, 0, 0, 0, 0},
                        {4, 4, 1, 1, 0, 0},
                        {127, 127, 31, 31, 0, 0},
                        {128, 128, 32, 32, 1, 1},
                        {1024, 128, 256, 256, 8, 8},
                        {8192, 128, 1024, 512, 64, 64},
                        {131072, 128, 1024, 512, 1024, 1024},
                        {1048576, 128, 1024, 512, 8192, 1024}};
  I64 positions = {-1, INT64_MIN};
  for (const Line& line : lines) positions.push_back(line.context - 1);
  const auto run = [&](std::int64_t ratio, std::int64_t topk, std::int64_t width, std::int32_t Line::*column) {
    I32 window(positions.size(), kStale), compressed(positions.size(), kStale), expected_window = {0, 0},
                                                                                expected = {0, 0};
    for (const Line& line : lines) {
      expected_window.push_back(line.window);
      expected.push_back(column ? line.*column : 0);
    }
    auto args = make<pasa_token_counts_args>();
    args.positions = view(positions);
    args.window = 128;
    args.compress_ratio = ratio;
    args.topk = topk;
    args.width = width;
    args.n_window = view(window);
    args.n_compressed = view(compressed);
    ASSERT_EQ(pasa_token_counts(&args, nullptr), PASA_OK) << pasa_last_error();
    EXPECT_EQ(window, expected_window);
    EXPECT_EQ(compressed, expected);
  };
  run(4, 1024, 0, &Line::pro);
  run(4, 512, 0, &Line::flash);
  run(128, 0, 0, &Line::all);
  run(128, 0, 1024, &Line::capped);
  run(0, 1024, 0, nullptr);
  run(1, 1024, 0, nullptr);
}

// ---- (a)

TEST(ListDense, WorkedExample) {
  const I32 indices = {5, 6, 7, 8, -1, 9, 1, 2, 3}, lengths = {2, 3, 9};
  auto args = make<pasa_list_dense_args>();
  args.indices = view(indices, {3, 3});
  args.lengths = view(lengths);
  args.num_rows = 9;
  args.has_num_rows = 1;
  expect_rows(args, pasa_list_dense, {{5, 6}, {8, -1, -1}, {1, 2, 3}}, 3);
}

TEST(ListDense, MatchesTheModel) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t rows = random.in(0, 60), width = round % 7 ? random.in(1, 40) : 0, limit = random.in(-1, 100);
    const I32 indices = random.vector(rows * width, -1, 99, 5), lengths = random.vector(rows, 0, width, 10);
    std::vector<Row> expected;
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int64_t count = std::clamp<std::int64_t>(lengths[static_cast<std::size_t>(t)], 0, width);
      Row row(indices.begin() + t * width, indices.begin() + t * width + count);
      for (std::int32_t& index : row) index = limit >= 0 && (index < 0 || index >= limit) ? -1 : index;
      expected.push_back(row);
    }
    auto args = make<pasa_list_dense_args>();
    args.indices = rows % 2 ? view(indices, {rows, width}) : view(indices, {rows / 2, 2, width});
    args.lengths = rows % 2 ? view(lengths) : view(lengths, {rows / 2, 2});
    args.num_rows = limit;
    args.has_num_rows = limit >= 0;
    expect_rows(args, pasa_list_dense, expected, width);
    if (HasFailure()) FAIL() << round;
  }
}

// ---- (b)

TEST(ListTopk, WorkedExamples) {
  I32 topk = {0, 3, 4, -1, 5, 8, -1, -1, 2, 7, 9, -1};
  const I32 requests = {0, 1, 1};
  const std::vector<std::uint8_t> valid = {1, 0, 1};
  const Table table{{10, 11, 12, 20, 21, 22}, 2, 3, 3, 4, 0};
  auto args = make<pasa_list_topk_args>();
  args.topk_indices = view(topk, {3, 4});
  args.token_to_req = view(requests);
  args.is_valid = view(valid);
  args.paging = table.paging();
  expect_rows(args, pasa_list_topk, {{40, 43, 44}, {}, {82, 87, 89}}, 4);
  topk[1] = -1;
  expect_rows(args, pasa_list_topk, {{40, 44}, {}, {82, 87, 89}}, 4);
}

TEST(ListTopk, MatchesTheModel) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const Table table = random.table();
    const std::int64_t rows = random.in(0, 50), width = round % 9 ? random.in(1, 90) : 1100,
                       stride = width + random.in(0, 4);
    const I32 topk = random.vector(rows * stride, -1, table.columns * table.block + 3, 5),
              requests = random.vector(rows, -1, table.requests, 2);
    std::vector<std::uint8_t> valid;
    for (std::int64_t t = 0; t < rows; ++t)
      valid.push_back(random.in(0, 5) ? static_cast<std::uint8_t>(random.in(1, 255)) : 0);
    std::vector<Row> expected;
    for (std::int64_t t = 0; t < rows; ++t) {
      Row row;
      for (std::int64_t j = 0; j < width && valid[static_cast<std::size_t>(t)]; ++j) {
        const std::int64_t slot =
            table.slot(requests[static_cast<std::size_t>(t)], topk[static_cast<std::size_t>(t * stride + j)]);
        if (slot >= 0) row.push_back(static_cast<std::int32_t>(slot));
      }
      expected.push_back(row);
    }
    auto args = make<pasa_list_topk_args>();
    args.topk_indices = view(topk, {rows, width});
    args.topk_indices.stride[0] = stride;
    args.token_to_req = view(requests);
    args.is_valid = view(valid);
    args.paging = table.paging();
    expect_rows(args, pasa_list_topk, expected, width);
    if (HasFailure()) FAIL() << round;
  }
}

// ---- (c)

struct CombineCase {
  I32 starts, seq, gather, topk_indices;
  std::int64_t rows, width, window, ratio, topk, M, N;
  pasa_list_combine_args args() const {
    auto a = make<pasa_list_combine_args>();
    a.topk_indices = view(topk_indices, {rows, width});
    a.query_start_loc = view(starts);
    a.seq_lens = view(seq);
    a.gather_lens = view(gather);
    a.window = window;
    a.ratio = ratio;
    a.topk = topk;
    a.rows_per_request = M;
    a.compressed_rows = N;
    return a;
  }
  std::vector<Row> model() const {
    std::vector<Row> result(static_cast<std::size_t>(rows));
    for (std::size_t r = 0; r < seq.size(); ++r) {
      for (std::int64_t t = starts[r] - starts[0]; t < starts[r + 1] - starts[0] && t < rows; ++t) {
        const std::int64_t i = t - (starts[r] - starts[0]), qlen = starts[r + 1] - starts[r], pos = seq[r] - qlen + i;
        if (pos < 0) continue;
        Row& row = result[static_cast<std::size_t>(t)];
        const std::int64_t begin = static_cast<std::int64_t>(r) * M,
                           n_top = topk > 0 ? std::min((pos + 1) / ratio, topk) : 0;
        const std::int64_t n_swa = std::min(pos + 1, window);
        for (std::int64_t j = 0; j < n_top; ++j) {
          const std::int64_t entry = j < width ? topk_indices[static_cast<std::size_t>(t * width + j)] : -1;
          row.push_back(static_cast<std::int32_t>(entry < 0 || entry >= N ? -1 : begin + entry));
        }
        for (std::int64_t p = pos - n_swa + 1; p <= pos; ++p) {
          const std::int64_t gathered = p - (seq[r] - gather[r]);
          row.push_back(static_cast<std::int32_t>(gathered < 0 || N + gathered >= M ? -1 : begin + N + gathered));
        }
      }
    }
    return result;
  }
};

TEST(ListCombine, WorkedExamples) {
  CombineCase c{{0, 3, 5}, {6, 4}, {5, 4}, {}, 5, 4, 3, 2, 4, 240, 200};
  for (const int base : {100, 110, 120, 130, 140}) {
    for (int j = 0; j < 4; ++j) c.topk_indices.push_back(base + j);
  }
  expect_rows(c.args(), pasa_list_combine,
              {{100, 101, 200, 201, 202},
               {110, 111, 201, 202, 203},
               {120, 121, 122, 202, 203, 204},
               {370, 440, 441, 442},
               {380, 381, 441, 442, 443}},
              7);
  c.starts = {17, 20, 22};  // as of a chunk
  c.gather = {4, 3};        // too little: the oldest key of rows 0 and 3 is missing
  expect_rows(c.args(), pasa_list_combine,
              {{100, 101, -1, 200, 201},
               {110, 111, 200, 201, 202},
               {120, 121, 122, 201, 202, 203},
               {370, -1, 440, 441},
               {380, 381, 440, 441, 442}},
              7);
}

TEST(ListCombine, MatchesTheModel) {
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    CombineCase c{};
    const std::int64_t requests = random.in(0, 7);
    c.starts = {static_cast<std::int32_t>(random.in(0, 1) * random.in(0, 1000))};
    c.window = random.in(1, 20);
    for (std::int64_t r = 0; r < requests; ++r) {
      const auto qlen = static_cast<std::int32_t>(random.in(0, 3) ? random.in(0, 12) : 0);
      c.starts.push_back(c.starts.back() + qlen);
      c.seq.push_back(static_cast<std::int32_t>(random.in(0, 60)));  // now and then shorter than its own queries
      const std::int64_t usual =
          qlen + std::min<std::int64_t>(std::max<std::int64_t>(c.seq.back() - qlen, 0), c.window - 1);
      c.gather.push_back(static_cast<std::int32_t>(random.in(0, 3) ? usual : random.in(0, 70)));
    }
    c.rows = c.starts.back() - c.starts[0] + random.in(0, 2);  // rows beyond the last request are empty
    c.width = random.in(1, 9);
    c.ratio = random.in(1, 5);
    c.topk = random.in(0, 12);
    c.N = random.in(0, 30);
    c.M = c.N + random.in(0, 80);
    c.topk_indices = random.vector(c.rows * c.width, -1, c.N + 2, 5);
    expect_rows(c.args(), pasa_list_combine, c.model(), c.topk + c.window);
    if (HasFailure()) FAIL() << round;
  }
}

TEST(ListCombine, WindowOnly) {
  const CombineCase c{{0, 2}, {5}, {5}, {}, 2, 0, 3, 1, 0, 20, 0};
  auto args = c.args();
  args.topk_indices = pasa_tensor{};
  expect_rows(args, pasa_list_combine, {{1, 2, 3}, {2, 3, 4}}, 3);
}

// ---- (d), (e)

TEST(ListWindow, WorkedExample) {
  const I64 positions = {5};
  const Table table{{7, 3}, 1, 2, 2, 4, 0};
  auto args = make<pasa_list_window_args>();
  args.queries.positions = view(positions);
  args.paging = table.paging();
  args.window = 4;
  expect_rows(args, pasa_list_window, {{30, 31, 12, 13}}, 4);
}

struct QueryCase {
  Table table;
  I32 positions, requests;
  std::vector<std::uint8_t> valid;
  explicit QueryCase(Random& random) : table(random.table()) {
    const std::int64_t rows = random.in(0, 40);
    positions = random.vector(rows, -2, table.columns * table.block + 4, 3);
    for (std::int32_t& p : positions) p = p > 100000 ? -1 : p;  // the model counts one by one
    requests = random.vector(rows, -1, table.requests, 2);
    for (std::int64_t t = 0; t < rows; ++t) valid.push_back(random.in(0, 5) != 0);
  }
  pasa_queries queries() const { return {view(positions), view(requests), view(valid)}; }
  // The entries [begin, end) of row t.
  Row row(std::size_t t, std::int64_t begin, std::int64_t end) const {
    Row row;
    for (std::int64_t e = begin; e < end; ++e) row.push_back(static_cast<std::int32_t>(table.slot(requests[t], e)));
    return row;
  }
};

TEST(ListWindow, MatchesTheModel) {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    const QueryCase c(random);
    const std::int64_t window = random.in(1, 130);
    std::vector<Row> expected;
    for (std::size_t t = 0; t < c.positions.size(); ++t) {
      const std::int64_t position = c.valid[t] ? c.positions[t] : -1;
      expected.push_back(position < 0 ? Row{}
                                      : c.row(t, std::max<std::int64_t>(position - window + 1, 0), position + 1));
    }
    auto args = make<pasa_list_window_args>();
    args.queries = c.queries();
    args.paging = c.table.paging();
    args.window = window;
    expect_rows(args, pasa_list_window, expected, window);
    if (HasFailure()) FAIL() << round;
  }
}

TEST(ListCompressed, MatchesTheModel) {
  Random random(6);
  for (int round = 0; round < 200; ++round) {
    const QueryCase c(random);
    const std::int64_t ratio = round % 2 ? 128 : random.in(1, 9), width = random.in(0, 50);
    std::vector<Row> slots, numbers;
    for (std::size_t t = 0; t < c.positions.size(); ++t) {
      const std::int64_t seen = c.valid[t] && c.positions[t] >= 0 ? std::min((c.positions[t] + 1) / ratio, width) : 0;
      slots.push_back(c.row(t, 0, seen));
      numbers.emplace_back();
      for (std::int64_t e = 0; e < seen; ++e) numbers.back().push_back(static_cast<std::int32_t>(e));
    }
    auto args = make<pasa_list_compressed_args>();
    args.queries = c.queries();
    args.paging = c.table.paging();
    args.ratio = ratio;
    args.width = width;
    expect_rows(args, pasa_list_compressed, slots, width);
    args.paging = pasa_paging{};
    args.queries.token_to_req = pasa_tensor{};
    expect_rows(args, pasa_list_compressed, numbers, width);
    if (HasFailure()) FAIL() << round;
  }
}

// Many rows: the part of a running sum that small cases do not reach.
TEST(ListDense, ManyRows) {
  Random random(7);
  const std::int64_t rows = 70001, width = 3;
  const I32 indices = random.vector(rows * width, 0, 1 << 20, 0), lengths = random.vector(rows, 0, width, 0);
  std::vector<Row> expected;
  for (std::int64_t t = 0; t < rows; ++t) {
    expected.emplace_back(indices.begin() + t * width,
                          indices.begin() + t * width + lengths[static_cast<std::size_t>(t)]);
  }
  auto args = make<pasa_list_dense_args>();
  args.indices = view(indices, {rows, width});
  args.lengths = view(lengths);
  expect_rows(args, pasa_list_dense, expected, width);
}

}  // namespace
}  // namespace pasa::test
