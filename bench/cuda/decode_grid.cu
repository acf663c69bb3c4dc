// pasa_bench_cuda: decode and prefill at the shapes of serving, timed on a GPU, checked, and printed beside the peers' recorded times.
//
//   --table flashmla   packed fp8, sliding window + top-k in two pools: heads x rows x lists        (the default)
//   --table formats    one list in one pool: bf16 and both flavours of uniform fp8
//   --table loops      the same keys as one list or two, uniform and packed
//   --table v32        656-byte records, long lists
//   --table prefill    thousands of rows over a pool that L2 holds, full rows and rows of random length: 16-bit and fp8 pools
//   --table switch     where decode ends and prefill begins: the kernels of both, which of them the planner takes, and how
//                      much slower that one is than the better
//
// Method: pools of millions of tokens with random data; uniformly scattered lists. A graph holds `sets` calls, each with its
// own q, lists and out, so that keys come from memory; before a replay L2 is emptied by reads, and where q and lists are
// small they are read into it again, as the step before would have left them ("cold"). "hot" replays one set. Time a call:
// the median over the replays, over the calls. Every cell is compared with the float64 reference on the GPU first.
//
// Floor = max(bytes / gather rate measured in this run, FLOPs / 772 TFLOP/s); bytes are those of every listed key (at most
// the pool's), q, lists and out.
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/cuda/ceilings.h"
#include "core/error.h"
#include "core/format.h"
#include "cuda/device.h"
#include "harness/case.h"
#include "harness/cuda_reference.h"
#include "harness/device.h"

namespace pasa::bench {
namespace {

using cuda::check;

// ---- random inputs, made on the GPU

__host__ __device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
// Mean 0, deviation 1: the sum of the four 16-bit parts.
__device__ float normal(std::uint64_t random) {
  float sum = -131070;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((random >> (16 * i)) & 0xffff);
  return sum * (1.0f / 37837.0f);
}

template <typename Body>
__global__ void for_all(std::size_t count, Body body) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) body(i);
}
template <typename Body>
void fill(std::size_t count, Body body) {
  for_all<<<2048, 256>>>(count, body);
  check(cudaGetLastError(), "fill");
}

void fill_words(void* to, std::size_t count, pasa_dtype dtype, float deviation, std::uint64_t seed) {
  auto* words = static_cast<std::uint16_t*>(to);
  fill(count, [=] __device__(std::size_t i) {
    const float x = normal(mix(seed ^ i)) * deviation;
    words[i] = dtype == PASA_BF16 ? float_to_bf16(x) : float_to_f16(x);
  });
}
void fill_codes(std::uint8_t* to, std::size_t count, Fp8 flavour, std::uint64_t seed) {
  fill(count, [=] __device__(std::size_t i) { to[i] = float_to_fp8(flavour, normal(mix(seed ^ i)) * 16); });
}
void fill_floats(float* to, std::size_t count, float low, float high, std::uint64_t seed) {
  fill(count, [=] __device__(std::size_t i) {
    to[i] = low + (high - low) * static_cast<float>(mix(seed ^ i) >> 40) * 0x1p-24f;
  });
}
void fill_slots(std::int32_t* to, std::size_t count, std::int64_t slots, std::uint64_t seed) {
  fill(count, [=] __device__(std::size_t i) {
    to[i] = static_cast<std::int32_t>(mix(seed ^ i) % static_cast<std::uint64_t>(slots));
  });
}
// Of row i: all of `width`, or any number from a quarter of it on.
__host__ __device__ std::int64_t row_length(std::size_t i, std::int64_t width, bool random, std::uint64_t seed) {
  const std::int64_t least = random ? width / 4 : width;
  return least + static_cast<std::int64_t>(mix(seed ^ i) % static_cast<std::uint64_t>(width - least + 1));
}
void fill_lengths(std::int32_t* to, std::size_t count, std::int64_t width, bool random, std::uint64_t seed) {
  fill(count, [=] __device__(std::size_t i) { to[i] = static_cast<std::int32_t>(row_length(i, width, random, seed)); });
}

