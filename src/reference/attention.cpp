// The reference: scalar, float64, in the order of docs/math.md, written to be read. It is the last backend, so it also
// serves what no kernel does, and `pasa check` compares every other kernel with it.
//
//   keys      the valid entries of the row's lists, dequantised exactly
//   scores    s = kv_scale * softmax_scale * q . k
//   softmax   relative to the largest score
//   out       kv_scale * sum p v / (sum p + exp(sink))
//
// No workspace: a row's keys are dequantised again for each group of heads, which keeps its state on the stack.
#include "reference/attention.h"

#include <omp.h>

#include <cmath>
#include <limits>

#include "core/backend.h"
#include "core/softmax.h"

namespace pasa {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// One key, dequantised. nan_to_zero is part of a key's meaning, not of the softmax.
template <typename Format>
void load_key(Row row, bool nan_to_zero, float* key) {
  for (int tile = 0; tile < Format::kScales; ++tile) {
    const float scale = Format::scale(row, tile);
    for (int d = tile * Format::kScaleTile; d < (tile + 1) * Format::kScaleTile; ++d) {
      key[d] = fp8_to_float(Format::kFlavour, *Format::component(row, d)) * scale;
    }
  }
  for (int d = Format::kNope; d < Format::kDim; ++d) key[d] = Format::element(row, d);
  for (int d = 0; nan_to_zero && d < Format::kDim; ++d) key[d] = is_nan(key[d]) ? 0.0f : key[d];
}

// Calls visit(key) for each valid key of the row's lists; a split other than 0 of 1 sees its share only.
template <typename Visit>
void for_each_key(const Problem& p, std::int64_t t, int split, int splits, Visit&& visit) {
  for (int s = 0; s < p.source_count; ++s) {
    with_format(p.source[s].format, p.dim, [&]<typename Format>() {
      const IndexRow list = split_range(row_range(p.sources[s], t), split, splits);
      float key[Format::kDim];
      for (std::int64_t i = 0; i < list.count; ++i) {
        const std::int64_t slot = list.data[i];
        if (slot < 0 || slot >= p.sources[s].slots) continue;
        load_key<Format>(locate<Format>(p.sources[s], p.source[s].page_tokens, slot), p.nan_to_zero, key);
        visit(key);
      }
    });
  }
}

// Softmax state of all heads of one row over some of its keys; s2 = score * log2 e.
struct HeadState {
  double m = kMinusInfinity;
  double l = 0;
  double acc[kValueDim] = {};
};

// Heads that share a dequantised key; a running maximum makes one pass over the keys enough.
constexpr int kGroup = 8;

void attend(const Problem& p, std::int64_t t, int first, int heads, int split, int splits, HeadState* states) {
  double q[kGroup][kMaxDim];
  for (int h = 0; h < heads; ++h) {
    for (int d = 0; d < p.dim; ++d) {
      const std::uint16_t word = p.q[t * p.q_stride[0] + (first + h) * p.q_stride[1] + d];
      q[h][d] = p.word == Word16::kBf16 ? bf16_to_float(word) : f16_to_float(word);
    }
  }
  for_each_key(p, t, split, splits, [&](const float* key) {
    for (int h = 0; h < heads; ++h) {
      HeadState& state = states[h];
      double lanes[8] = {};  // eight sums, so that the compiler may use vectors
      for (int d = 0; d < p.dim; d += 8) {
        for (int lane = 0; lane < 8; ++lane) lanes[lane] += q[h][d + lane] * static_cast<double>(key[d + lane]);
      }
      double dot = 0;
      for (double lane : lanes) dot += lane;
      const double s2 = dot * static_cast<double>(p.scale_log2);
      if (s2 > state.m) {
        const double shrink = std::exp2(state.m - s2);
        state.l *= shrink;
        for (double& a : state.acc) a *= shrink;
        state.m = s2;
      }
      // A NaN score makes the row NaN; a score of -inf weighs nothing even before the first finite one.
      const double weight = s2 == kMinusInfinity ? 0 : std::exp2(s2 - state.m);
      state.l += weight;
      for (int d = 0; d < kValueDim; ++d) state.acc[d] += weight * static_cast<double>(key[d]);
    }
  });
}

// The same as core/softmax.h's finish(), in double.
struct Result {
  double scale, lse, max_logit;
};
Result finish(const HeadState& state, const Problem& p, int head) {
  if (state.l == 0) return {0, kMinusInfinity, kMinusInfinity};
  const double ln2 = std::log(2.0), max_logit = state.m * ln2, lse = max_logit + std::log(state.l);
  const double sink = p.sink ? static_cast<double>(p.sink[head]) : kMinusInfinity;
  if (sink == std::numeric_limits<double>::infinity()) return {0, lse, max_logit};
  const double top = sink > max_logit ? sink : max_logit;
  const double weight = std::exp(max_logit - top);
  return {p.value_scale * weight / (state.l * weight + std::exp(sink - top)), lse, max_logit};
}

template <typename Store>
void for_each_row(const Problem& p, int splits, Store&& store) {
  const std::int64_t groups = (p.heads + kGroup - 1) / kGroup, work = p.tokens * splits * groups;
#pragma omp parallel for schedule(dynamic) num_threads(p.threads ? p.threads : omp_get_max_threads()) if (work > 1)
  for (std::int64_t i = 0; i < work; ++i) {
    const int first = static_cast<int>(i % groups) * kGroup, split = static_cast<int>(i / groups % splits);
    const std::int64_t t = i / groups / splits;
    const int heads = p.heads - first < kGroup ? p.heads - first : kGroup;
    HeadState states[kGroup];
    attend(p, t, first, heads, split, splits, states);
    for (int h = 0; h < heads; ++h) store(t, first + h, split, states[h]);
  }
}

void plan(const Problem& p, Plan& plan) {
  plan.splits = p.skip_reduce && p.splits ? p.splits : 1;  // splitting only makes sense if the partials are wanted
  plan.workspace_bytes = 0;
  plan.summary = concat("float64, scalar, splits ", plan.splits);
}

void run(const Problem& p, const Plan& plan, void*, void*) {
  if (plan.partial) {
    for_each_row(p, plan.splits, [&](std::int64_t t, int head, int split, const HeadState& state) {
      const std::int64_t at = (t * plan.splits + split) * p.heads + head;
      p.m[at] = static_cast<float>(state.m);
      p.l[at] = static_cast<float>(state.l);
      for (int d = 0; d < kValueDim; ++d) {
        p.acc[at * kValueDim + d] = static_cast<float>(p.value_scale * state.acc[d]);
      }
    });
    return;
  }
  for_each_row(p, 1, [&](std::int64_t t, int head, int, const HeadState& state) {
    const Result result = finish(state, p, head);
    std::uint16_t* out = p.out + t * p.out_stride[0] + head * p.out_stride[1];
    for (int d = 0; d < kValueDim; ++d) {
      const auto value = static_cast<float>(result.scale == 0 ? 0 : state.acc[d] * result.scale);
      out[d] = p.word == Word16::kBf16 ? float_to_bf16(value) : float_to_f16(value);
    }
    if (p.lse) p.lse[t * p.lse_stride[0] + head * p.lse_stride[1]] = static_cast<float>(result.lse);
    if (p.max_logits) {
      p.max_logits[t * p.max_logits_stride[0] + head * p.max_logits_stride[1]] = static_cast<float>(result.max_logit);
    }
  });
}

}  // namespace

void reference_attention(const Problem& p, float* out, float* lse, float* max_logits) {
  for_each_row(p, 1, [&](std::int64_t t, int head, int, const HeadState& state) {
    const Result result = finish(state, p, head);
    const std::int64_t at = t * p.heads + head;
    for (int d = 0; d < kValueDim; ++d) {
      out[at * kValueDim + d] = static_cast<float>(result.scale == 0 ? 0 : state.acc[d] * result.scale);
    }
    if (lse) lse[at] = static_cast<float>(result.lse);
    if (max_logits) max_logits[at] = static_cast<float>(result.max_logit);
  });
}

extern const Backend kReference;
const Backend kReference = {
    .name = "reference",
    .device = PASA_CPU,
    .unavailable = [] { return std::string(); },
    .decline = [](const Problem&) { return std::string(); },
    .plan = plan,
    .run = run,
    .reduce = nullptr,
};

}  // namespace pasa
