// Paged sparse decode on Hopper: for every query row, softmax(Q K^T) V over the tokens that its lists name.
//
// A block owns some heads of one row and walks the row's tokens in tiles of 64; a tile is 64 bf16 keys in shared memory,
// which are K and V at once. Two tiles. Two warpgroups convert records from global memory to bf16 tiles (gather.cuh,
// decode.cuh); who consumes them depends on the heads:
//   up to 64   two warpgroups: Q K^T, softmax and the left half of P V; the right half of P V   (many_heads.cuh)
//   up to 32   one warpgroup does all, with heads in the columns of the products                (few_heads.cuh)
//
// Up to 16 blocks of a cluster may split one row's tokens; they exchange their unnormalised sums through shared memory, and
// each merges a share of them, so a split row needs no workspace, no second launch and no atomics. Asked-for splits instead
// write partials for reduce.cu. More heads than a block's are groups of their own; the second group's keys come from L2.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/backend.h"
#include "cuda/device.h"
#include "cuda/few_heads.cuh"
#include "cuda/launch.h"
#include "cuda/many_heads.cuh"
#include "cuda/sm90.h"

namespace pasa::cuda {
namespace {

// ---- the kernel ----------------------------------------------------------------------------------------------------------

// A launch's arguments are read from memory line by line as the code comes across them: this asks for all lines at once, a
// warp for each.
__device__ void touch(const Params& params) {
  constexpr int kLine = 64, kWords = kLine / sizeof(std::uint32_t);
  const int line = threadIdx.x / 32 % (sizeof(Params) / kLine + 1);
  const std::uint32_t word =
      reinterpret_cast<const std::uint32_t*>(&params)[min(line * kWords, int{sizeof(Params) / 4 - 1})];
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0x80000000;\n@p nanosleep.u32 1;\n}\n" ::"r"(word));
}

// Consumers: Many or Few<8, 16 or 32>.
template <typename Format, typename Consumers>
__global__ void __launch_bounds__(Consumers::kThreads, 1)
    decode(const __grid_constant__ Params params, const __grid_constant__ CUtensorMap q_map,
           const __grid_constant__ CUtensorMap out_map) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  using S = Smem<Format::kDim, Consumers::kHeads>;
  static_assert(sizeof(S) <= 227 * 1024);
  S& smem = *reinterpret_cast<S*>(shared);
  const Address<S> at(smem);
  const Role role{params};
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);

  touch(params);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&q_map);
    ptx::mbarrier_init(at.q_full(), 1);
    for (int tile = 0; tile < 2; ++tile) {
      for (int half = 0; half < 2; ++half) {
        ptx::mbarrier_init(at.full(tile, half), kConverters / 32);
        ptx::mbarrier_init(at.free(tile, half), kWarpgroup / 32);
      }
    }
    ptx::mbarrier_init(at.p_full(), kWarpgroup / 32);
    ptx::mbarrier_init(at.p_free(), kWarpgroup / 32);
    ptx::mbarrier_init(at.finish_full(), kWarpgroup / 32);
    ptx::mbarrier_init(at.room_free(), static_cast<int>(role.mergers()));
    ptx::mbarrier_init(at.sums_in(), 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::barrier_cluster_arrive_relaxed();  // each role waits where it first needs the others
  // What comes before needs nothing of the kernel before this one, so it runs beside that one's end. The converters wait for
  // it by themselves, a little later.
  if (warpgroup < Consumers::kConsuming) {
    if (S::kHeads == kManyHeads && threadIdx.x == 0 && role.first() < role.count()) {
      prefetch_q(role, role.first(), &q_map);
    }
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
  }

  Consumers::template run<Format>(warpgroup, role, smem, at, &q_map, &out_map);
}

// ---- plan and launch -----------------------------------------------------------------------------------------------------

using Kernel = void (*)(Params, CUtensorMap, CUtensorMap);