// Records of a paged fp8 pool: everything is written as codes, then the 16-bit parts and scales over them.
template <typename Format>
void fill_records(std::uint8_t* pool, std::int64_t slots, std::int64_t page, std::uint64_t seed) {
  const std::int64_t stride = page * Format::kTokenBytes;
  fill_codes(pool, static_cast<std::size_t>(slots) * Format::kTokenBytes, Format::kFlavour, seed);
  fill(static_cast<std::size_t>(slots), [=] __device__(std::size_t slot) {
    std::uint8_t* base = pool + static_cast<std::int64_t>(slot) / page * stride;
    std::uint8_t* record = base + static_cast<std::int64_t>(slot) % page * Format::kRecordBytes;
    for (int j = 0; j < Format::kRope; ++j) {
      const std::uint16_t word = float_to_bf16(normal(mix(seed ^ (slot * 64 + j) ^ 0x5555)) * 0.5f);
      record[Format::kRopeOffset + 2 * j] = static_cast<std::uint8_t>(word);
      record[Format::kRopeOffset + 2 * j + 1] = static_cast<std::uint8_t>(word >> 8);
    }
    for (int tile = 0; tile < Format::kScales; ++tile) {
      const auto random = static_cast<unsigned>(mix(seed ^ (slot * 8 + tile) ^ 0xaaaa) % 4);  // around 1/32
      if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
        base[page * Format::kRecordBytes + static_cast<std::int64_t>(slot) % page * Format::kTailBytes + tile] =
            static_cast<std::uint8_t>(120 + random);
      } else {
        *reinterpret_cast<float*>(record + Format::kNope + 4 * tile) = 0.02f + 0.01f * static_cast<float>(random);
      }
    }
  });
}

// ---- pools and sets of inputs

using Memory = std::shared_ptr<void>;
Memory allocate(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc");
  return {data, [](void* p) { cudaFree(p); }};
}
pasa_tensor on_gpu(void* data, pasa_dtype dtype, std::vector<std::int64_t> shape) {
  pasa_tensor tensor = dense_view(data, dtype, shape);
  tensor.device = PASA_CUDA;
  return tensor;
}

struct Pool {
  Memory kv, scales;
  pasa_source source{};  // without lists
  std::int64_t slots = 0;
};

Pool make_pool(pasa_kv_format format, std::int64_t slots, std::int64_t page, int dim, std::uint64_t seed) {
  Pool pool;
  pool.slots = slots;
  pool.source.format = format;
  const FormatInfo& info = *find_format(format);
  if (format == PASA_KV_FP8_DS_MLA || format == PASA_KV_FP8_V32) {
    const bool v32 = format == PASA_KV_FP8_V32;
    const int bytes = v32 ? Fp8V32::kTokenBytes : Fp8DsMla::kTokenBytes;
    pool.kv = allocate(static_cast<std::size_t>(slots) * static_cast<std::size_t>(bytes));
    auto* data = static_cast<std::uint8_t*>(pool.kv.get());
    v32 ? fill_records<Fp8V32>(data, slots, page, seed) : fill_records<Fp8DsMla>(data, slots, page, seed);
    pool.source.kv = on_gpu(data, PASA_U8, {slots / page, page, bytes});
  } else if (info.side_scales) {
    pool.kv = allocate(static_cast<std::size_t>(slots) * 512);
    pool.scales = allocate(static_cast<std::size_t>(slots) * 32);
    const bool fnuz = format == PASA_KV_FP8_E4M3FNUZ;
    fill_codes(static_cast<std::uint8_t*>(pool.kv.get()), static_cast<std::size_t>(slots) * 512,
               fnuz ? Fp8::kE4m3fnuz : Fp8::kE4m3fn, seed);
    fill_floats(static_cast<float*>(pool.scales.get()), static_cast<std::size_t>(slots) * 8, 0.02f, 0.06f, seed + 1);
    pool.source.kv = on_gpu(pool.kv.get(), fnuz ? PASA_F8_E4M3FNUZ : PASA_F8_E4M3FN, {slots, 512});
    pool.source.kv_scales = on_gpu(pool.scales.get(), PASA_F32, {slots, 8});
  } else {
    pool.kv = allocate(static_cast<std::size_t>(slots) * static_cast<std::size_t>(dim) * 2);
    fill_words(pool.kv.get(), static_cast<std::size_t>(slots) * static_cast<std::size_t>(dim), PASA_BF16, 0.5f, seed);
    pool.source.kv = info.paged ? on_gpu(pool.kv.get(), PASA_BF16, {slots / page, page, dim})
                                : on_gpu(pool.kv.get(), PASA_BF16, {slots, dim});
  }
  return pool;
}

