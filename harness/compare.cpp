#include "harness/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/format.h"
#include "core/number.h"
#include "core/problem.h"
#include "reference/attention.h"

namespace pasa {
namespace {

// lse and max_logits follow from the scores. A key that is exact in bf16 gives them to float accuracy; one whose codes are
// multiplied by an arbitrary float scale is rounded to bf16 first, and each score is off by about 2^-9 of |q||k|/sqrt(D).
constexpr Bound kExactScores{.atol = 2e-5, .rtol = 1e-4};
constexpr Bound kRoundedScores{.atol = 4e-3, .rtol = 2e-3};

constexpr Tolerance kTolerances[] = {
    {"exact-key",
     "keys exact in bf16: errors of P and out, both rounded to 16 bits, relative to the row",
     {.rtol = 1.0 / 128, .row = 1.0 / 64},
     kExactScores,
     kExactScores,
     2e-5},
    {"rounded-key",
     "as exact-key, and keys rounded to bf16",
     {.rtol = 1.0 / 128, .row = 1.0 / 32},
     kRoundedScores,
     kRoundedScores,
     5e-5},
    {"aiter-5e-3", "aiter's decode and prefill tests on 16-bit pools", {5e-3, 5e-3}, kExactScores, kExactScores},
    {"aiter-1e-2", "aiter's fp8 decode tests and prefill gates", {1e-2, 1e-2}, kRoundedScores, kRoundedScores},
    {"aiter-mla", "aiter's MLA decode test, 16-bit pools", {1e-2, 1e-2}, kExactScores, kExactScores, 1e-5},
    {"aiter-mla-fp8", "the same, fp8 pools", {1e-2, 1e-2}, kExactScores, kExactScores, 3e-2},
    {"vllm-2e-2", "vLLM's DSV4 tests", {2e-2, 2e-2}, kRoundedScores, kRoundedScores},
    {"flashmla-decode",
     "FlashMLA's sparse decode test",
     {.atol = 1e-3, .rtol = 2.01 / 128, .either = true},
     {.atol = 1e-6, .rtol = 8.01 / 65536, .either = true},
     {.atol = 1e-6, .rtol = 8.01 / 65536, .either = true},
     5e-6},
    {"flashmla-prefill",
     "FlashMLA's sparse prefill test",
     {.atol = 8e-4, .rtol = 3.01 / 128, .either = true},
     {.atol = 1e-6, .rtol = 2.01 / 65536, .either = true},
     {.atol = 1e-6, .rtol = 2.01 / 65536, .either = true},
     7e-6},
};

constexpr double kInf = std::numeric_limits<double>::infinity();

double load(const pasa_tensor& tensor, std::int64_t offset) {
  switch (tensor.dtype) {
    case PASA_BF16:
      return bf16_to_float(static_cast<const std::uint16_t*>(tensor.data)[offset]);
    case PASA_F16:
      return f16_to_float(static_cast<const std::uint16_t*>(tensor.data)[offset]);
    default:
      return static_cast<const float*>(tensor.data)[offset];
  }
}

// One tensor's comparison while it runs: [T, H, width].
class Meter {
 public:
  Meter(std::string tensor, const Bound& bound) : bound_(bound) { result_.tensor = std::move(tensor); }

  // `zero`: the row has no keys, so only +0 will do.
  void add(double got, double want, double row_rms, bool zero, std::int64_t t, std::int64_t h, std::int64_t d) {
    ++result_.count;
    const double limit = bound_.limit(want, row_rms), error = std::abs(got - want);
    double ratio = 0;
    if (zero) {
      ratio = got == 0 && !std::signbit(got) ? 0 : kInf;
    } else if (std::isnan(want) || std::isnan(got)) {
      ratio = std::isnan(want) && std::isnan(got) ? 0 : kInf;
    } else if (std::isinf(want) || std::isinf(got)) {
      ratio = got == want ? 0 : kInf;
    } else {
      ratio = error <= limit ? (limit > 0 ? error / limit : 0) : std::max(error / limit, std::nextafter(1.0, 2.0));
      result_.max_abs = std::max(result_.max_abs, error);
      dot_ += got * want;
      squares_ += got * got + want * want;
    }
    if (ratio > 1) ++result_.wrong;
    if (ratio > result_.worst_ratio || result_.count == 1) {
      result_.worst_ratio = ratio;
      result_.token = t, result_.head = h, result_.dim = d;
      result_.got = got, result_.want = want, result_.limit = limit;
    }
  }

