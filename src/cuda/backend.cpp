// The row "cuda:general" of the backend table: what it can run on, how it plans, how it launches.
//
// A plan fixes the head tile and the number of parts a row is cut into, from shapes alone: list lengths live on the device,
// so the average that the index tensor's size tells stands for them. Each block then finds its own range from the lengths,
// and every part is written whatever they say, which is what makes a captured run safe to replay with other lists.
#include <algorithm>
#include <memory>

#include "core/backend.h"
#include "cuda/args.h"
#include "cuda/device.h"

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

// 64 heads share one gathered key if they are there and their tile fits.
int choose_head_tile(const Problem& problem, const Device& gpu) {
  const int wanted = problem.block_h ? problem.block_h : problem.heads;
  const bool fits = gpu.shared_bytes_per_block >= general_shared_bytes(64);
  return wanted > 32 && fits ? 64 : 16;
}

// The parts that finish first, in units of one step of 32 keys: a wave of blocks takes their steps and about one more to
// start and end; a merge costs about two and a little for each part it reads.
int choose_splits(const Problem& problem, const Device& gpu, int head_tile) {
  const std::int64_t blocks_per_sm = std::clamp(gpu.shared_bytes_per_sm / (general_shared_bytes(head_tile) + 1024), 1,
                                                head_tile == 16 ? 2 : 1);
  const std::int64_t slots = blocks_per_sm * gpu.sms;
  const std::int64_t blocks = problem.tokens * ((problem.heads + head_tile - 1) / head_tile);
  const auto cost = [&](int splits) {
    std::int64_t steps = 0;
    for (int i = 0; i < problem.source_count; ++i) {
      const std::int64_t chunk = (problem.average_keys(i) + splits - 1) / splits;
      steps += (chunk + 31) / 32;
    }
    const std::int64_t waves = (blocks * splits + slots - 1) / slots;
    return static_cast<double>(waves * (steps + 1)) + (splits > 1 ? 2 + 0.05 * splits : 0);
  };
  int best = 1;
  for (int splits = 2; splits <= 64; ++splits) {
    if (cost(splits) < cost(best)) best = splits;
  }
  return best;
}

void plan(const Problem& problem, Plan& plan) {
  const Device& gpu = device(problem.device_index);
  const int head_tile = choose_head_tile(problem, gpu);
  plan.splits = problem.splits ? problem.splits : choose_splits(problem, gpu, head_tile);
  const bool given = problem.skip_reduce && plan.splits > 1;  // the caller brings the room for the partials
  plan.workspace_bytes = plan.splits > 1 && !given ? partials_bytes(problem.tokens, plan.splits, problem.heads) : 0;
  plan.detail = std::make_shared<Detail>(Detail{head_tile});
  plan.summary = concat(head_tile, " heads x 32 keys, splits ", plan.splits);
}

void run(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  if (problem.tokens == 0) return;
  const DeviceScope scope(problem.device_index);
  const Args args = make_args(problem, plan, workspace);
  launch_general(args, static_cast<const Detail*>(plan.detail.get())->head_tile, stream);
  if (args.partial && !plan.partial) {
    launch_merge(args, device(problem.device_index).capability() >= 90, stream);
  }
}

}  // namespace

void reduce(const Reduce& problem, void* stream) {
  launch_merge({.partials = {const_cast<float*>(problem.acc), const_cast<float*>(problem.m), const_cast<float*>(problem.l)},
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
                .max_logits_stride = {}},
               /*overlap=*/false, stream);
}

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
};

}  // namespace pasa