struct Cell {
  pasa_kv_format format;
  bool two = false;  // two lists in two pools; else one list of main + extra entries
  int heads = 0;
  std::int64_t tokens = 0, main = 0, extra = 0;
  std::int64_t slots = 0;    // of each pool that the lists name: the first so many; 0: all
  bool random_rows = false;  // lists of random length
  const char* lists() const { return two ? "two" : "one"; }
  const char* rows() const { return random_rows ? "random" : "full"; }
};

// The seed of a set's lists of one source.
constexpr std::uint64_t list_seed(int set, bool extra) {
  return (std::uint64_t{1000} + static_cast<std::uint64_t>(set) * 16 + 1 + extra) << 32;
}

struct Result {
  Cell cell;
  std::string kernel;
  int splits = 0;
  std::size_t workspace = 0;
  double us = 0, spread = 0, hot_us = 0, host_us = 0;
  double bytes = 0, flops = 0, floor_us = 0, relative_error = 0;
};

class Bench {
 public:
  explicit Bench(cudaStream_t stream) : stream_(stream) {}

  const Pool& pool(pasa_kv_format format, bool extra) {
    Pool& pool = pools_[{format, extra}];
    if (!pool.kv) {
      const bool wide = format == PASA_KV_FP8_V32;
      pool = make_pool(format, extra ? 1 << 21 : 3 << 21, extra ? 64 : 256, wide ? 576 : 512, extra ? 77 : 33);
      check(cudaStreamSynchronize(nullptr), "make_pool");
    }
    return pool;
  }

  // The kernel that the planner takes for what was timed last.
  std::string planned() const {
    pasa_problem p = problems_[0];
    p.kernel = nullptr;
    pasa_plan* plan = nullptr;
    check_status(pasa_plan_create(&p, &plan));
    const std::shared_ptr<pasa_plan> owner(plan, pasa_plan_destroy);
    return pasa_plan_kernel(plan);
  }

  GpuCeilings ceilings() {
    const Pool& p = pool(PASA_KV_FP8_DS_MLA, false);
    return measure_gpu_ceilings(p.kv.get(), static_cast<std::size_t>(p.slots) * 584, stream_);
  }

