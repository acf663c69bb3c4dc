// A result against the float64 reference: every element, at the tolerance of the test it comes from.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pasa/pasa.h"

namespace pasa {

// An element passes if |got - want| <= atol + rtol * |want| + row * (RMS of want over its 512 components); `either` takes the
// larger of the first two instead of their sum (FlashMLA). NaN must meet NaN and an infinity the same infinity. A row
// without keys must be exactly +0.
struct Bound {
  double atol = 0, rtol = 0, row = 0;
  bool either = false;
  double limit(double want, double row_rms) const;
};
struct Tolerance {
  std::string_view name, why;
  Bound out, lse, max_logits;
  double cosine = 0;  // most that 1 - cosine similarity of the whole output may be; 0: not looked at
};
std::span<const Tolerance> tolerances();
const Tolerance& find_tolerance(std::string_view name);
// The strictest that fits the problem's formats: "exact-key" where every key is exact in bf16, else "rounded-key".
const Tolerance& default_tolerance(const pasa_problem& problem);

// Float results of the reference, dense.
struct Reference {
  std::int64_t tokens = 0, heads = 0;
  std::vector<float> out;         // [T, H, 512]
  std::vector<float> lse;         // [T, H]
  std::vector<float> max_logits;  // [T, H]
};
// progress, if given, is told the fraction done now and then.
Reference compute_reference(const pasa_problem& problem, int threads = 0,
                            const std::function<void(double)>& progress = {});

struct Deviation {
  std::string tensor;  // "out", "lse", "max_logits"
  bool ok = true;
  std::int64_t wrong = 0, count = 0;
  std::int64_t token = 0, head = 0, dim = 0;  // the worst element (by error over its limit)
  double got = 0, want = 0, limit = 0;
  double worst_ratio = 0;               // error / limit there; infinite for a NaN or an infinity that should not be
  double max_abs = 0;                   // largest |got - want|
  double cosine = 0, cosine_limit = 0;  // 1 - cosine similarity and the most it may be (0: not looked at)
  std::string text() const;             // one line
};
struct Comparison {
  std::vector<Deviation> parts;
  bool ok() const;
  std::string text() const;  // the first part that fails, else a summary
};
// Host tensors: out, and lse and max_logits where present, of a problem that has been run.
Comparison compare(const pasa_problem& problem, const Reference& want, const Tolerance& tolerance);
// The same against the tensors a case file expects (absent ones are passed over).
Comparison compare_expected(const pasa_problem& problem, const pasa_tensor& out, const pasa_tensor& lse,
                            const Tolerance& tolerance);

}  // namespace pasa