  Deviation finish(double cosine_limit) {
    result_.cosine = squares_ > 0 ? std::max(0.0, 1 - 2 * dot_ / squares_) : 0;
    result_.cosine_limit = cosine_limit;
    result_.ok = result_.wrong == 0 && (cosine_limit == 0 || result_.cosine <= cosine_limit);
    return result_;
  }

 private:
  Bound bound_;
  Deviation result_;
  double dot_ = 0, squares_ = 0;
};

template <typename Element>
double row_rms(const Element& element, std::int64_t width) {
  double squares = 0;
  for (std::int64_t d = 0; d < width; ++d) {
    const double x = element(d);
    if (std::isfinite(x)) squares += x * x;
  }
  return std::sqrt(squares / static_cast<double>(width));
}

// want(t, h, d) against a tensor [T, H] or [T, H, 512]; empty(t, h) says that the row has no keys.
template <typename Want, typename Empty>
Deviation compare_tensor(const char* name, const pasa_tensor& got, const Bound& bound, double cosine_limit,
                         const Want& want, const Empty& empty) {
  Meter meter(name, bound);
  const std::int64_t width = got.rank == 3 ? got.shape[2] : 1;
  for (std::int64_t t = 0; t < got.shape[0]; ++t) {
    for (std::int64_t h = 0; h < got.shape[1]; ++h) {
      const std::int64_t row = t * got.stride[0] + h * got.stride[1];
      const bool zero = empty(t, h);
      const double rms = bound.row > 0 ? row_rms([&](std::int64_t d) { return want(t, h, d); }, width) : 0;
      for (std::int64_t d = 0; d < width; ++d) meter.add(load(got, row + d), want(t, h, d), rms, zero, t, h, d);
    }
  }
  return meter.finish(cosine_limit);
}

}  // namespace

double Bound::limit(double want, double row_rms) const {
  const double relative = rtol * std::abs(want);
  return (either ? std::max(atol, relative) : atol + relative) + row * row_rms;
}

std::span<const Tolerance> tolerances() { return kTolerances; }

const Tolerance& find_tolerance(std::string_view name) {
  std::string names;
  for (const Tolerance& tolerance : kTolerances) {
    if (tolerance.name == name) return tolerance;
    names.append(names.empty() ? "" : ", ").append(tolerance.name);
  }
  throw Error(PASA_ERROR_RANGE, concat("tolerance is '", name, "', expected one of ", names));
}

const Tolerance& default_tolerance(const pasa_problem& problem) {
  const auto rounds = [](const pasa_source& source) {
    return source.kv.rank != 0 && (source.kv_scales.rank != 0 || source.format == PASA_KV_FP8_V32);
  };
  return find_tolerance(rounds(problem.main) || rounds(problem.extra) ? "rounded-key" : "exact-key");
}

Reference compute_reference(const pasa_problem& problem, int threads, const std::function<void(double)>& progress) {
  Problem p = check(problem, Stage::kPlan);
  if (threads > 0) p.threads = threads;
  Reference reference{.tokens = p.tokens, .heads = p.heads};
  const auto rows = static_cast<std::size_t>(p.tokens) * static_cast<std::size_t>(p.heads);
  reference.out.resize(rows * kValueDim);
  reference.lse.resize(rows);
  reference.max_logits.resize(rows);
  // A few rows at a time where somebody watches, else all at once.
  constexpr std::int64_t kWatchedRows = 16;
  const std::int64_t step = progress ? kWatchedRows * p.queries_per_list : std::max<std::int64_t>(p.tokens, 1);
  for (std::int64_t t = 0; t < p.tokens; t += step) {
    Problem part = p;
    part.tokens = std::min(step, p.tokens - t);
    part.q += t * p.q_stride[0];
    const std::int64_t list = t / p.queries_per_list;
    for (Source& source : part.sources) {
      if (source.indptr) {
        source.indptr += list;
      } else {
        source.indices += list * source.index_stride;
      }
      if (source.lengths) source.lengths += list;
    }
    const std::int64_t row = t * p.heads;
    reference_attention(part, reference.out.data() + row * kValueDim, reference.lse.data() + row,
                        reference.max_logits.data() + row);
    if (progress) progress(static_cast<double>(t + part.tokens) / static_cast<double>(p.tokens));
  }
  return reference;
}

Comparison compare(const pasa_problem& problem, const Reference& want, const Tolerance& tolerance) {
  const auto at = [&](std::int64_t t, std::int64_t h) { return static_cast<std::size_t>(t * want.heads + h); };
  const auto never = [](std::int64_t, std::int64_t) { return false; };
  // Without a valid key there is no largest score; keys whose scores are all -inf give NaN, which stays a NaN.
  const auto empty = [&](std::int64_t t, std::int64_t h) {
    return want.lse[at(t, h)] == -kInf && want.out[at(t, h) * kValueDim] == 0;
  };
  Comparison comparison;
  const auto out = [&](std::int64_t t, std::int64_t h, std::int64_t d) {
    return double{want.out[at(t, h) * kValueDim + static_cast<std::size_t>(d)]};
  };
  comparison.parts.push_back(compare_tensor("out", problem.out, tolerance.out, tolerance.cosine, out, empty));
  if (problem.lse.rank) {
    const auto lse = [&](std::int64_t t, std::int64_t h, std::int64_t) { return double{want.lse[at(t, h)]}; };
    comparison.parts.push_back(compare_tensor("lse", problem.lse, tolerance.lse, 0, lse, never));
  }
  if (problem.max_logits.rank) {
    const auto top = [&](std::int64_t t, std::int64_t h, std::int64_t) { return double{want.max_logits[at(t, h)]}; };
    comparison.parts.push_back(compare_tensor("max_logits", problem.max_logits, tolerance.max_logits, 0, top, never));
  }
  return comparison;
}

Comparison compare_expected(const pasa_problem& problem, const pasa_tensor& out, const pasa_tensor& lse,
                            const Tolerance& tolerance) {
  const auto never = [](std::int64_t, std::int64_t) { return false; };
  const auto stored = [](const pasa_tensor& tensor) {
    return [&tensor](std::int64_t t, std::int64_t h, std::int64_t d) {
      return load(tensor, t * tensor.stride[0] + h * tensor.stride[1] + d);
    };
  };
  Comparison comparison;
  if (out.rank) {
    comparison.parts.push_back(compare_tensor("out", problem.out, tolerance.out, tolerance.cosine, stored(out), never));
  }
  if (lse.rank) comparison.parts.push_back(compare_tensor("lse", problem.lse, tolerance.lse, 0, stored(lse), never));
  return comparison;
}

std::string Deviation::text() const {
  if (count == 0) return tensor + " is empty";
  std::string where = concat(tensor, "[", token, ", ", head);
  where += tensor == "out" ? concat(", ", dim, "]") : "]";
  if (ok) {
    const double percent = std::round(1000 * worst_ratio) / 10;
    return concat(tensor, ": largest error ", max_abs, ", ", percent, " % of what is allowed (at ", where, ")");
  }
  if (wrong == 0) return concat(tensor, ": 1 - cosine similarity is ", cosine, ", expected at most ", cosine_limit);
  return concat(where, " is ", got, ", expected ", want, " +- ", limit, " (", wrong, " of ", count,
                " elements differ)");
}

bool Comparison::ok() const { return std::ranges::all_of(parts, &Deviation::ok); }

std::string Comparison::text() const {
  std::string text;
  for (const Deviation& part : parts) {
    if (!part.ok) return part.text();
    text += (text.empty() ? "" : "; ") + part.text();
  }
  return text;
}

}  // namespace pasa