  Result time(const Cell& cell, const std::string& kernel, int splits, int replays, const GpuCeilings& ceilings) {
    const int dim = find_format(cell.format)->dim ? find_format(cell.format)->dim : 512;
    Result r{.cell = cell};
    const int key_bytes = with_format(cell.format, dim, [&]<typename Format>() { return Format::kBytesRead; });
    const double rows = static_cast<double>(cell.tokens);
    double keys = 0, read = 0;  // listed by the rows of a set; read from memory
    for (const bool extra : {false, true}) {
      const std::int64_t width = extra ? (cell.two ? cell.extra : 0) : (cell.two ? cell.main : cell.main + cell.extra);
      double listed = 0;
      for (std::int64_t t = 0; t < cell.tokens; ++t) {
        listed +=
            static_cast<double>(row_length(static_cast<std::size_t>(t), width, cell.random_rows, ~list_seed(0, extra)));
      }
      keys += listed;
      read += cell.slots ? std::min(listed, static_cast<double>(cell.slots)) : listed;
    }
    r.bytes = read * key_bytes + keys * 4 + rows * cell.heads * (dim + 512) * 2;
    r.flops = 2.0 * cell.heads * (dim + 512) * keys;
    r.floor_us = 1e6 * std::max(r.bytes / (ceilings.gather_gbps * 1e9), r.flops / (kMatmulTflops * 1e12));

    const int sets = std::clamp(static_cast<int>(4e8 / r.bytes), 20, 64);
    make_inputs(cell, dim, sets, kernel, splits);
    pasa_plan* plan = nullptr;
    check_status(pasa_plan_create(&problems_[0], &plan));
    const std::shared_ptr<pasa_plan> owner(plan, pasa_plan_destroy);
    r.kernel = pasa_plan_kernel(plan);
    r.splits = pasa_plan_splits(plan);
    r.workspace = pasa_plan_workspace_bytes(plan);
    const Memory workspace = allocate(std::max<std::size_t>(r.workspace, 1));
    const auto call = [&](int set) {
      check_status(pasa_run(plan, &problems_[static_cast<std::size_t>(set)], workspace.get(), r.workspace, stream_));
    };
    r.relative_error = check_against_reference(cell, call);

    const auto graph_us = [&](bool cold) {
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      for (int set = 0; set < sets; ++set) call(cold ? set : 0);
      check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
      check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      std::vector<double> times;
      cudaEvent_t begin, end;
      cudaEventCreate(&begin);
      cudaEventCreate(&end);
      for (int i = 0; i < replays + 2; ++i) {
        if (cold) {
          read_through_l2(pool(PASA_KV_FP8_DS_MLA, false).kv.get(), std::size_t{192} << 20, stream_);
          if (input_bytes_ < 24e6) {
            for (const Memory& memory : inputs_) read_through_l2(memory.get(), sizes_.at(memory.get()), stream_);
          }
        }
        check(cudaEventRecord(begin, stream_), "cudaEventRecord");
        check(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
        check(cudaEventRecord(end, stream_), "cudaEventRecord");
        check(cudaEventSynchronize(end), "cudaEventSynchronize");
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
        if (i >= 2) times.push_back(1e3 * milliseconds / sets);
      }
      cudaEventDestroy(begin);
      cudaEventDestroy(end);
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
      std::sort(times.begin(), times.end());
      return times;
    };
    const std::vector<double> cold = graph_us(true), hot = graph_us(false);
    r.us = cold[cold.size() / 2];
    r.spread = (cold[cold.size() * 3 / 4] - cold[cold.size() / 4]) / r.us;
    r.hot_us = hot[hot.size() / 2];
    // The host's cost of one call: many calls in a row, the GPU's time not waited for.
    constexpr int kCalls = 100;
    const int batches = static_cast<int>(std::clamp(5e4 / (r.us * kCalls), 1.0, 5.0));
    const auto batch = [&] {
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      const Stopwatch watch;
      for (int i = 0; i < kCalls; ++i) call(0);
      return watch.seconds();
    };
    r.host_us = 1e6 * measure({.warmup = 0, .reps = batches}, batch, [] {}).median() / kCalls;
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return r;
  }

 private:
  Memory input(std::size_t bytes) {
    inputs_.push_back(allocate(bytes));
    sizes_[inputs_.back().get()] = bytes;
    input_bytes_ += static_cast<double>(bytes);
    return inputs_.back();
  }

  void make_inputs(const Cell& cell, int dim, int sets, const std::string& kernel, int splits) {
    problems_.clear();
    inputs_.clear();
    outputs_.clear();
    sizes_.clear();
    input_bytes_ = 0;
    kernel_ = kernel;
    const std::int64_t rows = cell.tokens * cell.heads;
    sink_ = allocate(static_cast<std::size_t>(cell.heads) * 4);
    fill_floats(static_cast<float*>(sink_.get()), static_cast<std::size_t>(cell.heads), -1, 1, 5);
    for (int set = 0; set < sets; ++set) {
      pasa_problem p{};
      p.struct_size = sizeof p;
      const auto q_words = static_cast<std::size_t>(rows) * static_cast<std::size_t>(dim);
      const Memory q = input(q_words * 2);
      fill_words(q.get(), q_words, PASA_BF16, 0.5f, list_seed(set, false) - (std::uint64_t{1} << 32));
      p.q = on_gpu(q.get(), PASA_BF16, {cell.tokens, cell.heads, dim});
      const auto list = [&](pasa_source& source, bool extra, std::int64_t width) {
        const Pool& from = pool(cell.format, extra);
        source = from.source;
        const auto entries = static_cast<std::size_t>(cell.tokens * width);
        const Memory indices = input(entries * 4), lengths = input(static_cast<std::size_t>(cell.tokens) * 4);
        fill_slots(static_cast<std::int32_t*>(indices.get()), entries, cell.slots ? cell.slots : from.slots,
                   list_seed(set, extra));
        // Every set has the first one's lengths, so that its FLOPs are every set's.
        fill_lengths(static_cast<std::int32_t*>(lengths.get()), static_cast<std::size_t>(cell.tokens), width,
                     cell.random_rows, ~list_seed(0, extra));
        source.indices = on_gpu(indices.get(), PASA_I32, {cell.tokens, width});
        source.lengths = on_gpu(lengths.get(), PASA_I32, {cell.tokens});
      };
      list(p.main, false, cell.two ? cell.main : cell.main + cell.extra);
      if (cell.two) list(p.extra, true, cell.extra);
      p.attn_sink = on_gpu(sink_.get(), PASA_F32, {cell.heads});
      outputs_.push_back(allocate(static_cast<std::size_t>(rows) * 1024));
      p.out = on_gpu(outputs_.back().get(), PASA_BF16, {cell.tokens, cell.heads, 512});
      outputs_.push_back(allocate(static_cast<std::size_t>(rows) * 4));
      p.lse = on_gpu(outputs_.back().get(), PASA_F32, {cell.tokens, cell.heads});
      p.kv_splits = splits;
      p.kernel = kernel_.empty() ? nullptr : kernel_.c_str();
      problems_.push_back(p);
    }
    check(cudaStreamSynchronize(nullptr), "make_inputs");
  }

  // ||out - reference|| / ||reference|| of the first set, its output poisoned before.
  template <typename Call>
  double check_against_reference(const Cell& cell, Call&& call) {
    const auto rows = static_cast<std::size_t>(cell.tokens * cell.heads);
    const pasa_problem& p = problems_[0];
    check(cudaMemsetAsync(p.out.data, 0xff, rows * 1024, stream_), "cudaMemsetAsync");
    check(cudaMemsetAsync(p.lse.data, 0xff, rows * 4, stream_), "cudaMemsetAsync");
    call(0);
    const Memory out = allocate(rows * 2048), lse = allocate(rows * 4), sums = allocate(sizeof(ErrorSums));
    const DeviceReference want{static_cast<float*>(out.get()), static_cast<float*>(lse.get()), nullptr};
    device_reference(p, want, stream_);
    sum_errors(p, want, static_cast<ErrorSums*>(sums.get()), stream_);
    ErrorSums error{};
    check(cudaMemcpyAsync(&error, sums.get(), sizeof error, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "check");
    const double relative = std::sqrt(error.squared_error / error.squared_reference);
    require(PASA_ERROR_INTERNAL, relative < 4e-3 && error.largest_lse_error < 1e-3f, "wrong result: relative error ",
            relative, ", lse off by ", error.largest_lse_error, " (", cell.heads, " heads, T ", cell.tokens, ", ",
            cell.main, "+", cell.extra, ")");
    return relative;
  }

  cudaStream_t stream_;
  std::map<std::pair<pasa_kv_format, bool>, Pool> pools_;
  std::vector<pasa_problem> problems_;
  std::vector<Memory> inputs_, outputs_;
  std::map<const void*, std::size_t> sizes_;
  double input_bytes_ = 0;
  Memory sink_;
  std::string kernel_;
};

// ---- recorded peers

struct Peer {
  std::string name;
  double us = 0;
};
// The fastest recorded row for the cell; FlashMLA ran 16 and 32 heads padded to 64. One merged list has no split in
// main + extra, so 128 + 1024 and 1152 are the same.
class Peers {
 public:
  explicit Peers(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::vector<std::string> fields;
      std::istringstream row(line);
      for (std::string field; std::getline(row, field, ',');) fields.push_back(field);
      if (fields.size() >= 8 && fields[0] != "peer") rows_.push_back(fields);
    }
  }
  Peer best(const Cell& cell) const {
    if (cell.slots) return prefill(cell);
    Peer best;
    for (const auto& f : rows_) {
      if (f[1] != find_format(cell.format)->name || f[2] != cell.lists()) continue;
      if (std::stoi(f[3]) != cell.heads || std::stoll(f[4]) != cell.tokens) continue;
      const std::int64_t main = std::stoll(f[5]), extra = std::stoll(f[6]);
      const bool same = cell.two ? main == cell.main && extra == cell.extra : main + extra == cell.main + cell.extra;
      if (!same) continue;
      if (const double us = std::stod(f[7]); best.us == 0 || us < best.us) best = {f[0], us};
    }
    return best;
  }

 private:
  // peer, heads, queries, kv, topk, rows, mode, us, TFLOP/s, of 16-bit pools, timed until the power cap held the clock; fewer
  // heads than 64 were padded to them.
  Peer prefill(const Cell& cell) const {
    for (const auto& f : rows_) {
      if (f.size() < 9 || f[6] != "sustained" || std::stoi(f[1]) != std::max(64, cell.heads)) continue;
      if (std::stoll(f[2]) == cell.tokens && std::stoll(f[3]) == cell.slots && std::stoll(f[4]) == cell.main &&
          f[5] == cell.rows()) {
        return {f[0], std::stod(f[7])};
      }
    }
    return {};
  }

  std::vector<std::vector<std::string>> rows_;
};

std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> list;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) list.push_back(std::stoll(part));
  return list;
}

