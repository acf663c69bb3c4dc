// The row "cuda:general" of the backend table: what it can run on, how it plans, how it launches.
//
// A plan fixes the head tile and the number of parts a row is cut into, from shapes alone (or as a tuning table says,
// core/tuning.h): list lengths live on the device, so the average that the index tensor's size tells stands for them. Each
// block then finds its own range from the lengths, and every part is written whatever they say, which is what makes a captured
// run safe to replay with other lists.
#include <algorithm>
#include <memory>

#include "core/backend.h"
#include "cuda/device.h"
#include "cuda/launch.h"

namespace pasa {
namespace cuda {
namespace {

constexpr int kOldest = 80;  // compute capability 8.0: bf16 tensor cores

struct Detail {
  int head_tile;
};

std::string decline(const Problem& problem) {
  const int index = problem.device_index;
  if (std::string reason = unavailable_on(index, kOldest); !reason.empty()) return reason;
  const int room = device(index).shared_bytes_per_block;
  if (room < general_shared_bytes(16)) {
    return concat("a block needs ", general_shared_bytes(16), " bytes of shared memory, the device gives ", room);
  }
  return "";
}

// What a block of the kernel takes in microseconds: its start and end, and a step of 32 keys of either kind.
struct BlockTime {
  double ends, fp8, wide;
};
// Of an H200: bench/tune_fit.py over the launches that `pasa tune` timed (docs/tuning.md).
constexpr BlockTime k16Heads = {2.23, 2.78, 2.56}, k16HeadsPaired = {2.34, 3.48, 3.09}, k64Heads = {4.06, 3.69, 3.58};
constexpr double kMerge = 4.13, kMergePart = 0.053, kMergeMegabyte = 0.61;  // partials are written and read again

constexpr double kBetter = 0.98;  // the model is no closer: then fewer parts, less workspace

// The time of a plan: waves of as many blocks as fit the SMs, and the merge.
double estimate_us(const Problem& problem, const Device& gpu, int head_tile, int splits) {
  const std::int64_t blocks = problem.tokens * splits * ((problem.heads + head_tile - 1) / head_tile);
  const bool pairs =
      head_tile == 16 && blocks > gpu.sms && gpu.shared_bytes_per_sm >= 2 * (general_shared_bytes(16) + 1024);
  const std::int64_t slots = gpu.sms * (pairs ? 2 : 1), waves = (blocks + slots - 1) / slots;
  const BlockTime& block = head_tile == 64 ? k64Heads : pairs ? k16HeadsPaired : k16Heads;
  double wave = block.ends;
  for (int i = 0; i < problem.source_count; ++i) {
    const std::int64_t chunk = (problem.average_keys(i) + splits - 1) / splits, steps = (chunk + 31) / 32;
    wave += static_cast<double>(steps) * (find_format(problem.source[i].format)->bytes ? block.fp8 : block.wide);
  }
  const double megabytes = 1e-6 * sizeof(float) * (kValueDim + 2) * static_cast<double>(problem.tokens) * splits *
                           static_cast<double>(problem.heads);
  const double merge = splits > 1 ? kMerge + kMergePart * splits + kMergeMegabyte * megabytes : 0;
  return static_cast<double>(waves) * wave + merge;
}

struct Choice {
  int head_tile = 16, splits = 1;
};

Choice choose(const Problem& problem, const Device& gpu) {
  Choice best;
  double least = kInfinity;
  for (const int head_tile : {16, 64}) {
    const bool fits = gpu.shared_bytes_per_block >= general_shared_bytes(64);
    if (head_tile == 64 && (!fits || (problem.block_h && problem.block_h <= 16))) continue;
    if (head_tile == 16 && fits && problem.block_h > 16) continue;
    for (int splits = problem.splits ? problem.splits : 1; splits <= (problem.splits ? problem.splits : 64); ++splits) {
      const double us = estimate_us(problem, gpu, head_tile, splits);
      if (us < kBetter * least) {
        best = {head_tile, splits};
        least = us;
      }
    }
  }
  return best;
}

void plan(const Problem& problem, Plan& plan) {
  const Device& gpu = device(problem.device_index);
  const auto [head_tile, splits] = choose(problem, gpu);
  plan.splits = splits;
  plan.workspace_bytes = partials_bytes(problem, plan.splits);
  plan.detail = std::make_shared<Detail>(Detail{head_tile});
  plan.summary = concat(head_tile, " heads x 32 keys, splits ", plan.splits);
}

void run(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  if (problem.tokens == 0) return;
  const DeviceScope scope(problem.device_index);
  const Args args = make_args(problem, plan, workspace);
  launch_general(args, static_cast<const Detail*>(plan.detail.get())->head_tile, stream);
  if (args.partial && !plan.partial) {
    launch_merge(make_merge_args(args), device(problem.device_index).capability() >= 90, stream);
  }
}

}  // namespace

void reduce(const Reduce& problem, void* stream) { launch_merge(make_merge_args(problem), /*overlap=*/false, stream); }

}  // namespace cuda

extern const Backend kCudaGeneral;
const Backend kCudaGeneral = {
    .name = "cuda:general",
    .device = PASA_CUDA,
    .unavailable = [] { return cuda::unavailable(cuda::kOldest); },
    .decline = cuda::decline,
    .plan = cuda::plan,
    .run = cuda::run,
    .reduce = cuda::reduce,
    .machine = [](const Problem& problem) { return cuda::device(problem.device_index).name; },
};

}  // namespace pasa
