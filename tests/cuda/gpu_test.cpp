// What only a GPU can get wrong: captured calls replayed over other lists, stale scratch, addresses beyond 32 bits, bits that
// change from run to run or with the rest of the batch, unaligned tensors. Every CUDA kernel this machine runs is tried; with
// no GPU every test reports `skipped`. (Every kernel x every case is tests/attention_test.cpp, here and on the host alike.)
//
// PASA_GPU_EVERY=n in the environment takes about every n-th case of the large grids (default 200; 1: each). compute-sanitizer
// runs the tests named Small, its racecheck those named Tiny.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/number.h"
#include "cuda/device.h"
#include "harness/case.h"
#include "harness/cases.h"
#include "harness/compare.h"
#include "harness/cuda_reference.h"
#include "harness/data.h"
#include "harness/device.h"

namespace pasa {
namespace {

using cuda::check;

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::unavailable(80); !reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
    device_ = open_device("cuda");
    for (std::int32_t i = 0; i < pasa_kernel_count(); ++i) {
      pasa_kernel_info info{};
      info.struct_size = sizeof info;
      check_status(pasa_get_kernel_info(i, nullptr, &info));
      if (std::string(info.device) == "cuda" && info.available) kernels_.push_back(info.name);
    }
    ASSERT_FALSE(kernels_.empty());
  }

  Device& gpu() { return *device_; }
  cudaStream_t stream() { return static_cast<cudaStream_t>(device_->stream()); }

  // The kernels that serve the problem (which is on the device) if asked for by name.
  std::vector<std::string> serving(pasa_problem problem) {
    std::vector<std::string> names;
    for (std::int32_t i = 0; i < pasa_kernel_count(); ++i) {
      pasa_kernel_info info{};
      info.struct_size = sizeof info;
      check_status(pasa_get_kernel_info(i, nullptr, &info));
      const std::string name = info.name;
      problem.kernel = name.c_str();
      check_status(pasa_get_kernel_info(i, &problem, &info));
      if (info.accepts && std::string(info.device) == "cuda") names.push_back(name);
    }
    return names;
  }

  void run(const pasa_problem& problem) {
    Runner runner(problem, gpu());
    runner.run();
    gpu().synchronize();
  }

  // The case, placed on the device: with the kernel that `problem`, which is otherwise the placed one, names; with every kernel
  // that serves it. Partial results are merged first.
  void gives(const Reference& want, Case& c, Placed& placed, const pasa_problem& problem, const Tolerance& tolerance);
  void every_kernel_gives(const Reference& want, Case& c, Placed& placed);

  // Device memory.
  std::shared_ptr<void> room(std::size_t bytes) { return gpu().allocate(bytes); }

  Reference reference_on_gpu(const pasa_problem& placed) {
    const std::int64_t tokens = placed.q.shape[0], heads = placed.q.shape[1], rows = tokens * heads;
    const auto count = static_cast<std::size_t>(rows);
    const auto out = room(count * 512 * sizeof(float)), lse = room(count * sizeof(float)),
               top = room(count * sizeof(float));
    device_reference(placed,
                     {static_cast<float*>(out.get()), static_cast<float*>(lse.get()), static_cast<float*>(top.get())},
                     stream());
    Reference want{tokens, heads, std::vector<float>(count * 512), std::vector<float>(count),
                   std::vector<float>(count)};
    gpu().download(want.out.data(), out.get(), count * 512 * sizeof(float));
    gpu().download(want.lse.data(), lse.get(), count * sizeof(float));
    gpu().download(want.max_logits.data(), top.get(), count * sizeof(float));
    return want;
  }

  std::unique_ptr<Device> device_;
  std::vector<std::string> kernels_;
};

// Every kernel that serves the case, forced by name ("": the planner's): `body` runs with the placed problem naming it.
void for_each_kernel(const std::vector<std::string>& names, pasa_problem problem,
                     const std::function<void(const pasa_problem&)>& body) {
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    problem.kernel = name.empty() ? nullptr : name.c_str();
    body(problem);
  }
}

void Gpu::gives(const Reference& want, Case& c, Placed& placed, const pasa_problem& problem,
                const Tolerance& tolerance) {
  placed.poison_outputs();
  run(problem);
  placed.fetch_outputs();
  if (c.problem.acc.rank) reduce_partials(c);
  const Comparison comparison = compare(c.problem, want, tolerance);
  EXPECT_TRUE(comparison.ok()) << comparison.text();
}

