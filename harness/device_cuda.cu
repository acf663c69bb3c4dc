// A GPU for the harness: memory, copies, and how a call is timed there.
//
// time() captures calls into a CUDA graph and times its replays between events, so that neither the host's launch cost nor
// the events' own cost lands in a figure. Warm: 32 calls in a row. Cold: 16 times (read a buffer larger than L2, call), minus
// the same graph without the calls; the buffer is read, never written, so that no dirty line is left to be written back.
// A body that takes its next set of inputs at each call makes the graph rotate through them.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "bench/cuda/ceilings.h"
#include "core/error.h"
#include "cuda/device.h"
#include "harness/device.h"

namespace pasa {
namespace {

using cuda::check;

__global__ void read_all(const uint4* from, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    // volatile down to the machine, or a load that nobody uses would go
    asm volatile("{ .reg .u32 a, b, c, d; ld.volatile.global.v4.u32 {a, b, c, d}, [%0]; }" ::"l"(from + i));
  }
}

class Graph {
 public:
  template <typename Body>
  Graph(cudaStream_t stream, Body&& body) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    cudaGraphExecDestroy(exec_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  double seconds() {  // of one replay
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    check(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch");
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    check(cudaSetDevice(index), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~CudaDevice() override { cudaStreamDestroy(stream_); }

  pasa_device_type type() const override { return PASA_CUDA; }
  int index() const override { return index_; }
  std::string name() const override { return concat("cuda:", index_); }
  std::string description() const override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const cuda::Device& gpu = cuda::device(index_);
    return concat(gpu.name, ", ", gpu.sms, " SMs, ", total >> 30, " GiB");
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (const cudaError_t status = cudaMalloc(&data, std::max<std::size_t>(bytes, 1)); status != cudaSuccess) {
      cudaGetLastError();
      throw Error(PASA_ERROR_MEMORY, concat(bytes, " bytes on ", name(), ": ", cudaGetErrorString(status)));
    }
    return {data, [](void* p) { cudaFree(p); }};
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    synchronize();
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    synchronize();
  }
  void fill(void* device, int byte, std::size_t bytes) override {
    check(cudaMemsetAsync(device, byte, bytes, stream_), "cudaMemsetAsync");
    synchronize();
  }

  pasa_stream stream() override { return stream_; }
  void synchronize() override { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  Samples time(const std::function<void()>& body, const Timing& timing) override {
    for (int i = 0; i < timing.warmup; ++i) body();
    if (timing.cold) flush();  // allocates: not while a graph is captured
    synchronize();
    const int calls = timing.cold ? 16 : 32;
    Graph graph(stream_, [&] {
      for (int i = 0; i < calls; ++i) {
        if (timing.cold) flush();
        body();
      }
    });
    double overhead = 0;
    if (timing.cold) {
      Graph empty(stream_, [&] {
        for (int i = 0; i < calls; ++i) flush();
      });
      Timing reps = timing;
      reps.cold = false;
      overhead = measure(
                     reps, [&] { return empty.seconds(); }, [] {})
                     .median();
    }
    Timing reps = timing;
    reps.cold = false;
    return measure(
        reps, [&] { return std::max(graph.seconds() - overhead, 0.0) / calls; }, [] {});
  }

  // Matrix rate as recorded on an H200; gathering is measured once, over 1 GiB.
  Roofline roofline(std::string_view, const Work&, int) override {
    if (gather_gbps_ == 0) {
      constexpr std::size_t kPool = std::size_t{1} << 30;
      const std::shared_ptr<void> pool = allocate(kPool);
      fill(pool.get(), 0x11, kPool);
      gather_gbps_ = bench::measure_gpu_gather_gbps(pool.get(), kPool, stream_);
    }
    return {1e3 * bench::kMatmulTflops, gather_gbps_};
  }

 private:
  void flush() {
    if (!flushed_) {
      int l2 = 0;
      check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, index_), "cudaDeviceGetAttribute");
      flush_bytes_ = 2 * static_cast<std::size_t>(std::max(l2, 1 << 20));
      flushed_ = allocate(flush_bytes_);
      fill(flushed_.get(), 0, flush_bytes_);
    }
    read_all<<<static_cast<unsigned>(4 * cuda::device(index_).sms), 512, 0, stream_>>>(
        static_cast<const uint4*>(flushed_.get()), flush_bytes_ / 16);
    check(cudaGetLastError(), "read_all");
  }

  int index_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<void> flushed_;
  std::size_t flush_bytes_ = 0;
  double gather_gbps_ = 0;
};

}  // namespace

int cuda_device_count() { return cuda::device_count(); }

std::unique_ptr<Device> open_cuda(int index) {
  require(PASA_ERROR_DEVICE, index >= 0 && index < cuda_device_count(), "there is no cuda:", index, " (",
          cuda_device_count(), " found)");
  return std::make_unique<CudaDevice>(index);
}

}  // namespace pasa