// Those of the heads, and of the numbers of keys if any are given.
std::vector<Cell> prefill_cells(const std::vector<std::int64_t>& heads, const std::vector<std::int64_t>& keys) {
  const auto among = [](const std::vector<std::int64_t>& list, std::int64_t x) {
    return std::ranges::count(list, x) > 0;
  };
  struct Shape {
    int heads;
    std::int64_t queries, kv, topk;
    bool fp8;  // too
  };
  std::vector<Cell> cells;
  for (const Shape& shape :
       {Shape{128, 4096, 4096, 512, false}, Shape{128, 4096, 4096, 1024, true}, Shape{128, 8192, 8192, 1024, false},
        Shape{128, 4096, 32768, 2048, false}, Shape{64, 4096, 4096, 1024, true}, Shape{16, 4096, 4096, 1024, true}}) {
    if (!among(heads, shape.heads) || !(keys.empty() || among(keys, shape.topk))) continue;
    for (const pasa_kv_format format : {PASA_KV_BF16, PASA_KV_FP8_DS_MLA, PASA_KV_FP8_E4M3FN}) {
      if (format != PASA_KV_BF16 && !shape.fp8) continue;
      for (const bool random : {false, true}) {
        cells.push_back({format, false, shape.heads, shape.queries, shape.topk, 0, shape.kv, random});
      }
    }
  }
  return cells;
}