void Gpu::every_kernel_gives(const Reference& want, Case& c, Placed& placed) {
  for_each_kernel(serving(placed.problem()), placed.problem(),
                  [&](const pasa_problem& problem) { gives(want, c, placed, problem, default_tolerance(c.problem)); });
}

std::vector<std::byte> bits(const Case& c) {
  std::vector<std::byte> all;
  pasa_problem problem = c.problem;
  for (const NamedTensor& named : output_tensors(problem)) {
    for (const std::span<std::byte> run : contiguous_runs(*named.tensor)) all.insert(all.end(), run.begin(), run.end());
  }
  return all;
}

const char* const kEveryFormat[] = {
    "decode:T=5,H=20,fmt=bf16,len=70,lengths=edges,invalid=0.1,bad=any",
    "decode:T=5,H=20,fmt=bf16,len=70,D=576,sink=mixed",
    "decode:T=5,H=20,fmt=f16,q=f16,len=70,lengths=from0",
    "decode:T=5,H=20,fmt=fp8_e4m3fn,len=70,values=codes",
    "decode:T=5,H=20,fmt=fp8_e4m3fnuz,len=70,values=codes,lists=rect_lengths,lengths=from0",
    "decode:T=5,H=20,fmt=fp8_ds_mla,len=70+40,page=64+2,values=exponents,invalid=0.1",
    "decode:T=5,H=20,fmt=fp8_ds_mla+packed_bf16,len=70+40,page=53+64,stride=x576",
    "decode:T=5,H=20,fmt=fp8_v32,len=70,page=61,stride=plus_row",
    "decode:T=5,H=20,fmt=fp8_v32,q=f16,len=70,page=64,nan=0.1,nan_to_zero=1",
    "prefill:T=9,H=20,fmt=bf16,len=200+130,lengths=from0,all_invalid=0.2,invalid=0.2,bad=any,sink=mixed",
    "prefill:T=9,H=20,fmt=f16,q=f16,D=576,len=200,lengths=from0,lists=rect_lengths,invalid=0.1",
    "decode:T=5,H=20,fmt=packed_bf16,len=150+70,page=61+2,lengths=from0",
};

// The reference on the GPU is the reference on the CPU.
TEST_F(Gpu, SmallReferenceIsTheCpusReference) {
  for (const char* text : kEveryFormat) {
    SCOPED_TRACE(text);
    CaseSpec spec = parse_text(text);
    spec.max_logits = true;
    Case c = make_case(spec);
    const Reference want = compute_reference(c.problem);
    Placed placed(c, gpu());
    const Reference got = reference_on_gpu(placed.problem());
    const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
        ASSERT_LE(std::abs(a[i] - b[i]), 1e-6f + 1e-6f * std::abs(b[i])) << "element " << i;
      }
    };
    close(got.out, want.out);
    close(got.lse, want.lse);
    close(got.max_logits, want.max_logits);
  }
}

// Small enough for compute-sanitizer: each format through each kernel, unsplit and split, and the merge of partials.
TEST_F(Gpu, SmallCasesMatchTheReference) {
  for (const char* text : kEveryFormat) {
    for (const int splits : {1, 3}) {
      for (const int heads : {20, 40, 72}) {
        SCOPED_TRACE(testing::Message() << text << ", splits " << splits << ", heads " << heads);
        CaseSpec spec = parse_text(text);
        spec.heads = heads;
        spec.splits = splits;
        spec.max_logits = true;
        Case c = make_case(spec);
        Placed placed(c, gpu());
        const Reference want = reference_on_gpu(placed.problem());
        every_kernel_gives(want, c, placed);
      }
    }
  }
}

// Smaller still, for racecheck, which slows a kernel down a thousandfold: no kernel but the tested ones runs.
TEST_F(Gpu, TinyCasesMatchTheReference) {
  for (const char* text : {"decode:T=2,H=16,fmt=fp8_ds_mla,len=40+20,page=64+2,splits=2",
                           "decode:T=2,H=72,fmt=fp8_ds_mla,len=70", "decode:T=2,H=40,fmt=bf16,len=70,splits=2",
                           "prefill:T=3,H=72,len=130+20,lengths=from0", "decode:T=2,H=128,fmt=fp8_v32,len=66",
                           "decode:T=2,H=16,fmt=f16,q=f16,len=40", "decode:T=2,H=8,fmt=fp8_e4m3fnuz,q=f16,len=40"}) {
    SCOPED_TRACE(text);
    Case c = make_case(parse_text(text));
    const Reference want = compute_reference(c.problem);
    Placed placed(c, gpu());
    every_kernel_gives(want, c, placed);
  }
}