template <typename Consumers>
Kernel kernel_of(pasa_kv_format format) {
  switch (format) {
    case PASA_KV_FP8_DS_MLA:
      return decode<Fp8DsMla, Consumers>;
    case PASA_KV_FP8_V32:
      return decode<Fp8V32, Consumers>;
    case PASA_KV_FP8_E4M3FN:
      return decode<UniformFp8<Fp8::kE4m3fn>, Consumers>;
    case PASA_KV_FP8_E4M3FNUZ:
      return decode<UniformFp8<Fp8::kE4m3fnuz>, Consumers>;
    case PASA_KV_BF16:  // and packed_bf16
    case PASA_KV_PACKED_BF16:
      return decode<Bf16<512>, Consumers>;
    default:
      return nullptr;
  }
}

// A kernel with what its launch depends on.
struct Variant {
  Kernel kernel;
  int threads;
  std::size_t shared_bytes;
};

template <typename Consumers>
Variant variant_of(pasa_kv_format format, int dim) {
  return {kernel_of<Consumers>(format), Consumers::kThreads,
          dim == kValueDim ? sizeof(Smem<kValueDim, Consumers::kHeads>) : sizeof(Smem<kMaxDim, Consumers::kHeads>)};
}

enum class Family { kMany, kFew };

Variant variant(Family family, int group_heads, pasa_kv_format format, int dim) {
  switch (family) {
    case Family::kMany:
      return variant_of<Many>(format, dim);
    default:
      return group_heads == 32   ? variant_of<Few<32>>(format, dim)
             : group_heads == 16 ? variant_of<Few<16>>(format, dim)
                                 : variant_of<Few<8>>(format, dim);
  }
}

std::string decline(const Problem& problem) {
  if (std::string reason = unavailable_on(problem.device_index, 90); !reason.empty()) return reason;
  const Device& gpu = device(problem.device_index);
  if (gpu.capability() != 90) return concat(gpu.name, " is not a Hopper GPU");
  if (problem.word != Word16::kBf16) return "q is f16, this kernel multiplies bf16";
  if (std::string needs = mla_needs(problem); !needs.empty()) return needs;
  std::int64_t entries = 0;
  for (int s = 0; s < problem.source_count; ++s) {
    const std::string name = s == 0 ? "kv" : "extra_kv";
    const Source& source = problem.sources[s];
    const pasa_kv_format format = problem.source[s].format;
    if (kernel_of<Many>(format) == nullptr || (layout_of(format) == PASA_KV_BF16 && problem.dim != kValueDim)) {
      return concat(name, " is ", find_format(format)->name, " with D = ", problem.dim,
                    ", which this kernel does not read");
    }
    if (layout_of(format) != layout_of(problem.source[0].format)) return "extra_kv has another format than kv";
    if (!is_multiple(source.kv, 16) || source.page_stride % 16 != 0) {
      return concat(name, " is at ", static_cast<const void*>(source.kv), " with rows or pages ", source.page_stride,
                    " bytes apart, 16-byte loads need multiples of 16");
    }
    entries += problem.source[s].ragged ? source.nnz : source.width;
  }
  if (entries > INT32_MAX - kTileTokens * 64) return "the lists hold more entries than 32 bits count";
  if (!copies_in_16_bytes(problem, problem.q, problem.q_stride)) {
    return "q's address or strides are no multiple of 16 bytes, which the copy engine needs";
  }
  if (!is_multiple(problem.out, 16) || problem.out_stride[0] % 8 || problem.out_stride[1] % 8) {
    return "out's address or strides are no multiple of 16 bytes, the width of a store";
  }
  if (problem.tokens * std::max(1, problem.splits) * ((problem.heads + 15) / 16) > INT32_MAX / 2)
    return "too many rows";
  return "";
}

struct Detail {
  Family family;
  int group_heads;
  int ranks;              // blocks of a cluster
  std::int64_t clusters;  // at most, of a launch
};

cudaLaunchConfig_t launch_config(const Detail& detail, const Variant& variant, std::int64_t clusters,
                                 cudaLaunchAttribute (&attributes)[2]) {
  const auto size = static_cast<unsigned>(detail.ranks);
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = size;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  return {.gridDim = dim3(static_cast<unsigned>(clusters) * size),
          .blockDim = dim3(static_cast<unsigned>(variant.threads)),
          .dynamicSmemBytes = variant.shared_bytes,
          .stream = nullptr,
          .attrs = attributes,
          .numAttrs = 2};
}

