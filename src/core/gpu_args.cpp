// The host's side of gpu_args.h.
#include "core/gpu_args.h"

#include <algorithm>

#include "core/backend.h"
#include "core/problem.h"

namespace pasa::gpu {

std::size_t partials_bytes(const Problem& problem, int splits) {
  if (splits == 1 || problem.skip_reduce) return 0;
  return static_cast<std::size_t>(problem.tokens) * static_cast<std::size_t>(splits) *
         static_cast<std::size_t>(problem.heads) * (kValueDim + 2) * sizeof(float);
}

Args make_args(const Problem& problem, const Plan& plan, void* workspace) {
  Args args{};
  args.q = problem.q;
  args.tokens = problem.tokens;
  args.heads = problem.heads;
  args.dim = problem.dim;
  args.source_count = problem.source_count;
  for (int i = 0; i < problem.source_count; ++i) {
    const Source& from = problem.sources[i];
    const SourceShape& shape = problem.source[i];
    const auto page_tokens = static_cast<std::uint32_t>(shape.page_tokens);
    const std::int64_t entries = shape.ragged ? from.nnz : from.width;
    const std::int64_t record_bytes =
        with_format(shape.format, problem.dim, [&]<typename Format>() -> std::int64_t { return Format::kRecordBytes; });
    const auto bits = reinterpret_cast<std::uintptr_t>(from.kv) | static_cast<std::uint64_t>(from.page_stride) |
                      (page_tokens > 1 ? static_cast<std::uint64_t>(record_bytes) : 0) |
                      reinterpret_cast<std::uintptr_t>(from.pe) | static_cast<std::uint64_t>(from.pe_stride) | 16u;
    args.source[i] = {.kv = from.kv,
                      .page_stride = from.page_stride,
                      .scales = from.scales,
                      .scale_stride = from.scale_stride,
                      .pe = from.pe,
                      .pe_stride = from.pe_stride,
                      .indices = from.indices,
                      .indptr = from.indptr,
                      .lengths = from.lengths,
                      .queries = from.queries_per_list,
                      .by_queries = make_divider(static_cast<std::uint32_t>(from.queries_per_list)),
                      .index_stride = from.index_stride,
                      .entries = static_cast<std::int32_t>(std::min<std::int64_t>(entries, INT32_MAX)),
                      .slots = static_cast<std::uint32_t>(from.slots),
                      .page_tokens = page_tokens,
                      .page = make_divider(page_tokens),
                      .format = shape.format,
                      .alignment = 1 << std::countr_zero(bits)};
  }
  args.scale_log2 = problem.scale_log2;
  args.value_scale = problem.value_scale;
  args.sink = problem.sink;
  args.splits = plan.splits;
  args.by_splits = make_divider(static_cast<std::uint32_t>(plan.splits));
  args.nan_to_zero = problem.nan_to_zero;
  args.f16 = problem.word == Word16::kF16;
  args.partial = plan.splits > 1;
  const std::int64_t rows = problem.tokens * plan.splits * problem.heads;
  args.partials = {problem.acc, problem.m, problem.l};
  if (!plan.partial) {
    auto* acc = static_cast<float*>(workspace);
    args.partials = {acc, acc + rows * kValueDim, acc + rows * (kValueDim + 1)};
  }
  args.out = problem.out;
  args.lse = problem.lse;
  args.max_logits = problem.max_logits;
  for (int i = 0; i < 2; ++i) {
    args.q_stride[i] = problem.q_stride[i];
    args.out_stride[i] = problem.out_stride[i];
    args.lse_stride[i] = problem.lse_stride[i];
    args.max_logits_stride[i] = problem.max_logits_stride[i];
  }
  return args;
}

MergeArgs make_merge_args(const Args& args) {
  return {.partials = args.partials,
          .tokens = args.tokens,
          .heads = args.heads,
          .splits = args.splits,
          .sink = args.sink,
          .out = args.out,
          .out_dtype = args.f16 ? PASA_F16 : PASA_BF16,
          .out_stride = {args.out_stride[0], args.out_stride[1]},
          .lse = args.lse,
          .lse_stride = {args.lse_stride[0], args.lse_stride[1]},
          .max_logits = args.max_logits,
          .max_logits_stride = {args.max_logits_stride[0], args.max_logits_stride[1]}};
}

MergeArgs make_merge_args(const Reduce& problem) {
  return {.partials = {const_cast<float*>(problem.acc), const_cast<float*>(problem.m), const_cast<float*>(problem.l)},
          .tokens = problem.tokens,
          .heads = problem.heads,
          .splits = static_cast<std::int32_t>(problem.splits),
          .sink = problem.sink,
          .out = problem.out,
          .out_dtype = problem.out_dtype,
          .out_stride = {problem.out_stride[0], problem.out_stride[1]},
          .lse = problem.lse,
          .lse_stride = {problem.lse_stride[0], problem.lse_stride[1]},
          .max_logits = nullptr,
          .max_logits_stride = {}};
}

}  // namespace pasa::gpu
