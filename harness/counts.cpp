#include "harness/counts.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "harness/device.h"

namespace pasa {

double Counts::instructions() const { return std::accumulate(of.begin(), of.begin() + kWaits + 1, 0.0); }

double Counts::issue_clocks() const { return std::max({matrix_clocks(), vector_clocks(), of[kLdsClocks]}); }

Counts& Counts::operator+=(const Counts& other) {
  for (std::size_t i = 0; i < of.size(); ++i) of[i] += other.of[i];
  return *this;
}
Counts operator-(const Counts& a, const Counts& b) {
  Counts difference = a;
  return difference += b * -1.0;
}
Counts operator*(const Counts& a, double factor) {
  Counts product = a;
  for (double& x : product.of) x *= factor;
  return product;
}

namespace {

std::int32_t* ints(const pasa_tensor& tensor) { return static_cast<std::int32_t*>(tensor.data); }

// The source with half of every list, so that each part of it has whole tiles fewer: those of full and of part then occur
// alike in both runs. Lists too short for that lose all their entries.
void shorten(Case& c, pasa_source& source, int splits) {
  const std::int32_t step = 64 * splits;
  const auto half = [step](std::int32_t entries) {
    return std::max(entries - (entries + 2 * step - 1) / (2 * step) * step, 0);
  };
  if (source.indptr.rank) {
    const pasa_tensor old_indptr = source.indptr, old_indices = source.indices;
    source.indptr = c.allocate(PASA_I32, {old_indptr.shape[0]});
    source.indices = c.allocate(PASA_I32, {old_indices.shape[0]});
    std::int64_t left = 0;
    for (std::int64_t i = 0; i + 1 < old_indptr.shape[0]; ++i) {
      const std::int32_t begin = ints(old_indptr)[i], n = half(ints(old_indptr)[i + 1] - begin);
      std::copy_n(ints(old_indices) + begin, n, ints(source.indices) + left);
      left += n;
      ints(source.indptr)[i + 1] = static_cast<std::int32_t>(left);
    }
    source.indices.shape[0] = left;
    return;
  }
  const pasa_tensor old_lengths = source.lengths;
  source.lengths = c.allocate(PASA_I32, {source.indices.shape[0]});
  for (std::int64_t i = 0; i < source.indices.shape[0]; ++i) {
    const auto width = static_cast<std::int32_t>(source.indices.shape[1]);
    ints(source.lengths)[i] = half(old_lengths.rank ? ints(old_lengths)[i] : width);
  }
}

struct Run {
  std::string kernel, plan;
  int splits;
  Counts attend, merge;
};

Run run_counted(Case& c, Device& device, int splits) {
  if (splits) c.problem.kv_splits = splits;
  prepare_partials(c, device);
  Placed placed(c, device);
  Runner runner(placed.problem(), device);
  device.take_counts();
  runner.run();
  device.synchronize();
  Run run{runner.kernel(), runner.summary(), runner.splits(), {}, {}};
  for (const auto& [name, counts] : device.take_counts()) (name == "reduce" ? run.merge : run.attend) += counts;
  return run;
}

// A case of its own, whose tensors are those of `c`.
Case view_of(const Case& c, const char* kernel) {
  Case view;
  view.problem = c.problem;
  view.problem.kernel = kernel;
  view.problem.out = view.allocate(c.problem.q.dtype, {c.tokens(), c.heads(), 512});
  view.problem.lse = c.problem.lse.rank ? view.allocate(PASA_F32, {c.tokens(), c.heads()}) : pasa_tensor{};
  view.problem.max_logits =
      c.problem.max_logits.rank ? view.allocate(PASA_F32, {c.tokens(), c.heads()}) : pasa_tensor{};
  return view;
}

}  // namespace

Budget count_budget(const Case& c, Device& device, const char* kernel) {
  Case whole = view_of(c, kernel), less = view_of(c, kernel);
  const Run high = run_counted(whole, device, 0);
  for (pasa_source* source : {&less.problem.main, &less.problem.extra}) {
    if (source->kv.rank) shorten(less, *source, high.splits);
  }
  const std::int64_t listed = count_work(c.problem).listed, left = count_work(less.problem).listed;
  const Run low = run_counted(less, device, high.splits);  // a shorter problem would be planned with fewer
  const std::int64_t rows = c.tokens() * high.splits;
  Budget budget{high.kernel, high.plan, rows, listed, {}, {}, {}, {}};
  budget.total = high.attend;
  budget.total += high.merge;
  if (listed > left) budget.token = (high.attend - low.attend) * (1.0 / static_cast<double>(listed - left));
  if (rows == 0) return budget;
  budget.fixed = (high.attend - budget.token * static_cast<double>(listed)) * (1.0 / static_cast<double>(rows));
  budget.merge = high.merge * (1.0 / static_cast<double>(c.tokens()));
  return budget;
}

}  // namespace pasa
