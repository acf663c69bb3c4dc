// The row "hip:general" of the backend table: portable.hip, on every architecture that there is code for.
#include <algorithm>

#include "hip/device.h"

namespace pasa {
namespace hip {
namespace {

using namespace gpu;

constexpr std::string_view kArchitectures[] = {"gfx950", "gfx942", "gfx1250"};
constexpr int kHeadTile = 16, kKeyTile = 32, kMaxSplits = 16;

std::string decline(const Problem& p) {
  if (const std::string reason = unavailable_on(p.device_index, kArchitectures); !reason.empty()) return reason;
  return too_many(p.tokens);
}

const char* kernel_name(const Shape& shape) {
  if (shape.word == Word16::kBf16) return "general_bf16";
  for (int i = 0; i < shape.source_count; ++i) {
    if (shape.source[i].format != PASA_KV_F16) return "general_f16_queries";
  }
  return "general_f16";
}

// The split count with the least cost: rounds of work-groups (as many as compute units), each a fixed part and its tiles,
// and the merge. The weights are wave instructions that the emulator counted (pasa bench --device gfx950-emu).
int choose_splits(const Problem& p) {
  constexpr std::int64_t kFixed = 3200, kTileCost = 2200, kMerge = 1500, kMergeSplit = 250;
  const std::int64_t units = std::max(driver().device(p.device_index).compute_units, 1);
  int best = 1;
  std::int64_t least = INT64_MAX;
  for (int splits = 1; splits <= kMaxSplits; ++splits) {
    std::int64_t tiles = 0;
    for (int i = 0; i < p.source_count; ++i) tiles += ceil_div(ceil_div(p.average_keys(i), splits), kKeyTile);
    const std::int64_t rounds = ceil_div(p.tokens * ceil_div(p.heads, kHeadTile) * splits, units);
    const std::int64_t cost = rounds * (kFixed + tiles * kTileCost) + (splits > 1 ? kMerge + kMergeSplit * splits : 0);
    if (cost >= least) continue;
    least = cost;
    best = splits;
  }
  return best;
}

void plan(const Problem& p, Plan& plan) {
  plan.splits = p.splits ? p.splits : choose_splits(p);
  plan.workspace_bytes = partials_bytes(p, plan.splits);
  plan.summary = concat(kernel_name(p), " for ", architecture(p.device_index), ", tile ", kHeadTile, " heads x ",
                        kKeyTile, " tokens, splits ", plan.splits);
}

void run(const Problem& p, const Plan& plan, void* workspace, void* stream) {
  const Args args = make_args(p, plan, workspace);
  const Dim3 grid{static_cast<std::uint32_t>(p.tokens), static_cast<std::uint32_t>(ceil_div(p.heads, kHeadTile)),
                  static_cast<std::uint32_t>(plan.splits)};
  launch(p.device_index, "portable", kernel_name(p), grid, args, stream);
  if (args.partial && !plan.partial) launch_merge(p.device_index, make_merge_args(args), stream);
}

}  // namespace
}  // namespace hip

extern const Backend kHipGeneral;
const Backend kHipGeneral = {
    .name = "hip:general",
    .device = PASA_HIP,
    .unavailable = [] { return hip::unavailable(hip::kArchitectures); },
    .decline = hip::decline,
    .plan = hip::plan,
    .run = hip::run,
    .reduce = hip::reduce,
    .machine = hip::machine,
};

}  // namespace pasa