// More rows than the device has multiprocessors: blocks that go on to another row, whose keys come while the last one's end is
// still under way.
TEST_F(Gpu, BlocksOfManyRows) {
  for (const char* text : {"prefill:T=300,H=20,fmt=bf16,len=200,lengths=from0", "prefill:T=280,H=20,fmt=bf16,len=20",
                           "prefill:T=280,H=20,fmt=fp8_ds_mla,len=130,lengths=from0",
                           "prefill:T=280,H=20,fmt=f16,q=f16,D=576,len=150,lengths=from0"}) {
    SCOPED_TRACE(text);
    Case c = make_case(parse_text(text));
    const Reference want = compute_reference(c.problem);
    Placed placed(c, gpu());
    every_kernel_gives(want, c, placed);
  }
}

// Clusters of any size: few rows, whose shares are a tile each where their number is no power of two.
TEST_F(Gpu, ClustersOfAnySize) {
  std::string sizes;
  for (const char* text : {"decode:T=16,H=16,fmt=fp8_ds_mla,len=380,invalid=0.1,sink=mixed",
                           "decode:T=32,H=16,fmt=bf16,len=190,invalid=0.1,all_invalid=0.2",
                           "decode:T=9,H=32,fmt=fp8_v32,len=570,page=64,invalid=0.2",
                           "decode:T=36,H=8,fmt=fp8_ds_mla,len=190,invalid=0.1"}) {
    SCOPED_TRACE(text);
    CaseSpec spec = parse_text(text);
    spec.max_logits = true;
    Case c = make_case(spec);
    const Reference want = compute_reference(c.problem);
    Placed placed(c, gpu());
    for_each_kernel({"cuda:sm90_few", "cuda:sm90_many"}, placed.problem(), [&](const pasa_problem& problem) {
      pasa_plan* plan = nullptr;
      if (pasa_plan_create(&problem, &plan) != PASA_OK) return;  // no Hopper GPU
      sizes += pasa_plan_summary(plan);
      pasa_plan_destroy(plan);
      gives(want, c, placed, problem, default_tolerance(c.problem));
    });
  }
  if (sizes.empty()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* size : {"few: 8 heads x 64 keys, clusters of 3,", "few: 16 heads x 64 keys, clusters of 3,",
                           "few: 16 heads x 64 keys, clusters of 6,", "few: 32 heads x 64 keys, clusters of 9,",
                           "many: 16 heads x 64 keys, clusters of 6,"}) {
    EXPECT_NE(sizes.find(size), std::string::npos) << size << " is not among " << sizes;
  }
}

TEST_F(Gpu, SmallReduceMergesPartsAndSkipsEmptyOnes) {
  constexpr std::int64_t kTokens = 3, kHeads = 5;
  for (const std::int64_t splits : {1, 2, 9, 130, 300}) {
    const auto rows = static_cast<std::size_t>(kTokens * splits * kHeads);
    std::vector<float> acc(rows * 512), m(rows), l(rows), sink(kHeads);
    for (std::size_t i = 0; i < rows; ++i) {
      const bool dead = i % 7 == 3;  // what it holds must not matter
      m[i] = dead ? -kInfinity : static_cast<float>(normal(hash(1, 0, i)) * 3);
      l[i] = dead ? 0 : static_cast<float>(1 + uniform(hash(1, 1, i)));
      for (std::size_t d = 0; d < 512; ++d)
        acc[i * 512 + d] = dead ? kNan : static_cast<float>(normal(hash(1, 2, i * 512 + d)));
    }
    for (std::size_t h = 0; h < kHeads; ++h) sink[h] = h == 0 ? -kInfinity : h == 1 ? kInfinity : static_cast<float>(h);
    pasa_reduce_problem host{};
    host.struct_size = sizeof host;
    std::vector<float> out(kTokens * kHeads * 512), lse(kTokens * kHeads);
    const auto view = [](std::vector<float>& v, std::initializer_list<std::int64_t> shape) {
      return dense_view(v.data(), PASA_F32, std::vector<std::int64_t>(shape));
    };
    host.acc = view(acc, {kTokens, splits, kHeads, 512});
    host.m = view(m, {kTokens, splits, kHeads});
    host.l = view(l, {kTokens, splits, kHeads});
    host.attn_sink = view(sink, {kHeads});
    host.out = view(out, {kTokens, kHeads, 512});
    host.lse = view(lse, {kTokens, kHeads});
    check_status(pasa_reduce(&host, nullptr));

    pasa_reduce_problem placed = host;
    std::vector<std::shared_ptr<void>> memory;
    for (pasa_tensor* tensor : {&placed.acc, &placed.m, &placed.l, &placed.attn_sink, &placed.out, &placed.lse}) {
      const std::size_t bytes = span_bytes(*tensor);
      memory.push_back(room(bytes));
      gpu().upload(memory.back().get(), tensor->data, bytes);
      tensor->data = memory.back().get();
      tensor->device = PASA_CUDA;
    }
    gpu().fill(placed.out.data, 0xff, span_bytes(placed.out));
    gpu().fill(placed.lse.data, 0xff, span_bytes(placed.lse));
    check_status(pasa_reduce(&placed, stream()));
    std::vector<float> got(out.size()), got_lse(lse.size());
    gpu().download(got.data(), placed.out.data, span_bytes(placed.out));
    gpu().download(got_lse.data(), placed.lse.data, span_bytes(placed.lse));
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(got[i], out[i], 1e-5 + 1e-5 * std::abs(out[i])) << "splits " << splits << ", element " << i;
    }
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (got_lse[i] == lse[i]) continue;  // -inf, too
      ASSERT_NEAR(got_lse[i], lse[i], 1e-5) << "splits " << splits;
    }
  }
}

