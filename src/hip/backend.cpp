// The row "hip:gfx950" of the backend table: which problems it serves, how it splits lists, and the launches.
#include <algorithm>

#include "hip/device.h"

namespace pasa {
namespace hip {
namespace {

using namespace gpu;

constexpr std::string_view kArchitectures[] = {"gfx950"};
constexpr int kHeadTile = 16, kKeyTile = 64, kMaxSplits = 16;

// The decode kernel by its formats; sources of different formats go through a kernel that asks for each.
const char* kernel_name(const Shape& shape) {
  const pasa_kv_format first = shape.source[0].format;
  const auto is_bf16 = [](pasa_kv_format f) { return f == PASA_KV_BF16 || f == PASA_KV_PACKED_BF16; };
  for (int i = 1; i < shape.source_count; ++i) {
    const pasa_kv_format other = shape.source[i].format;
    if (other == first || (is_bf16(other) && is_bf16(first))) continue;
    return shape.dim == 512 ? "decode_any_512" : "decode_any_576";
  }
  switch (first) {
    case PASA_KV_FP8_E4M3FN:
      return "decode_fp8_e4m3fn";
    case PASA_KV_FP8_E4M3FNUZ:
      return "decode_fp8_e4m3fnuz";
    case PASA_KV_FP8_DS_MLA:
      return "decode_fp8_ds_mla";
    case PASA_KV_FP8_V32:
      return "decode_fp8_v32";
    default:
      return shape.dim == 512 ? "decode_bf16_512" : "decode_bf16_576";
  }
}

// ---- planning --------------------------------------------------------------------------------------------------------

// The split count with the least cost: rounds of work-groups (two share a compute unit), each a fixed part and its tiles,
// and the merge. The weights are wave instructions that the emulator counted, see docs/gfx950.md.
int choose_splits(const Problem& p, int compute_units) {
  constexpr std::int64_t kFixed = 2000, kTileCost = 1200, kMergeCost = 250;
  const std::int64_t groups = p.tokens * ceil_div(p.heads, kHeadTile), at_once = 2 * std::max(compute_units, 1);
  int best = 1;
  std::int64_t least = INT64_MAX;
  for (int splits = 1; splits <= kMaxSplits; ++splits) {
    std::int64_t tiles = 0;
    for (int i = 0; i < p.source_count; ++i) tiles += ceil_div(ceil_div(p.average_keys(i), splits), kKeyTile);
    const std::int64_t rounds = ceil_div(groups * splits, at_once);
    const std::int64_t cost = rounds * (kFixed + tiles * kTileCost) + (splits > 1 ? 1500 + kMergeCost * splits : 0);
    if (cost >= least) continue;
    least = cost;
    best = splits;
  }
  return best;
}

std::string decline(const Problem& p) {
  if (const std::string reason = unavailable_on(p.device_index, kArchitectures); !reason.empty()) return reason;
  if (p.word != Word16::kBf16) return "it computes with bf16 queries only";
  return too_many(p.tokens);
}

void plan(const Problem& p, Plan& plan) {
  plan.splits = p.splits ? p.splits : choose_splits(p, driver().device(p.device_index).compute_units);
  const std::int64_t rows = p.tokens * plan.splits * p.heads;
  const bool wants_space = plan.splits > 1 && !p.skip_reduce;
  plan.workspace_bytes = wants_space ? static_cast<std::size_t>(rows) * (kValueDim + 2) * sizeof(float) : 0;
  plan.summary = concat(kernel_name(p), ", tile ", kHeadTile, " heads x ", kKeyTile, " tokens, splits ", plan.splits,
                        ", work-groups ", p.tokens * plan.splits * ceil_div(p.heads, kHeadTile));
}

// ---- running ---------------------------------------------------------------------------------------------------------

void run(const Problem& p, const Plan& plan, void* workspace, void* stream) {
  const Args args = make_args(p, plan, workspace);
  const Dim3 grid{static_cast<std::uint32_t>(p.tokens), static_cast<std::uint32_t>(ceil_div(p.heads, kHeadTile)),
                  static_cast<std::uint32_t>(plan.splits)};
  launch(p.device_index, "decode", kernel_name(p), grid, args, stream);
  if (args.partial && !plan.partial) launch_merge(p.device_index, make_merge_args(args), stream);
}

}  // namespace
}  // namespace hip

extern const Backend kHipGfx950;
const Backend kHipGfx950 = {
    .name = "hip:gfx950",
    .device = PASA_HIP,
    .unavailable = [] { return hip::unavailable(hip::kArchitectures); },
    .decline = hip::decline,
    .plan = hip::plan,
    .run = hip::run,
    .reduce = hip::reduce,
};

}  // namespace pasa