// A 16-bit workspace that L2 holds, and a cache of records that it does not.
std::vector<Cell> switch_cells(const std::string& heads, const std::string& tokens) {
  std::vector<Cell> cells;
  for (const Cell& form : {Cell{.format = PASA_KV_BF16, .slots = 32768}, Cell{.format = PASA_KV_FP8_DS_MLA}}) {
    for (const std::int64_t topk : {512, 1024}) {
      for (const std::int64_t h : numbers(heads)) {
        for (const std::int64_t t : numbers(tokens)) {
          cells.push_back(form);
          cells.back().heads = static_cast<int>(h), cells.back().tokens = t, cells.back().main = topk;
        }
      }
    }
  }
  return cells;
}

std::vector<Cell> table_cells(const std::string& table, const std::string& heads, const std::string& tokens,
                              const std::string& lists) {
  if (table == "prefill") return prefill_cells(numbers(heads), numbers(lists));
  if (table == "switch") return switch_cells(heads, tokens);
  struct Form {
    pasa_kv_format format;
    bool two;
  };
  std::vector<Form> forms;
  std::string use = lists;
  if (table == "flashmla") forms = {{PASA_KV_FP8_DS_MLA, true}};
  if (table == "formats") forms = {{PASA_KV_BF16, false}, {PASA_KV_FP8_E4M3FN, false}, {PASA_KV_FP8_E4M3FNUZ, false}};
  if (table == "loops") {
    forms = {{PASA_KV_FP8_E4M3FN, false},
             {PASA_KV_FP8_DS_MLA, false},
             {PASA_KV_FP8_DS_MLA, true},
             {PASA_KV_BF16, false},
             {PASA_KV_PACKED_BF16, true}};
  }
  if (table == "v32") forms = {{PASA_KV_FP8_V32, false}};
  if (use.empty()) use = table == "v32" ? "2048+0" : "128+1024,128+256,128+64,128+8";
  std::vector<Cell> cells;
  std::istringstream parts(use);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto plus = part.find('+');
    const std::int64_t main = std::stoll(part),
                       extra = plus == std::string::npos ? 0 : std::stoll(part.substr(plus + 1));
    for (const Form& form : forms) {
      for (const std::int64_t h : numbers(heads)) {
        for (const std::int64_t t : numbers(tokens)) {
          cells.push_back({form.format, form.two, static_cast<int>(h), t, main, extra});
        }
      }
    }
  }
  return cells;
}