// Lets a kernel have the shared memory and the clusters that it is launched with.
void allow(const Variant& its) {
  const auto kernel = reinterpret_cast<const void*>(its.kernel);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(its.shared_bytes)),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
}

// Clusters of this shape that the device runs at once.
std::int64_t active_clusters(const Detail& detail, const Variant& its) {
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = launch_config(detail, its, 1, attributes);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, reinterpret_cast<const void*>(its.kernel), &config) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

// Of a cluster's ranks those that merge, where sums are pushed: a power of two.
constexpr int mergers(int ranks) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks))); }

// Cycles of an item by the block's heads: its start and end, its tiles, and a merge of its blocks' sums.
struct Cost {
  double ends, ends_per_head, tile, tile_per_head, merge, merge_per_head, merge_per_rank;
  double surplus_per_head;  // where more ranks push than merge
  double crowd;             // of a tile, where every multiprocessor asks memory for one

  // busy: of the multiprocessors, those that run blocks.
  double of(int heads, double tiles, int ranks, double busy) const {
    double merging = ranks == 1 ? 0 : merge + merge_per_head * heads + merge_per_rank * ranks;
    merging += surplus_per_head * heads * (static_cast<double>(ranks) / mergers(ranks) - 1);
    return ends + ends_per_head * heads + (tile + tile_per_head * heads + crowd * busy) * tiles + merging;
  }
};

// Fitted to an H200's times at T = 1 to 64, 16 to 128 heads, every shape; less 2300 cycles that a launch costs with any.
constexpr Cost kCosts[] = {{7926, 41, 2616, 1, 50, 72, 258, 18, 1490},      // kMany
                           {1837, 161, 1819, 31, 113, 85, 39, 233, 1641}};  // kFew

// The shape that finishes first: rounds of items.
Detail choose_shape(const Problem& problem, std::initializer_list<Family> families) {
  const std::int64_t keys = problem.average_keys();
  const int sms = device(problem.device_index).sms;
  Detail best{};
  double least = 0;
  const auto consider = [&](Family family, int group_heads, int ranks, const Variant& its) {
    Detail detail{family, group_heads, ranks, 0};
    detail.clusters = active_clusters(detail, its);
    if (detail.clusters == 0) return;
    const std::int64_t groups = (problem.heads + group_heads - 1) / group_heads;
    const std::int64_t items = problem.tokens * std::max(1, problem.splits) * groups;
    const std::int64_t rounds = (items + detail.clusters - 1) / detail.clusters;
    // Where more ranks push than merge there is room for one item.
    if (family == Family::kFew && mergers(ranks) < ranks && rounds > 1) return;
    const std::int64_t each = (keys / std::max(1, problem.splits) + ranks - 1) / ranks;
    const auto tiles = static_cast<double>(std::max<std::int64_t>(1, (each + kTileTokens - 1) / kTileTokens));
    const double busy = static_cast<double>(std::min(items, detail.clusters) * ranks) / sms;
    const double cost =
        static_cast<double>(rounds) * kCosts[static_cast<int>(family)].of(group_heads, tiles, ranks, busy);
    if (best.clusters == 0 || cost < least) best = detail, least = cost;
  };
  for (const Family family : families) {
    // With the splits fixed a row's bits are its own, whatever the batch: so is the family.
    if (problem.splits > 0 && families.size() > 1 && (family == Family::kFew) != (problem.heads <= 32)) continue;
    const int least_heads = family == Family::kFew ? 8 : 16;
    for (int group_heads = 4 * least_heads; group_heads >= least_heads; group_heads /= 2) {
      if (group_heads / 2 >= problem.heads && group_heads > least_heads) continue;
      // With fewer heads kFew is the faster one, and the costs of neither tell by how much.
      if (family == Family::kMany && group_heads < kManyHeads && problem.splits <= 0 && families.size() > 1) continue;
      const Variant its = variant(family, group_heads, problem.source[0].format, problem.dim);
      allow(its);
      for (const int ranks : {1, 2, 3, 4, 6, 8, 9, 12, kMaxCluster}) {
        if (ranks > 1 && problem.splits > 0) break;  // the caller cuts the rows: 1 means not at all
        consider(family, group_heads, ranks, its);
      }
      if (family == Family::kFew && families.size() == 1) break;  // asked for by name: blocks as wide as the heads
    }
  }
  require(PASA_ERROR_INTERNAL, best.clusters > 0, "no launch shape of decode_sm90 fits the device");
  return best;
}

