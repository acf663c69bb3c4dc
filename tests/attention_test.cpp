// Every kernel x every case, against the float64 reference; then what must hold between two runs without any reference:
// splits, partials, determinism, layouts that mean the same, hints that change nothing, addresses beyond 32 bits.
//
// The cases are the quick list of harness/cases, or, with PASA_FULL=1 in the environment, all grids. Each case computes its
// reference once and shows it to every kernel that this machine runs; the others are reported as skipped, with the reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/number.h"
#include "harness/case.h"
#include "harness/cases.h"
#include "harness/compare.h"
#include "harness/data.h"
#include "tests/kernels.h"

namespace pasa {

// Readable names in messages: the description of the case.
std::ostream& operator<<(std::ostream& out, const TestCase& test) { return out << to_text(test.spec); }

namespace {

using test::Kernel;
using test::kernels;
using test::output_bits;
using test::plan_on;
using test::Ran;
using test::refusal_of;
using test::run_on;
using test::runnable_kernels;

bool full_wanted() {
  const char* value = std::getenv("PASA_FULL");
  return value != nullptr && std::string(value) != "0";
}

const std::vector<TestCase>& selected_cases() {
  static const std::vector<TestCase> cases = full_wanted() ? full_cases() : quick_cases();
  return cases;
}

// The reference as a kernel computes what it is compared with: small cases prove its rounding and stores. An emulated kernel
// pays for every instruction: the larger cases are for the kernels it stands for.
bool worth_running(const Kernel& kernel, const Case& c) {
  const double most = kernel.name == "reference" ? 5e7 : kernel.most_flops;
  return full_wanted() || count_work(c.problem).flops < most;
}

// ---- the machine's kernels

class Available : public testing::TestWithParam<Kernel> {};
TEST_P(Available, OnThisMachine) {
  if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().name << ": " << GetParam().missing;
}
std::string kernel_name(const testing::TestParamInfo<Kernel>& param) {
  std::string name = param.param.name;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Kernels, Available, testing::ValuesIn(kernels()), kernel_name);

TEST(Counts, ArePrinted) {
  std::size_t comparisons = 0;
  for (const TestCase& test : selected_cases()) comparisons += test.run_only ? 0 : runnable_kernels().size();
  std::printf("%zu cases (%s), %zu kernels here: up to %zu comparisons\n", selected_cases().size(),
              full_wanted() ? "full" : "quick", runnable_kernels().size(), comparisons);
  for (const Grid& grid : grids()) {
    std::printf("  grid %-24s %6zu cases\n", std::string(grid.name).c_str(), grid.cases().size());
    EXPECT_FALSE(grid.cases().empty()) << grid.name;
  }
  EXPECT_FALSE(quick_cases().empty());
  EXPECT_GE(full_cases().size(), quick_cases().size());
}

// ---- kernel x case

// With PASA_SKIP_REDUCE and more than one split: the partials, merged by pasa_reduce into the case's out and lse.
void run_and_reduce(const Kernel& kernel, Case& c, int splits) {
  const pasa_problem direct = c.problem;
  c.problem.out = c.problem.lse = c.problem.max_logits = pasa_tensor{};
  add_partials(c, splits);
  const Ran ran = run_on(kernel, c);
  ASSERT_TRUE(ran.partial);
  ASSERT_EQ(ran.splits, splits);
  pasa_reduce_problem reduce{};
  reduce.struct_size = sizeof reduce;
  reduce.acc = c.problem.acc;
  reduce.m = c.problem.m;
  reduce.l = c.problem.l;
  reduce.attn_sink = c.problem.attn_sink;
  reduce.out = direct.out;
  reduce.lse = direct.lse;
  c.problem = direct;
  c.problem.max_logits = pasa_tensor{};  // no part of the partials
  poison_outputs(c);
  ASSERT_EQ(pasa_reduce(&reduce, nullptr), PASA_OK) << pasa_last_error();
}

class EveryKernel : public testing::TestWithParam<TestCase> {};

// No row still holds the poison (0xff in every byte).
void expect_every_row_written(const Case& c) {
  const pasa_tensor& out = c.problem.out;
  const auto* base = static_cast<const std::uint16_t*>(out.data);
  for (std::int64_t t = 0; t < c.tokens(); ++t) {
    for (std::int64_t h = 0; h < c.heads(); ++h) {
      const std::uint16_t* row = base + t * out.stride[0] + h * out.stride[1];
      ASSERT_FALSE(std::all_of(row, row + out.shape[2], [](std::uint16_t word) { return word == 0xffff; }))
          << "row " << t << ", head " << h << " was not written";
    }
  }
}

TEST_P(EveryKernel, MatchesTheReference) {
  const TestCase& test = GetParam();
  Case c = make_case(test.spec);
  const Reference want = test.run_only ? Reference{} : compute_reference(c.problem);
  for (const Kernel& kernel : runnable_kernels()) {
    SCOPED_TRACE(kernel.name);
    if (!worth_running(kernel, c) || (test.run_only && kernel.name == "reference")) continue;
    if (const std::string reason = refusal_of(kernel, c.problem); !reason.empty()) {
      std::printf("  %s declines: %s\n", kernel.name.c_str(), reason.c_str());
      continue;
    }
    const Ran planned = plan_on(kernel, c.problem);
    if (planned.partial) {
      run_and_reduce(kernel, c, planned.splits);
    } else {
      run_on(kernel, c);
    }
    if (test.run_only) {
      expect_every_row_written(c);
      continue;
    }
    const Comparison comparison = compare(c.problem, want, find_tolerance(test.tolerance));
    EXPECT_TRUE(comparison.ok()) << comparison.text();
    EXPECT_TRUE(gaps_untouched(c)) << "bytes between the output rows were written";
    if (kernel.name == "reference" || planned.partial) continue;
    const auto first = output_bits(c);
    run_on(kernel, c);
    EXPECT_TRUE(first == output_bits(c)) << "a second run gives other bits";
  }
}

std::string case_name(const testing::TestParamInfo<TestCase>& param) {
  std::string name = to_text(param.param.spec);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return std::to_string(param.index) + "_" + name;
}
INSTANTIATE_TEST_SUITE_P(Cases, EveryKernel, testing::ValuesIn(selected_cases()), case_name);

// ---- what holds on each kernel, on small problems

class OnKernel : public testing::TestWithParam<Kernel> {
 protected:
  // A kernel that does not split rows is asked not to.
  static Ran run(Case& c) {
    const std::int32_t splits = c.problem.kv_splits;
    if (splits > 1 && !serves(c)) c.problem.kv_splits = 1;
    const Ran ran = run_on(GetParam(), c);
    c.problem.kv_splits = splits;
    return ran;
  }
  static bool serves(const Case& c) { return refusal_of(GetParam(), c.problem).empty(); }
};
INSTANTIATE_TEST_SUITE_P(Kernels, OnKernel, testing::ValuesIn(runnable_kernels()), kernel_name);

SourceSpec source(pasa_kv_format format, std::int64_t len, std::int64_t page = 64) {
  SourceSpec spec;
  spec.format = format;
  spec.len = len;
  spec.page = page;
  return spec;
}

CaseSpec one_source(pasa_kv_format format, std::int64_t tokens, int heads, std::int64_t len) {
  CaseSpec spec;
  spec.tokens = tokens;
  spec.heads = heads;
  spec.source[0] = source(format, len, format == PASA_KV_BF16 || format == PASA_KV_F16 ? 1 : 16);
  if (format == PASA_KV_F16) spec.q = PASA_F16;
  return spec;
}

CaseSpec two_sources(pasa_kv_format main, pasa_kv_format extra, std::int64_t tokens, int heads, std::int64_t main_len,
                     std::int64_t extra_len) {
  CaseSpec spec = one_source(main, tokens, heads, main_len);
  spec.source_count = 2;
  spec.source[1] = one_source(extra, tokens, heads, extra_len).source[0];
  return spec;
}

// Two sources, of formats that differ if the kernel takes that.
CaseSpec two_formats(const Kernel& kernel, pasa_kv_format main, pasa_kv_format extra, std::int64_t tokens, int heads,
                     std::int64_t main_len, std::int64_t extra_len) {
  for (const pasa_kv_format second : {extra, main}) {
    const CaseSpec spec = two_sources(main, second, tokens, heads, main_len, extra_len);
    if (refusal_of(kernel, make_case(spec).problem).empty()) return spec;
  }
  return two_sources(extra, extra, tokens, heads, main_len, extra_len);
}

void expect_reference(const Case& c, const Reference& want) {
  const Comparison comparison = compare(c.problem, want, default_tolerance(c.problem));
  EXPECT_TRUE(comparison.ok()) << comparison.text();
}

float out_at(const Case& c, std::int64_t t, std::int64_t h, std::int64_t d) {
  const pasa_tensor& out = c.problem.out;
  const std::uint16_t word = static_cast<const std::uint16_t*>(out.data)[t * out.stride[0] + h * out.stride[1] + d];
  return out.dtype == PASA_BF16 ? bf16_to_float(word) : f16_to_float(word);
}
float lse_at(const Case& c, std::int64_t t, std::int64_t h) {
  const pasa_tensor& lse = c.problem.lse;
  return static_cast<const float*>(lse.data)[t * lse.stride[0] + h * lse.stride[1]];
}
std::uint16_t* q_row(const Case& c, std::int64_t t, std::int64_t h) {
  const pasa_tensor& q = c.problem.q;
  return static_cast<std::uint16_t*>(q.data) + t * q.stride[0] + h * q.stride[1];
}
std::int32_t* indices_of(const pasa_source& s) { return static_cast<std::int32_t*>(s.indices.data); }
std::int32_t* indptr_of(const pasa_source& s) { return static_cast<std::int32_t*>(s.indptr.data); }

TEST_P(OnKernel, ForcedSplitsAgree) {
  CaseSpec spec = two_formats(GetParam(), PASA_KV_FP8_DS_MLA, PASA_KV_PACKED_BF16, 2, 8, 70, 130);
  spec.source[1].lengths = Lengths::kEdges;
  Case c = make_case(spec);
  const Reference want = compute_reference(c.problem);
  for (const int splits : {1, 2, 3, 7, 16, 64, 256}) {
    SCOPED_TRACE(splits);
    c.problem.kv_splits = splits;
    run(c);
    expect_reference(c, want);
  }
}

// acc, m, l of every split are written; a split without keys is (0, -inf, 0); merged they are the direct result.
TEST_P(OnKernel, PartialsReduceToTheDirectResult) {
  for (const int splits : {2, 3, 7, 64, 256}) {
    SCOPED_TRACE(splits);
    CaseSpec spec = two_formats(GetParam(), PASA_KV_FP8_E4M3FN, PASA_KV_BF16, 4, 3, 40, 9);
    spec.sink = Sink::kMixed;
    spec.source[0].lengths = Lengths::kFrom0;
    Case c = make_case(spec);
    const Reference want = compute_reference(c.problem);
    c.problem.flags |= PASA_SKIP_REDUCE;
    c.problem.kv_splits = splits;
    if (!serves(c)) GTEST_SKIP() << refusal_of(GetParam(), c.problem);
    const pasa_problem direct = c.problem;
    c.problem.out = c.problem.lse = pasa_tensor{};
    add_partials(c, splits);
    run(c);
    const auto* acc = static_cast<const float*>(c.problem.acc.data);
    const auto* m = static_cast<const float*>(c.problem.m.data);
    const auto* l = static_cast<const float*>(c.problem.l.data);
    int empty = 0;
    for (std::int64_t i = 0; i < 4 * splits * 3; ++i) {
      const bool zero = std::all_of(acc + i * 512, acc + (i + 1) * 512, [](float x) { return x == 0; });
      ASSERT_FALSE(std::isnan(m[i]) || std::isnan(l[i]) || std::isnan(acc[i * 512 + 511])) << "split row " << i;
      if (l[i] != 0) {
        ASSERT_GE(l[i], 0.99f) << "the largest score weighs 1";
        continue;
      }
      ASSERT_EQ(m[i], -kInfinity);
      ASSERT_TRUE(zero);
      ++empty;
    }
    if (splits == 256) {
      EXPECT_GT(empty, 4 * 3 * 200);
    }

    c.problem = direct;
    run_and_reduce(GetParam(), c, splits);
    expect_reference(c, want);
  }
}

TEST_P(OnKernel, ThreadsDoNotChangeBitsWhenSplitsAreFixed) {
  if (GetParam().device != "cpu") GTEST_SKIP() << "threads are the CPU's";
  for (const int splits : {1, 3}) {
    Case c = make_case(two_sources(PASA_KV_FP8_DS_MLA, PASA_KV_PACKED_BF16, 5, 24, 60, 90));
    c.problem.kv_splits = splits;
    c.problem.threads = 1;
    run(c);
    const auto want = output_bits(c);
    for (const int threads : {2, 3, 7}) {
      c.problem.threads = threads;
      run(c);
      EXPECT_TRUE(want == output_bits(c)) << splits << " splits, " << threads << " threads";
    }
  }
}

// A row's bits do not depend on the rows beside it once S is fixed.
TEST_P(OnKernel, BatchCompositionDoesNotChangeARow) {
  for (const int splits : {1, 2}) {
    CaseSpec spec = one_source(PASA_KV_FP8_DS_MLA, 5, 16, 200);
    spec.source[0].lengths = Lengths::kFrom1;
    Case c = make_case(spec);
    c.problem.kv_splits = splits;
    run(c);
    std::vector<std::vector<std::byte>> rows;
    const pasa_problem whole = c.problem;
    const auto view_row = [&](std::int64_t t) {
      c.problem = whole;
      for (pasa_tensor* tensor : {&c.problem.q, &c.problem.out, &c.problem.lse}) {
        tensor->data = static_cast<std::byte*>(tensor->data) +
                       t * tensor->stride[0] * static_cast<std::int64_t>(dtype_bytes(tensor->dtype));
        tensor->shape[0] = 1;
      }
      c.problem.main.indptr.data = indptr_of(whole.main) + t;
      c.problem.main.indptr.shape[0] = 2;
    };
    for (std::int64_t t = 0; t < 5; ++t) {
      view_row(t);
      rows.push_back(output_bits(c));
    }
    for (std::int64_t t = 0; t < 5; ++t) {
      view_row(t);
      run(c);
      EXPECT_TRUE(rows[static_cast<std::size_t>(t)] == output_bits(c)) << "row " << t << ", " << splits << " splits";
    }
    c.problem = whole;
  }
}

// Rectangular lists with lengths, and the same entries as CSR.
TEST_P(OnKernel, RectangularEqualsRagged) {
  CaseSpec spec = one_source(PASA_KV_PACKED_BF16, 6, 8, 70);
  spec.source[0].lists = Lists::kRectLengths;
  spec.source[0].lengths = Lengths::kFrom0;
  spec.source[0].invalid = 0.1;
  Case c = make_case(spec);
  c.problem.kv_splits = 2;
  run(c);
  const auto want = output_bits(c);
  const pasa_source rect = c.problem.main;
  const auto* lengths = static_cast<const std::int32_t*>(rect.lengths.data);
  c.problem.main.indptr = c.allocate(PASA_I32, {7});
  std::int32_t nnz = 0;
  for (int t = 0; t < 6; ++t) indptr_of(c.problem.main)[t + 1] = nnz += lengths[t];
  c.problem.main.indices = c.allocate(PASA_I32, {nnz});
  c.problem.main.lengths = pasa_tensor{};
  for (int t = 0; t < 6; ++t) {
    std::copy_n(indices_of(rect) + t * rect.indices.stride[0], lengths[t],
                indices_of(c.problem.main) + indptr_of(c.problem.main)[t]);
  }
  run(c);
  EXPECT_TRUE(want == output_bits(c));
}

// Two bf16 pools, and the one pool that holds both with the extra indices moved up.
TEST_P(OnKernel, TwoSourcesEqualTheMergedOne) {
  CaseSpec spec = two_sources(PASA_KV_BF16, PASA_KV_BF16, 4, 8, 50, 30);
  spec.source[0].slots = 300;
  spec.source[1].slots = 200;
  spec.source[1].invalid = 0.1;
  spec.poison = Poison::kNone;
  Case c = make_case(spec);
  const Reference want = compute_reference(c.problem);
  const pasa_source main = c.problem.main, extra = c.problem.extra;
  pasa_source merged{};
  merged.format = PASA_KV_BF16;
  merged.kv = c.allocate(PASA_BF16, {500, 512});
  for (std::int64_t slot = 0; slot < 500; ++slot) {
    const pasa_source& from = slot < 300 ? main : extra;
    const std::int64_t row = slot < 300 ? slot : slot - 300;
    std::memcpy(static_cast<std::uint16_t*>(merged.kv.data) + slot * 512,
                static_cast<const std::uint16_t*>(from.kv.data) + row * from.kv.stride[0], 1024);
  }
  merged.indices = c.allocate(PASA_I32, {main.indices.shape[0] + extra.indices.shape[0]});
  merged.indptr = c.allocate(PASA_I32, {5});
  std::int32_t at = 0;
  for (int t = 0; t < 4; ++t) {
    for (int i = indptr_of(main)[t]; i < indptr_of(main)[t + 1]; ++i) indices_of(merged)[at++] = indices_of(main)[i];
    for (int i = indptr_of(extra)[t]; i < indptr_of(extra)[t + 1]; ++i) {
      const std::int32_t index = indices_of(extra)[i];
      indices_of(merged)[at++] = index >= 0 && index < 200 ? index + 300 : -1;
    }
    indptr_of(merged)[t + 1] = at;
  }
  c.problem.main = merged;
  c.problem.extra = pasa_source{};
  run(c);
  expect_reference(c, want);
}

// An extra source with empty lists, and an empty main source, are the one-source call.
TEST_P(OnKernel, AnEmptySourceIsNoSource) {
  Case c = make_case(two_sources(PASA_KV_FP8_DS_MLA, PASA_KV_FP8_DS_MLA, 3, 8, 40, 40));
  const pasa_problem both = c.problem;
  c.problem.kv_splits = 1;
  c.problem.extra = pasa_source{};
  run(c);
  const auto want = output_bits(c);
  c.problem.extra = both.extra;
  std::memset(indptr_of(c.problem.extra), 0, 4 * 4);
  run(c);
  EXPECT_TRUE(want == output_bits(c)) << "empty extra";
  std::swap(c.problem.main, c.problem.extra);
  run(c);
  EXPECT_TRUE(want == output_bits(c)) << "empty main";
}

TEST_P(OnKernel, HintsChangeNoBit) {
  for (const double invalid : {0.0, 0.3}) {  // the hint is wrong in the second round
    CaseSpec spec = one_source(PASA_KV_FP8_DS_MLA, 4, 16, 150);
    spec.source[0].invalid = invalid;
    spec.source[0].bad = BadIndex::kAny;
    Case c = make_case(spec);
    c.problem.kv_splits = 2;
    run(c);
    const auto want = output_bits(c);
    c.problem.flags |= PASA_NO_INVALID;
    run(c);
    EXPECT_TRUE(want == output_bits(c)) << invalid;
  }
}

TEST_P(OnKernel, BlockHChangesNoResult) {
  Case c = make_case(one_source(PASA_KV_FP8_E4M3FNUZ, 3, 40, 70));
  const Reference want = compute_reference(c.problem);
  for (const int block_h : {1, 16, 24, 64, 128}) {
    SCOPED_TRACE(block_h);
    c.problem.block_h = block_h;
    run(c);
    expect_reference(c, want);
  }
}

TEST_P(OnKernel, NoTokens) {
  Case c = make_case(one_source(PASA_KV_FP8_DS_MLA, 0, 16, 8));
  run(c);
  Case one = make_case(one_source(PASA_KV_FP8_DS_MLA, 1, 16, 0));
  run(one);
  for (int d = 0; d < 512; ++d) EXPECT_EQ(out_at(one, 0, 15, d), 0.0f);
  EXPECT_EQ(lse_at(one, 0, 15), -kInfinity);
}

// ---- dense MLA decode: keys of 576 in a flat pool, one list for all queries of a sequence

CaseSpec mla(pasa_kv_format format, std::int64_t lists, int queries, int heads, std::int64_t len) {
  CaseSpec spec = one_source(format, lists * queries, heads, len);
  spec.dim = 576;
  spec.queries = queries;
  spec.source[0].page = 1;
  return spec;
}

constexpr pasa_kv_format kFlat[] = {PASA_KV_BF16, PASA_KV_F16, PASA_KV_FP8_E4M3FN, PASA_KV_FP8_E4M3FNUZ};

// A list that queries share is a list for each of them, cut to what it sees: also where that is nothing.
TEST_P(OnKernel, SharedListsEqualCutCopies) {
  for (const int queries : {2, 4, 8, 17}) {
    for (const int splits : {1, 3, 64}) {
      SCOPED_TRACE(testing::Message() << queries << " queries, " << splits << " splits");
      CaseSpec spec = mla(PASA_KV_BF16, 5, queries, 12, 40);
      spec.source[0].lengths = Lengths::kFrom0;
      spec.source[0].empty = 0.3;
      spec.sink = Sink::kNormal;
      Case c = make_case(spec);
      if (!refusal_of(GetParam(), c.problem).empty()) GTEST_SKIP() << refusal_of(GetParam(), c.problem);
      c.problem.kv_splits = splits;
      const Reference want = compute_reference(c.problem);
      run(c);
      expect_reference(c, want);
      const auto shared = output_bits(c);
      const pasa_source from = c.problem.main;
      c.problem.queries_per_list = 0;
      c.problem.main.indptr = c.allocate(PASA_I32, {c.tokens() + 1});
      std::vector<std::int32_t> copies;
      for (std::int64_t t = 0; t < c.tokens(); ++t) {
        const std::int32_t* begin = indices_of(from) + indptr_of(from)[t / queries];
        const std::int64_t seen =
            indices_of(from) + indptr_of(from)[t / queries + 1] - begin - (queries - 1 - t % queries);
        if (seen > 0) copies.insert(copies.end(), begin, begin + seen);
        indptr_of(c.problem.main)[t + 1] = static_cast<std::int32_t>(copies.size());
      }
      c.problem.main.indices = c.allocate(PASA_I32, {static_cast<std::int64_t>(copies.size())});
      std::copy(copies.begin(), copies.end(), indices_of(c.problem.main));
      run(c);
      EXPECT_TRUE(shared == output_bits(c));
    }
  }
}

// Queries before the first token, and splits without a key the query sees: zeros and -inf, in partials too, never NaN.
TEST_P(OnKernel, QueriesBeforeTheSequenceAreEmpty) {
  Case c = make_case(mla(PASA_KV_FP8_E4M3FN, 1, 8, 16, 3));
  if (!refusal_of(GetParam(), c.problem).empty()) GTEST_SKIP() << refusal_of(GetParam(), c.problem);
  const Reference want = compute_reference(c.problem);
  for (const int splits : {1, 2, 256}) {
    c.problem.kv_splits = splits;
    run(c);
    expect_reference(c, want);
    for (int t = 0; t < 8; ++t) {
      EXPECT_EQ(lse_at(c, t, 15) == -kInfinity, t < 5) << t;
      EXPECT_EQ(out_at(c, t, 15, 511) == 0, t < 5) << t;
    }
  }
  c.problem.flags |= PASA_SKIP_REDUCE;
  c.problem.kv_splits = 7;
  const pasa_problem direct = c.problem;
  c.problem.out = c.problem.lse = pasa_tensor{};
  add_partials(c, 7);
  run(c);
  for (int i = 0; i < 8 * 7 * 16; ++i) {
    const bool empty = i / 16 % 7 >= i / 16 / 7 - 4;  // query t sees t - 4 keys, one a split
    EXPECT_EQ(static_cast<const float*>(c.problem.m.data)[i] == -kInfinity, empty) << i;
    EXPECT_EQ(static_cast<const float*>(c.problem.l.data)[i] == 0, empty) << i;
    EXPECT_EQ(static_cast<const float*>(c.problem.acc.data)[i * 512 + 7] == 0, empty) << i;
  }
  c.problem = direct;
  run_and_reduce(GetParam(), c, 7);
  expect_reference(c, want);
}

// One pool: rows of 576, rows of 512 with the rest in a tensor of its own, and two views of wider rows.
TEST_P(OnKernel, WhereThePiecesAreChangesNoBit) {
  for (const pasa_kv_format format : kFlat) {
    std::vector<std::byte> whole;
    for (const Pe pe : {Pe::kWhole, Pe::kApart, Pe::kBehind, Pe::kBefore}) {
      CaseSpec spec = mla(format, 3, 1, 20, 90);
      spec.pe = pe;
      spec.source[0].invalid = 0.05;
      spec.splits = 2;
      Case c = make_case(spec);
      if (!refusal_of(GetParam(), c.problem).empty()) {
        std::printf("  %s declines: %s\n", GetParam().name.c_str(), refusal_of(GetParam(), c.problem).c_str());
        continue;
      }
      run(c);
      expect_reference(c, compute_reference(c.problem));
      if (pe == Pe::kWhole) whole = output_bits(c);
      EXPECT_TRUE(whole == output_bits(c)) << find_format(format)->name << ", pieces " << static_cast<int>(pe);
    }
  }
}

// kv_scale 1/2 on a pool is the pool of halves, bit by bit: in out, lse, max_logits and partials.
TEST_P(OnKernel, KvScaleIsAFactorOfEveryKey) {
  for (const bool partial : {false, true}) {
    CaseSpec spec = two_sources(PASA_KV_BF16, PASA_KV_BF16, 4, 20, 70, 30);
    spec.sink = Sink::kNormal;
    spec.max_logits = true;
    spec.splits = 3;
    Case c = make_case(spec);
    c.problem.kv_scale = 0.5;
    if (!refusal_of(GetParam(), c.problem).empty()) GTEST_SKIP() << refusal_of(GetParam(), c.problem);
    const Reference want = compute_reference(c.problem);
    if (partial) {
      c.problem.flags |= PASA_SKIP_REDUCE;
      c.problem.out = c.problem.lse = c.problem.max_logits = pasa_tensor{};
      add_partials(c, 3);
    }
    run(c);
    if (!partial) expect_reference(c, want);
    const auto scaled = output_bits(c);
    c.problem.kv_scale = 0;
    for (const pasa_source* s : {&c.problem.main, &c.problem.extra}) {
      auto* words = static_cast<std::uint16_t*>(s->kv.data);
      for (std::int64_t i = 0; i < element_count(s->kv); ++i) words[i] = float_to_bf16(0.5f * bf16_to_float(words[i]));
    }
    run(c);
    EXPECT_TRUE(scaled == output_bits(c)) << (partial ? "partials" : "results");
  }
}

// ---- numbers on paper

// docs/math.md's example: scores 0.5, 1.0, -0.25; values 1, 2, 4; sink 0.3. Component 0 carries the value, 500 the score.
Case worked_example() {
  CaseSpec spec = one_source(PASA_KV_BF16, 1, 1, 3);
  spec.source[0].slots = 3;
  Case c = make_case(spec);
  c.problem.has_softmax_scale = 1;
  c.problem.softmax_scale = 1;
  const float values[] = {1, 2, 4}, scores[] = {0.5f, 1.0f, -0.25f};
  for (std::int64_t slot = 0; slot < 3; ++slot) {
    float key[512] = {};
    key[0] = values[slot];
    key[500] = scores[slot];
    write_key(c.problem.main, slot, key);
    indices_of(c.problem.main)[slot] = static_cast<std::int32_t>(slot);
  }
  std::memset(c.problem.q.data, 0, 1024);
  q_row(c, 0, 0)[500] = float_to_bf16(1.0f);
  static_cast<float*>(c.problem.attn_sink.data)[0] = 0.3f;
  return c;
}

TEST_P(OnKernel, WorkedExample) {
  Case c = worked_example();
  for (const int splits : {1, 2, 3}) {
    c.problem.kv_splits = splits;
    run(c);
    EXPECT_NEAR(out_at(c, 0, 0, 0), 1.5703537f, 1.6e-2f) << "with sink";
    EXPECT_NEAR(lse_at(c, 0, 0), 1.6381816f, 1e-5f) << "with sink";
  }
  const pasa_tensor sink = c.problem.attn_sink;
  c.problem.attn_sink = pasa_tensor{};
  run(c);
  EXPECT_NEAR(out_at(c, 0, 0, 0), 1.9822924f, 1.6e-2f) << "without sink";
  EXPECT_NEAR(lse_at(c, 0, 0), 1.6381816f, 1e-5f) << "without sink";
  c.problem.attn_sink = sink;
}

TEST_P(OnKernel, WorkedExampleInTwoSplits) {
  Case c = worked_example();
  c.problem.out = c.problem.lse = pasa_tensor{};
  c.problem.flags |= PASA_SKIP_REDUCE;
  c.problem.kv_splits = 2;
  add_partials(c, 2);
  run(c);
  const auto* acc = static_cast<const float*>(c.problem.acc.data);
  const auto* m = static_cast<const float*>(c.problem.m.data);
  const auto* l = static_cast<const float*>(c.problem.l.data);
  EXPECT_NEAR(m[0], 1.4426950f, 1e-5f);
  EXPECT_NEAR(l[0], 1.6065307f, 1e-5f);
  EXPECT_NEAR(acc[0], 2.6065307f, 5e-3f);
  EXPECT_NEAR(m[1], -0.3606738f, 1e-5f);
  EXPECT_EQ(l[1], 1.0f);
  EXPECT_EQ(acc[512], 4.0f);
}

TEST_P(OnKernel, EqualKeysGiveTheKey) {
  CaseSpec spec = one_source(PASA_KV_FP8_DS_MLA, 2, 4, 100);
  spec.sink = Sink::kNone;
  spec.poison = Poison::kNone;
  Case c = make_case(spec);
  float key[512];
  for (int d = 0; d < 512; ++d) key[d] = static_cast<float>(d % 8 - 3);  // exact under every scale
  write_key(c.problem.main, 0, key);
  std::fill_n(indices_of(c.problem.main), 200, 0);
  run(c);
  for (int d = 0; d < 512; ++d) EXPECT_NEAR(out_at(c, 1, 3, d), key[d], std::fabs(key[d]) / 128) << d;
}

// Scale 0, and q = 0, weigh all keys alike.
TEST_P(OnKernel, ScaleZeroIsTheMean) {
  CaseSpec spec = one_source(PASA_KV_BF16, 2, 4, 90);
  spec.sink = Sink::kNone;
  spec.has_scale = true;
  spec.scale = 0;
  Case c = make_case(spec);
  const Reference want = compute_reference(c.problem);
  run(c);
  expect_reference(c, want);
  EXPECT_NEAR(lse_at(c, 0, 0), std::log(90.0f), 1e-5f);
  for (int t = 0; t < 2; ++t) {
    for (int h = 0; h < 4; ++h) std::memset(q_row(c, t, h), 0, 1024);
  }
  c.problem.softmax_scale = 0.7;
  run(c);
  expect_reference(c, want);
}

TEST_P(OnKernel, OrderAndHolesDoNotMatter) {
  CaseSpec spec = one_source(PASA_KV_FP8_E4M3FN, 3, 8, 64);
  Case c = make_case(spec);
  const Reference want = compute_reference(c.problem);
  std::int32_t* indices = indices_of(c.problem.main);
  for (int t = 0; t < 3; ++t) std::reverse(indices + 64 * t, indices + 64 * (t + 1));
  run(c);
  expect_reference(c, want);
  // The same keys with an invalid entry behind each.
  const pasa_tensor dense = c.problem.main.indices;
  c.problem.main.indices = c.allocate(PASA_I32, {2 * 3 * 64});
  const std::int32_t holes[] = {-1, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(),
                                static_cast<std::int32_t>(pool_slots(c.problem.main))};
  for (int i = 0; i < 3 * 64; ++i) {
    indices_of(c.problem.main)[2 * i] = static_cast<const std::int32_t*>(dense.data)[i];
    indices_of(c.problem.main)[2 * i + 1] = holes[i % 4];
  }
  for (int t = 0; t <= 3; ++t) indptr_of(c.problem.main)[t] *= 2;
  run(c);
  expect_reference(c, want);
}

TEST_P(OnKernel, SinkEqualToLseHalvesTheOutput) {
  CaseSpec spec = one_source(PASA_KV_BF16, 1, 6, 50);
  spec.sink = Sink::kMinusInf;
  Case c = make_case(spec);
  run(c);
  std::vector<float> whole;
  for (int h = 0; h < 6; ++h) {
    for (int d = 0; d < 512; ++d) whole.push_back(out_at(c, 0, h, d));
    static_cast<float*>(c.problem.attn_sink.data)[h] = lse_at(c, 0, h);
  }
  run(c);
  for (int h = 0; h < 6; ++h) {
    for (int d = 0; d < 512; ++d) {
      const float full = whole[static_cast<std::size_t>(h * 512 + d)];
      EXPECT_NEAR(out_at(c, 0, h, d), full / 2, std::fabs(full) / 128 + 1e-4f);
    }
  }
}

TEST_P(OnKernel, EqualHeadsGiveEqualRows) {
  CaseSpec spec = one_source(PASA_KV_FP8_DS_MLA, 2, 37, 80);
  spec.sink = Sink::kNone;
  Case c = make_case(spec);
  for (int t = 0; t < 2; ++t) {
    for (int h = 1; h < 37; ++h) std::memcpy(q_row(c, t, h), q_row(c, t, 0), 1024);
  }
  run(c);
  for (int t = 0; t < 2; ++t) {
    for (int h = 1; h < 37; ++h) {
      EXPECT_NEAR(lse_at(c, t, h), lse_at(c, t, 0), 1e-5f);
      for (int d = 0; d < 512; d += 37) EXPECT_NEAR(out_at(c, t, h, d), out_at(c, t, 0, d), 4e-3f);
    }
  }
}

// NaN in q stays in its row and head; a NaN in a selected key takes the row, in an unselected one nothing.
TEST_P(OnKernel, NanStaysWhereItBelongs) {
  Case c = make_case(one_source(PASA_KV_FP8_DS_MLA, 3, 20, 70));
  const Reference want = compute_reference(c.problem);
  const std::uint16_t good = q_row(c, 1, 5)[17];
  q_row(c, 1, 5)[17] = 0x7fc0;
  run(c);
  for (int h = 0; h < 20; ++h) EXPECT_EQ(std::isnan(out_at(c, 1, h, 3)), h == 5) << h;
  EXPECT_FALSE(std::isnan(out_at(c, 0, 5, 3)) || std::isnan(out_at(c, 2, 5, 3)));
  q_row(c, 1, 5)[17] = good;
  run(c);
  expect_reference(c, want);
  poison_key(c.problem.main, indices_of(c.problem.main)[indptr_of(c.problem.main)[2] + 69]);
  run(c);
  for (int h = 0; h < 20; ++h) EXPECT_TRUE(std::isnan(out_at(c, 2, h, 3))) << h;
}

// ---- addresses beyond 32 bits in q and out; the pools' are cases. The memory is mapped sparsely: it costs what is touched

TEST_P(OnKernel, QAndOutSpanMoreThan32Bits) {
  Case c = make_case(one_source(PASA_KV_FP8_DS_MLA, 5, 6, 40));
  const Reference want = compute_reference(c.problem);
  constexpr std::int64_t kRow = (std::int64_t{1} << 30) + 8, kHead = 1 << 20;  // elements: rows 2 GiB apart
  const pasa_problem near = c.problem;
  c.problem.q = c.allocate(PASA_BF16, {5, 6, 512}, {kRow, kHead, 1}, true);
  for (int t = 0; t < 5; ++t) {
    for (int h = 0; h < 6; ++h) {
      std::memcpy(q_row(c, t, h),
                  static_cast<const std::uint16_t*>(near.q.data) + t * near.q.stride[0] + h * near.q.stride[1], 1024);
    }
  }
  run(c);
  expect_reference(c, want);
  if (GetParam().device != "cpu" || GetParam().unlisted) return;
  c.problem.out = c.allocate(PASA_BF16, {5, 6, 512}, {kRow, kHead, 1}, true);
  c.problem.kernel = GetParam().name.c_str();
  pasa_plan* plan = nullptr;  // by hand: poisoning 8 GiB would fill them
  ASSERT_EQ(pasa_plan_create(&c.problem, &plan), PASA_OK) << pasa_last_error();
  const Memory workspace = Memory::anonymous(pasa_plan_workspace_bytes(plan) + 1);
  EXPECT_EQ(pasa_run(plan, &c.problem, workspace.data(), workspace.size(), nullptr), PASA_OK) << pasa_last_error();
  pasa_plan_destroy(plan);
  c.problem.kernel = nullptr;
  expect_reference(c, want);  // the mapping was zero, the wanted values are not
}

}  // namespace
}  // namespace pasa