// ---- graph replay

// One captured call, replayed while the lists in device memory change: shorter, longer, empty, invalid, malformed.
class Replay {
 public:
  Replay(Device& gpu, const pasa_problem& problem) : stream_(static_cast<cudaStream_t>(gpu.stream())) {
    check_status(pasa_plan_create(&problem, &plan_));
    bytes_ = pasa_plan_workspace_bytes(plan_);
    workspace_ = gpu.allocate(bytes_);
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    const pasa_status status = pasa_run(plan_, &problem, workspace_.get(), bytes_, stream_);
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    check_status(status);
    check(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
  }
  ~Replay() {
    cudaGraphExecDestroy(exec_);
    pasa_plan_destroy(plan_);
  }
  void operator()(Device& gpu) {
    gpu.fill(workspace_.get(), 0xff, bytes_);  // a partial that is not written would be NaN
    check(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch");
    gpu.synchronize();
  }

 private:
  cudaStream_t stream_;
  pasa_plan* plan_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> workspace_;
  cudaGraphExec_t exec_ = nullptr;
};

TEST_F(Gpu, SmallGraphReplaysWithOtherLists) {
  const char* const kTexts[] = {
      "decode:T=6,H=16,fmt=fp8_ds_mla,len=300+100,page=64+2",
      "decode:T=6,H=128,fmt=fp8_ds_mla,len=200+64,page=256+64,lists=rect_lengths",
      "decode:T=6,H=64,fmt=bf16,len=300,lists=rect_lengths",
      "decode:T=6,H=8,fmt=fp8_v32,len=130",
      "decode:T=6,H=32,fmt=fp8_e4m3fn,len=200,splits=5",
  };
  for (const char* text : kTexts) {
    SCOPED_TRACE(text);
    Case c = make_case(parse_text(std::string(text) + ",poison=none"));
    Placed placed(c, gpu());
    // Each change edits the host lists, starting from the full ones; the device copies follow.
    struct Change {
      const char* name;
      std::function<void(pasa_source&)> apply;
    };
    const auto set_lengths = [&](pasa_source& s,
                                 const std::function<std::int32_t(std::int32_t row, std::int32_t full)>& f) {
      const auto rows = static_cast<std::int32_t>(c.tokens());
      if (s.indptr.rank) {
        auto* indptr = static_cast<std::int32_t*>(s.indptr.data);
        const auto full = static_cast<std::int32_t>(s.indices.shape[0] / rows);
        for (std::int32_t t = 0; t < rows; ++t) indptr[t + 1] = indptr[t] + f(t, full);
      } else {
        auto* lengths = static_cast<std::int32_t*>(s.lengths.data);
        for (std::int32_t t = 0; t < rows; ++t) lengths[t] = f(t, static_cast<std::int32_t>(s.indices.shape[1]));
      }
    };
    const Change changes[] = {
        {"as captured", [](pasa_source&) {}},
        {"shorter", [&](pasa_source& s) { set_lengths(s, [](auto t, auto full) { return full / (t + 2); }); }},
        {"empty", [&](pasa_source& s) { set_lengths(s, [](auto, auto) { return 0; }); }},
        {"one row", [&](pasa_source& s) { set_lengths(s, [](auto t, auto full) { return t == 3 ? full : 0; }); }},
        {"full again", [&](pasa_source& s) { set_lengths(s, [](auto, auto full) { return full; }); }},
        {"all invalid", [](pasa_source& s) { std::memset(s.indices.data, 0xff, span_bytes(s.indices)); }},
        {"malformed",
         [&](pasa_source& s) {
           if (s.indptr.rank) {
             auto* indptr = static_cast<std::int32_t*>(s.indptr.data);
             indptr[0] = -7;
             indptr[3] = INT32_MAX;
             indptr[5] = INT32_MIN;
           } else {
             set_lengths(s, [](auto t, auto) { return t % 2 ? INT32_MAX : INT32_MIN; });
           }
         }},
    };
    for_each_kernel(serving(placed.problem()), placed.problem(), [&](const pasa_problem& problem) {
      pasa_source* const host[] = {&c.problem.main, &c.problem.extra};
      const pasa_source* const there[] = {&problem.main, &problem.extra};
      Replay replay(gpu(), problem);
      for (const Change& change : changes) {
        SCOPED_TRACE(change.name);
        std::vector<std::vector<std::byte>> saved;
        const auto each_list = [&](const std::function<void(pasa_tensor&, const pasa_tensor&)>& body) {
          for (int s = 0; s < 2; ++s) {
            if (!host[s]->kv.rank) continue;
            body(host[s]->indices, there[s]->indices);
            if (host[s]->indptr.rank) body(host[s]->indptr, there[s]->indptr);
            if (host[s]->lengths.rank) body(host[s]->lengths, there[s]->lengths);
          }
        };
        each_list([&](pasa_tensor& from, const pasa_tensor&) {
          const auto* data = static_cast<const std::byte*>(from.data);
          saved.emplace_back(data, data + span_bytes(from));
        });
        for (pasa_source* source : host) {
          if (source->kv.rank) change.apply(*source);
        }
        each_list(
            [&](pasa_tensor& from, const pasa_tensor& to) { gpu().upload(to.data, from.data, span_bytes(from)); });
        placed.poison_outputs();
        replay(gpu());
        placed.fetch_outputs();
        const Comparison comparison = compare(c.problem, compute_reference(c.problem), default_tolerance(c.problem));
        EXPECT_TRUE(comparison.ok()) << comparison.text();
        std::size_t i = 0;
        each_list([&](pasa_tensor& from, const pasa_tensor& to) {
          std::memcpy(from.data, saved[i].data(), saved[i].size());
          gpu().upload(to.data, from.data, saved[i].size());
          ++i;
        });
      }
    });
  }
}

// A call's lists may be written by the call before it in the stream, which still runs when this one starts to look at them. Here
// a row of the first call attends to one key over and over, so that its output is that key, whose bits are indices.
TEST_F(Gpu, ListsThatTheCallBeforeWrites) {
  constexpr std::int64_t kTokens = 3, kEntries = 256, kBase = 0x3f80;  // bf16 of 1
  const auto index = [](std::int64_t t, std::int64_t i) {
    return static_cast<std::int32_t>(kBase + (13 * t + 5 * i) % 600);
  };
  for (const char* heads : {"16", "64"}) {
    SCOPED_TRACE(heads);
    const auto make = [&](const std::string& rest) {
      return make_case(
          parse_text(std::string("decode:T=3,H=") + heads + ",fmt=bf16,lists=rect,sink=none,poison=none," + rest));
    };
    Case first = make("len=1024,slots=64"), second = make("len=256,slots=17000");
    for (std::int64_t t = 0; t < kTokens; ++t) {
      std::fill_n(static_cast<std::int32_t*>(first.problem.main.indices.data) + t * 1024, 1024,
                  static_cast<std::int32_t>(t));
      for (std::int64_t i = 0; i < kEntries; ++i) {
        static_cast<std::int32_t*>(first.problem.main.kv.data)[t * kEntries + i] = index(t, i);
        static_cast<std::int32_t*>(second.problem.main.indices.data)[t * kEntries + i] = index(t, i);
      }
    }
    const Reference want = compute_reference(second.problem);
    Placed writes(first, gpu()), reads(second, gpu());
    const pasa_problem& writer = writes.problem();
    pasa_problem reader = reads.problem();
    reader.main.indices.data = writer.out.data;
    reader.main.indices.stride[0] = writer.out.stride[0] / 2;
    std::vector<std::int32_t> stale(span_bytes(writer.out) / sizeof(std::int32_t));
    for (std::size_t i = 0; i < stale.size(); ++i) stale[i] = static_cast<std::int32_t>(i % 1000);
    for_each_kernel(serving(reader), reader, [&](const pasa_problem& problem) {
      Runner write(writer, gpu()), read(problem, gpu());
      reads.poison_outputs();
      gpu().upload(writer.out.data, stale.data(), stale.size() * sizeof(std::int32_t));
      gpu().synchronize();
      write.run();
      read.run();
      gpu().synchronize();
      reads.fetch_outputs();
      const Comparison comparison = compare(second.problem, want, default_tolerance(second.problem));
      EXPECT_TRUE(comparison.ok()) << comparison.text();
    });
    writes.fetch_outputs();
    const auto* out = static_cast<const std::int32_t*>(first.problem.out.data);
    for (std::int64_t i = 0; i < kEntries; ++i)
      ASSERT_EQ(out[i], index(0, i)) << "the first call's output is not its key";
  }
}

// ---- determinism

TEST_F(Gpu, TenRunsGiveTheSameBits) {
  for (const char* text :
       {"decode:T=40,H=16,fmt=fp8_ds_mla,len=128+1024,page=256+64", "decode:T=9,H=128,fmt=fp8_v32,len=2048",
        "decode:T=17,H=64,fmt=bf16,len=700,lengths=from0", "prefill:T=300,H=128,len=512+64,lengths=quarter",
        "decode:T=3,H=48,fmt=fp8_e4m3fnuz,len=5000"}) {
    SCOPED_TRACE(text);
    Case c = make_case(parse_text(text));
    Placed placed(c, gpu());
    for_each_kernel(serving(placed.problem()), placed.problem(), [&](const pasa_problem& problem) {
      std::vector<std::byte> first;
      for (int i = 0; i < 10; ++i) {
        placed.poison_outputs();
        run(problem);
        placed.fetch_outputs();
        if (i == 0) first = bits(c);
        ASSERT_TRUE(first == bits(c)) << "run " << i;
      }
    });
  }
}

// With the number of splits fixed, a row's bits depend on that row alone: the whole batch, then each row by itself, with each
// kernel and with the planner's, which must be the same.
TEST_F(Gpu, BitsDoNotDependOnTheBatch) {
  for (const char* text :
       {"decode:T=12,H=16,fmt=fp8_ds_mla,len=128+512,page=256+64,lengths=from1,splits=4",
        "decode:T=12,H=128,fmt=fp8_ds_mla,len=128+512,page=256+64,lengths=from1,splits=1",
        "decode:T=12,H=64,fmt=bf16,len=900,lengths=from1,splits=7",
        "prefill:T=12,H=80,fmt=bf16,len=300+90,lengths=from1,splits=1", "prefill:T=70,H=64,fmt=bf16,len=40,splits=1"}) {
    SCOPED_TRACE(text);
    Case c = make_case(parse_text(text));
    Placed placed(c, gpu());
    std::vector<std::string> kernels = serving(placed.problem());
    kernels.emplace_back();
    for_each_kernel(kernels, placed.problem(), [&](const pasa_problem& problem) {
      placed.poison_outputs();
      run(problem);
      placed.fetch_outputs();
      const std::vector<std::byte> whole = bits(c);
      placed.poison_outputs();
      for (std::int64_t t = 0; t < c.tokens(); ++t) {
        pasa_problem one = problem;
        const auto skip = [&](pasa_tensor& tensor, std::int64_t count) {
          if (!tensor.rank) return;
          tensor.data = static_cast<std::byte*>(tensor.data) +
                        static_cast<std::size_t>(t * tensor.stride[0]) * dtype_bytes(tensor.dtype);
          tensor.shape[0] = count;
        };
        for (pasa_tensor* tensor : {&one.q, &one.out, &one.lse}) skip(*tensor, 1);
        for (pasa_source* source : {&one.main, &one.extra}) {
          if (source->kv.rank) skip(source->indptr, 2);
        }
        run(one);
      }
      placed.fetch_outputs();
      EXPECT_TRUE(whole == bits(c));
    });
  }
}

// ---- addresses

// Offset of the farthest record that a row selects, in either pool.
std::int64_t farthest_byte(const pasa_problem& problem) {
  std::int64_t farthest = 0;
  for (const pasa_source* source : {&problem.main, &problem.extra}) {
    if (!source->kv.rank) continue;
    const auto* index = static_cast<const std::int32_t*>(source->indices.data);
    const std::int64_t page = source->kv.rank == 3 ? source->kv.shape[1] : 1, slots = source->kv.shape[0] * page;
    for (std::int64_t i = 0; i < element_count(source->indices); ++i) {
      if (index[i] < 0 || index[i] >= slots) continue;
      const auto bytes = source->kv.stride[0] * static_cast<std::int64_t>(dtype_bytes(source->kv.dtype));
      farthest = std::max(farthest, index[i] / page * bytes);
    }
  }
  return farthest;
}

// Pools, q, out and partials that span more than 2^31 and 2^32 bytes (and elements, for q and out).
TEST_F(Gpu, SpansBeyond32Bits) {
  const char* const kTexts[] = {
      // 3200 pages, 1435968 bytes apart: 4.6e9 bytes
      "decode:T=4,H=16,fmt=fp8_ds_mla,len=100,page=64,stride=1435968,slots=204800",
      "decode:T=4,H=128,fmt=fp8_ds_mla,len=100+50,page=64+2,stride=x576+1435968,slots=4096+6400",
      "decode:T=4,H=64,fmt=packed_bf16,len=100,page=64,stride=1500032,slots=204800",
      "decode:T=4,H=64,fmt=fp8_v32,len=100,page=64,stride=1435984,slots=204800",
      "decode:T=4,H=16,fmt=bf16,len=100,stride=1048576,slots=4500",
      "decode:T=4,H=16,fmt=fp8_e4m3fn,len=100,stride=1048576,slots=4500",
  };
  for (const char* text : kTexts) {
    SCOPED_TRACE(text);
    Case c = make_case(parse_text(text));
    EXPECT_GT(farthest_byte(c.problem), std::int64_t{1} << 32) << "no row selects a slot that far";
    Placed placed(c, gpu());
    const Reference want = reference_on_gpu(placed.problem());
    every_kernel_gives(want, c, placed);
  }
}

TEST_F(Gpu, QueriesAndOutputsBeyond32Bits) {
  constexpr std::int64_t kApart =
      (std::int64_t{1} << 31) / 3 + 24;  // elements between tokens: the fourth is beyond 2^31
  Case c = make_case(parse_text("decode:T=5,H=3,fmt=fp8_ds_mla,len=90,page=64"));
  const auto spread = [&](pasa_tensor dense) {
    pasa_tensor tensor = c.allocate(dense.dtype, {dense.shape[0], dense.shape[1], dense.shape[2]},
                                    {kApart, dense.stride[1], 1}, /*sparse=*/true);
    for (std::int64_t t = 0; t < dense.shape[0]; ++t) {
      const auto row = static_cast<std::size_t>(dense.stride[0]) * dtype_bytes(dense.dtype);
      std::memcpy(
          static_cast<std::byte*>(tensor.data) + static_cast<std::size_t>(t * kApart) * dtype_bytes(dense.dtype),
          static_cast<std::byte*>(dense.data) + static_cast<std::size_t>(t) * row, row);
    }
    return tensor;
  };
  const Reference want = compute_reference(c.problem);
  c.problem.q = spread(c.problem.q);
  c.problem.out = spread(c.problem.out);
  for (const int splits : {1, 2}) {
    c.problem.kv_splits = splits;
    Placed placed(c, gpu());
    every_kernel_gives(want, c, placed);
  }
}

// T * S * H * 512 floats: 5.2e9 bytes of partials, and T * H beyond 65535 blocks in any direction.
TEST_F(Gpu, PartialsBeyond32BitsAndManyRows) {
  for (const char* text : {"decode:T=80000,H=2,fmt=fp8_ds_mla,len=9,page=64,splits=16,slots=5000",
                           "decode:T=70001,H=3,fmt=bf16,len=5,slots=3000,sink=mixed,splits=1"}) {
    SCOPED_TRACE(text);
    Case c = make_case(parse_text(text));
    Placed placed(c, gpu());
    const Reference want = reference_on_gpu(placed.problem());
    every_kernel_gives(want, c, placed);
  }
}

// Pools moved off their alignment by as little as the format allows, rows of odd length between them.
TEST_F(Gpu, SmallUnalignedTensors) {
  struct Shift {
    const char* text;
    std::size_t bytes;  // of the pool
  };
  for (const Shift& shift : {Shift{"decode:T=5,H=20,fmt=fp8_e4m3fn,len=70,stride=513,values=codes", 1},
                             Shift{"decode:T=5,H=20,fmt=fp8_e4m3fnuz,len=70,stride=514,values=codes", 2},
                             Shift{"decode:T=5,H=70,fmt=bf16,len=70,stride=1026", 2},
                             Shift{"decode:T=5,H=20,fmt=fp8_v32,len=70,page=3,stride=1972", 4},
                             Shift{"decode:T=5,H=20,fmt=fp8_ds_mla,len=70,page=1,stride=592", 8},
                             Shift{"decode:T=5,H=70,fmt=fp8_ds_mla,len=70,page=53", 8},
                             Shift{"decode:T=5,H=20,fmt=f16,q=f16,len=70,stride=1030", 6}}) {
    SCOPED_TRACE(shift.text);
    Case c = make_case(parse_text(shift.text));
    const Reference want = compute_reference(c.problem);
    Placed placed(c, gpu());
    pasa_problem problem = placed.problem();
    // q and out rows start at odd elements, the pool `bytes` behind an aligned address.
    const auto move = [&](pasa_tensor& tensor, const pasa_tensor& host, std::size_t by) {
      auto memory = room(span_bytes(tensor) + 16);
      tensor.data = static_cast<std::byte*>(memory.get()) + by;
      gpu().upload(tensor.data, host.data, span_bytes(host));
      return memory;
    };
    const auto pool = move(problem.main.kv, c.problem.main.kv, shift.bytes);
    const auto q = move(problem.q, c.problem.q, 2), out = move(problem.out, c.problem.out, 2);
    for (const int splits : {1, 2}) {
      problem.kv_splits = splits;
      for_each_kernel(serving(problem), problem, [&](const pasa_problem& forced) {
        gpu().fill(forced.out.data, 0xff, span_bytes(forced.out));
        run(forced);
        gpu().download(c.problem.out.data, forced.out.data, span_bytes(forced.out));
        gpu().download(c.problem.lse.data, forced.lse.data, span_bytes(forced.lse));
        const Comparison comparison = compare(c.problem, want, default_tolerance(c.problem));
        EXPECT_TRUE(comparison.ok()) << comparison.text();
      });
    }
  }
}

// ---- the large grids, against the reference on the GPU

// A part of every grid, drawn by lot, as neighbours differ in size: so that a test runner can spread them over processes.
constexpr std::uint64_t kParts = 16;

class GpuGrids : public Gpu, public testing::WithParamInterface<std::uint64_t> {};

TEST_P(GpuGrids, EveryKernelMatchesTheReference) {
  const char* every = std::getenv("PASA_GPU_EVERY");
  const auto step = static_cast<std::uint64_t>(every ? std::max(1, std::atoi(every)) : 200);
  for (const Grid& grid : grids()) {
    const std::vector<TestCase> cases = grid.cases();
    std::map<std::string, int> counts;  // cases, and comparisons of each kernel
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::uint64_t lot = hash(7, 0, i);
      if (cases[i].run_only || lot % kParts != GetParam() || lot / kParts % step != 0) continue;
      SCOPED_TRACE(to_text(cases[i].spec));
      const Tolerance& tolerance = find_tolerance(cases[i].tolerance);
      Case c = make_case(cases[i].spec);
      Placed placed(c, gpu());
      const Reference want = reference_on_gpu(placed.problem());
      ++counts["cases"];
      const std::vector<std::string> names = serving(placed.problem());
      if (grid.name.starts_with("flashmla-decode")) {
        EXPECT_EQ(names, kernels_) << "a kernel declines what FlashMLA serves";
      }
      for_each_kernel(names, placed.problem(), [&](const pasa_problem& problem) {
        ++counts[problem.kernel];
        const pasa_problem direct = c.problem;
        c.problem.kernel = problem.kernel;
        prepare_partials(c, gpu());
        c.problem.kernel = direct.kernel;
        if (!c.problem.acc.rank) return gives(want, c, placed, problem, tolerance);
        Placed partial(c, gpu());
        pasa_problem forced = partial.problem();
        forced.kernel = problem.kernel;
        gives(want, c, partial, forced, tolerance);
        c.problem = direct;
      });
    }
    for (const auto& [what, count] : counts) RecordProperty(std::string(grid.name) + "/" + what, count);
  }
}

INSTANTIATE_TEST_SUITE_P(Part, GpuGrids, testing::Range(std::uint64_t{0}, kParts));

}  // namespace
}  // namespace pasa