template <Family... kFamilies>
void plan(const Problem& problem, Plan& plan) {
  const DeviceScope scope(problem.device_index);
  const Detail detail = choose_shape(problem, {kFamilies...});
  plan.splits = std::max(1, problem.splits);
  plan.workspace_bytes = partials_bytes(problem, plan.splits);
  plan.detail = std::make_shared<Detail>(detail);
  plan.summary = concat(detail.family == Family::kFew ? "few: " : "many: ", detail.group_heads,
                        " heads x 64 keys, clusters of ", detail.ranks, ", splits ", plan.splits);
}

void run(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  const DeviceScope scope(problem.device_index);
  const Args args = make_args(problem, plan, workspace);
  const auto& detail = *static_cast<const Detail*>(plan.detail.get());
  const int groups = (problem.heads + detail.group_heads - 1) / detail.group_heads;
  const std::int64_t items = problem.tokens * plan.splits * groups;
  const Params params{
      args,
      {groups, detail.group_heads, detail.ranks, std::countr_zero(static_cast<unsigned>(mergers(detail.ranks))),
       static_cast<std::uint32_t>(items), make_divider(static_cast<std::uint32_t>(groups)),
       make_divider(static_cast<std::uint32_t>(detail.ranks))}};
  cudaLaunchAttribute attributes[2] = {};
  const Variant its = variant(detail.family, detail.group_heads, problem.source[0].format, problem.dim);
  cudaLaunchConfig_t config = launch_config(detail, its, std::min(items, detail.clusters), attributes);
  config.stream = static_cast<cudaStream_t>(stream);
  const bool many = detail.family == Family::kMany;
  const CUtensorMap q_map = make_tensor_map(problem, problem.q, problem.q_stride, problem.dim,
                                            many ? kManyHeads : detail.group_heads, problem.dim / kPanelColumns);
  const CUtensorMap out_map =
      many && detail.ranks == 1 && !args.partial
          ? make_tensor_map(problem, problem.out, problem.out_stride, kValueDim, detail.group_heads, 1)
          : CUtensorMap{};
  check(cudaLaunchKernelEx(&config, its.kernel, params, q_map, out_map), "decode_sm90");
  if (args.partial && !plan.partial) launch_merge(make_merge_args(args), /*overlap=*/true, stream);
}

}  // namespace
}  // namespace pasa::cuda

namespace pasa {
namespace {

constexpr Backend backend(std::string_view name, void (*plan)(const Problem&, Plan&), std::string_view on_request) {
  return {.name = name,
          .device = PASA_CUDA,
          .unavailable = [] { return cuda::unavailable(90); },
          .decline = cuda::decline,
          .plan = plan,
          .run = cuda::run,
          .reduce = nullptr,
          .on_request = on_request};
}

constexpr std::string_view kPart = "one of the kernels that cuda:sm90 chooses from";

}  // namespace

extern const Backend kCudaSm90, kCudaSm90Many, kCudaSm90Few;
constinit const Backend kCudaSm90 = backend("cuda:sm90", cuda::plan<cuda::Family::kMany, cuda::Family::kFew>, "");
constinit const Backend kCudaSm90Many = backend("cuda:sm90_many", cuda::plan<cuda::Family::kMany>, kPart);
constinit const Backend kCudaSm90Few = backend("cuda:sm90_few", cuda::plan<cuda::Family::kFew>, kPart);

}  // namespace pasa