int run(int argc, char** argv) {
  std::string table = "flashmla", heads = "16,64,128", tokens, lists, kernel, json, commit, peers = "bench/peers";
  int replays = 15, splits = 0;
  CLI::App app{"decode and prefill on a GPU, beside their peers"};
  app.add_option("--table", table)->check(CLI::IsMember({"flashmla", "formats", "loops", "v32", "prefill", "switch"}));
  app.add_option("--heads", heads);
  app.add_option("--tokens", tokens, "[1,4,16,64,128,256; switch: 64,128,256,512,1024]");
  app.add_option("--lists", lists, "main+extra,...; prefill: keys,...");
  app.add_option("--kernel", kernel, "force a kernel; cells that it declines are left out");
  app.add_option("--splits", splits);
  app.add_option("--replays", replays);
  app.add_option("--peers", peers, "folder of the recorded times");
  app.add_option("--json", json, "write the rows here");
  app.add_option("--commit", commit, "what the file says of the source");
  CLI11_PARSE(app, argc, argv);
  const bool is_switch = table == "switch";
  if (tokens.empty()) tokens = is_switch ? "64,128,256,512,1024" : "1,4,16,64,128,256";
  if (const std::string reason = cuda::unavailable(80); !reason.empty()) {
    std::fprintf(stderr, "device: no GPU: %s\n", reason.c_str());
    return 3;
  }
  const std::unique_ptr<Device> gpu = open_device("cuda");
  Bench bench(static_cast<cudaStream_t>(gpu->stream()));
  const GpuCeilings ceilings = bench.ceilings();
  std::printf(
      "%s: copy %.0f GB/s, gather of 584-byte records %.0f GB/s, mma.sync %.0f TFLOP/s, wgmma %.0f (recorded), launch %.2f us\n",
      gpu->description().c_str(), ceilings.copy_gbps, ceilings.gather_gbps, ceilings.mma_tflops, kMatmulTflops,
      ceilings.launch_us);
  std::printf("%-13s %-4s %4s %4s %11s %-17s %2s %8s %7s %8s %6s %6s %6s %8s %6s  %s\n", "format", "list", "H", "T",
              "keys", "kernel", "S", "us cold", "spread", "us hot", "GB/s", "TF/s", "%floor", "peer us", "x",
              "peer (recorded 2026-11-29)");
  nlohmann::json rows = nlohmann::json::array();
  const Peers recorded(peers + (table == "prefill" ? "/prefill.csv" : "/decode.csv"));
  double log_sum = 0, worst = 0;
  int compared = 0, wrong = 0;
  const auto time = [&](const Cell& cell, const std::string& name) {
    Result r;
    try {
      r = bench.time(cell, name, splits, replays, ceilings);
    } catch (const Error& error) {
      const bool is_wrong = error.status == PASA_ERROR_INTERNAL;  // the other cells are still worth their times
      if (!is_wrong && (error.status != PASA_ERROR_UNSUPPORTED || name.empty())) throw;
      wrong += is_wrong;
      std::printf("%s\n", error.what());
      return r;
    }
    const Peer peer = recorded.best(cell);
    const double gbps = r.bytes / r.us * 1e-3, tflops = r.flops / r.us * 1e-6;
    const std::string format(find_format(cell.format)->name);
    const std::string keys = cell.slots ? concat(cell.main, " ", cell.rows()) : concat(cell.main, "+", cell.extra);
    std::printf("%-13s %-4s %4d %4lld %11s %-17s %2d %8.2f %6.1f%% %8.2f %6.0f %6.1f %5.0f%% %8.1f %6.2f  %s\n",
                format.c_str(), cell.lists(), cell.heads, static_cast<long long>(cell.tokens), keys.c_str(),
                r.kernel.c_str(), r.splits, r.us, 100 * r.spread, r.hot_us, gbps, tflops, 100 * r.floor_us / r.us,
                peer.us, peer.us / r.us, peer.name.c_str());
    std::fflush(stdout);
    if (peer.us > 0) {
      log_sum += std::log(peer.us / r.us);
      ++compared;
    }
    rows.push_back({{"format", format},
                    {"lists", cell.lists()},
                    {"heads", cell.heads},
                    {"tokens", cell.tokens},
                    {"main", cell.main},
                    {"extra", cell.extra},
                    {"slots", cell.slots},
                    {"rows", cell.rows()},
                    {"kernel", r.kernel},
                    {"splits", r.splits},
                    {"workspace_bytes", r.workspace},
                    {"us_cold", r.us},
                    {"spread", r.spread},
                    {"us_hot", r.hot_us},
                    {"host_us", r.host_us},
                    {"gbps", gbps},
                    {"tflops", tflops},
                    {"floor_us", r.floor_us},
                    {"relative_error", r.relative_error},
                    {"peer", peer.name},
                    {"peer_us_recorded", peer.us}});
    return r;
  };
  for (const Cell& cell : table_cells(table, heads, tokens, lists)) {
    if (!is_switch) {
      time(cell, kernel);
      continue;
    }
    std::map<std::string, double> us;
    for (const char* name : {"cuda:sm90", "cuda:sm90_prefill"}) us[name] = time(cell, name).us;
    const std::string taken = bench.planned();
    if (!us.contains(taken)) us[taken] = time(cell, taken).us;
    double least = us[taken];
    if (!(least > 0)) continue;  // wrong, as said above
    for (const auto& [name, its] : us) {
      if (its > 0) least = std::min(least, its);
    }
    const double loss = us[taken] / least - 1;
    worst = std::max(worst, loss);
    std::printf("    the planner takes %s: %.1f %% over the better\n", taken.c_str(), 100 * loss);
    rows.back()["planner"] = taken;
    rows.back()["planner_loss"] = loss;
  }
  if (is_switch) std::printf("the planner's kernel is at most %.1f %% over the better\n", 100 * worst);
  const double mean = compared ? std::exp(log_sum / compared) : 0;
  if (compared) std::printf("geometric mean of peer / ours over %d cells: %.2f\n", compared, mean);
  if (!json.empty()) {
    std::string command = std::filesystem::path(argv[0]).filename();
    for (int i = 1; i < argc; ++i) {  // what repeats the run, not where its files are
      const std::string argument = argv[i];
      if (argument == "--json" || argument == "--peers" || argument == "--commit") {
        ++i;
      } else {
        command += " " + argument;
      }
    }
    const nlohmann::json file = {
        {"command", command},
        {"device", gpu->description()},
        {"date", utc_now("%Y-%m-%d")},
        {"commit", commit},
        {"method", "graph replay; cold: L2 emptied by reads, rotating inputs; hot: one input; median"},
        {"ceilings",
         {{"copy_gbps", ceilings.copy_gbps},
          {"gather_gbps", ceilings.gather_gbps},
          {"mma_sync_tflops", ceilings.mma_tflops},
          {"matmul_tflops_recorded", kMatmulTflops},
          {"launch_us", ceilings.launch_us}}},
        {"geometric_mean_speedup", mean},
        {"rows", rows}};
    std::ofstream(json) << file.dump(1) << "\n";
  }
  return wrong ? 1 : 0;
}

}  // namespace
}  // namespace pasa::bench

int main(int argc, char** argv) {
  try {
    return pasa::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
