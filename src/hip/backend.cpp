// The row "hip:gfx950" of the backend table: which problems it serves, how it splits lists, and the launches.
#include <algorithm>
#include <memory>

#include "hip/device.h"
#include "hip/order.h"

namespace pasa {
namespace hip {
namespace {

using namespace gpu;

constexpr std::string_view kArchitectures[] = {"gfx950"};
constexpr int kKeyTile = 64, kMaxSplits = 16;

// Sources of different formats go through a kernel that asks for each; it exists for 16 heads only.
bool is_mixed(const Shape& shape) {
  const auto kind = [](pasa_kv_format f) { return f == PASA_KV_PACKED_BF16 ? PASA_KV_BF16 : f; };
  return shape.source_count == 2 && kind(shape.source[0].format) != kind(shape.source[1].format);
}

// The kernel by its formats and head tile: "decode64_fp8_ds_mla".
std::string kernel_name(const Shape& shape, int head_tile) {
  const auto name = [&]() -> std::string {
    const bool short_key = shape.dim == 512;
    if (is_mixed(shape)) return short_key ? "any_512" : "any_576";
    switch (shape.source[0].format) {
      case PASA_KV_FP8_E4M3FN:
        return "fp8_e4m3fn";
      case PASA_KV_FP8_E4M3FNUZ:
        return "fp8_e4m3fnuz";
      case PASA_KV_FP8_DS_MLA:
        return "fp8_ds_mla";
      case PASA_KV_FP8_V32:
        return "fp8_v32";
      case PASA_KV_F16:
        return short_key ? "f16_512" : "f16_576";
      default:
        return short_key ? "bf16_512" : "bf16_576";
    }
  };
  return (head_tile == 64 ? "decode64_" : "decode_") + name();
}

// ---- planning --------------------------------------------------------------------------------------------------------

// What the plan fixes beside the number of splits.
struct Detail {
  int head_tile;
  Dim3 grid;
  Order order;
};

// Wave instructions of a work-group for a row, and for each of its tiles, as the emulator counted them (docs/gfx950.md).
struct Weight {
  int head_tile, groups_a_unit;  // work-groups that share a compute unit
  std::int64_t row, tile;
};
constexpr Weight kWeights[] = {{16, 2, 2000, 1600}, {64, 1, 5000, 2500}};
constexpr std::int64_t kMerge = 1500, kMergeSplit = 250;

struct Tiling {
  int head_tile = 16, splits = 1;
};

// The cheapest by the instructions that the busiest compute unit issues one after another.
Tiling choose_tiling(const Problem& p) {
  const std::int64_t units = std::max(driver().device(p.device_index).compute_units, 1);
  Tiling best;
  std::int64_t least = INT64_MAX;
  for (const Weight& w : kWeights) {
    if (w.head_tile == 64 && (is_mixed(p) || (p.block_h && p.block_h <= 16))) continue;
    if (w.head_tile == 16 && p.block_h > 16 && !is_mixed(p)) continue;
    for (int splits = p.splits ? p.splits : 1; splits <= (p.splits ? p.splits : kMaxSplits); ++splits) {
      std::int64_t tiles = 0;
      for (int i = 0; i < p.source_count; ++i) tiles += ceil_div(ceil_div(p.average_keys(i), splits), kKeyTile);
      const std::int64_t groups = p.tokens * ceil_div(p.heads, w.head_tile) * splits;
      const std::int64_t rounds = ceil_div(groups, w.groups_a_unit * units);
      const std::int64_t at_once = std::min<std::int64_t>(ceil_div(groups, units), w.groups_a_unit);
      const std::int64_t cost =
          rounds * at_once * (w.row + tiles * w.tile) + (splits > 1 ? kMerge + kMergeSplit * splits : 0);
      if (cost >= least) continue;
      least = cost;
      best = {w.head_tile, splits};
    }
  }
  return best;
}

// Rows x head tiles x splits. 16 heads: a work-group for every row; 64: no more than run at once, each for several rows.
Detail lay_out(const Problem& p, const Tiling& tiling) {
  const bool many_heads = tiling.head_tile == 64;
  const std::int64_t y = ceil_div(p.heads, tiling.head_tile), z = tiling.splits;
  const std::int64_t units = driver().device(p.device_index).compute_units;
  const std::int64_t run = std::max<std::int64_t>((many_heads ? 1 : 2) * units / (y * z * kChiplets), 1);
  const std::int64_t x = many_heads ? std::min(p.tokens, run * kChiplets) : p.tokens;
  return {.head_tile = tiling.head_tile,
          .grid = {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y), static_cast<std::uint32_t>(z)},
          .order = {.groups = static_cast<std::int32_t>(x),
                    .run = static_cast<std::int32_t>(run),
                    .by_run = make_divider(static_cast<std::uint32_t>(run))}};
}

std::string decline(const Problem& p) {
  if (const std::string reason = unavailable_on(p.device_index, kArchitectures); !reason.empty()) return reason;
  for (int i = 0; i < p.source_count; ++i) {  // keys are brought to the queries' type without loss only in bf16
    if (p.word == Word16::kF16 && p.source[i].format != PASA_KV_F16) return "it serves f16 queries on f16 pools only";
  }
  if (std::string needs = mla_needs(p); !needs.empty()) return needs;
  return too_many(p.tokens);
}

void plan(const Problem& p, Plan& plan) {
  const Tiling tiling = choose_tiling(p);
  const Detail detail = lay_out(p, tiling);
  plan.splits = tiling.splits;
  plan.workspace_bytes = partials_bytes(p, plan.splits);
  plan.detail = std::make_shared<Detail>(detail);
  plan.summary =
      concat(kernel_name(p, tiling.head_tile), ", tile ", tiling.head_tile, " heads x ", kKeyTile, " tokens, splits ",
             plan.splits, ", work-groups ", detail.grid.x * detail.grid.y * detail.grid.z);
}

// ---- running ---------------------------------------------------------------------------------------------------------

// decode.hip's parameters.
struct DecodeArgs {
  Args args;
  Order order;
};

void run(const Problem& p, const Plan& plan, void* workspace, void* stream) {
  const auto& detail = *static_cast<const Detail*>(plan.detail.get());
  const DecodeArgs call{make_args(p, plan, workspace), detail.order};
  launch(p.device_index, "decode", kernel_name(p, detail.head_tile).c_str(), detail.grid, call, stream);
  if (call.args.partial && !plan.partial) launch_merge(p.device_index, make_merge_args(call.args), stream);
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
    .machine = hip::machine,
};

}  // namespace pasa
