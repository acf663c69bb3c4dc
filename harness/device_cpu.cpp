// The host as a Device: memory is memory, and nothing is ever copied.
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "bench/ceilings.h"
#include "core/error.h"
#include "harness/device.h"

namespace pasa {
namespace {

class CpuDevice : public Device {
 public:
  pasa_device_type type() const override { return PASA_CPU; }
  int index() const override { return 0; }
  std::string name() const override { return "cpu"; }

  std::string description() const override {
    std::string model = "CPU", line;
    for (std::ifstream cpuinfo("/proc/cpuinfo"); std::getline(cpuinfo, line);) {
      if (line.starts_with("model name")) {
        model = line.substr(line.find(':') + 2);
        break;
      }
    }
    const double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    const int threads = omp_get_max_threads();
    return concat(model, ", ", threads, threads == 1 ? " thread, " : " threads, ", std::lround(bytes / 0x1p30), " GiB");
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 256;
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
    if (!data) throw Error(PASA_ERROR_MEMORY, concat("cannot allocate ", bytes, " bytes on the host"));
    return {data, std::free};
  }
  void upload(void* device, const void* host, std::size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, std::size_t bytes) override { std::memcpy(host, device, bytes); }
  void fill(void* device, int byte, std::size_t bytes) override { std::memset(device, byte, bytes); }
  pasa_stream stream() override { return nullptr; }
  void synchronize() override {}

  Samples time(const std::function<void()>& body, const Timing& timing) override {
    const auto once = [&] {
      const Stopwatch watch;
      body();
      return watch.seconds();
    };
    return measure(timing, once, [this] { evict(); });
  }

  Roofline roofline(std::string_view kernel, const Work& work, int threads) override {
    const double gflops = bench::measure_ceilings(threads).for_kernel(kernel);
    if (work.keys == 0) return {gflops, 0};
    constexpr double kLine = 64, kLeast = 1 << 20, kMost = 1 << 30;
    const double row = work.gathered_bytes / static_cast<double>(work.keys);
    const double pool = std::clamp(row * static_cast<double>(work.distinct[0] + work.distinct[1]), kLeast, kMost);
    return {gflops, bench::measure_gather_gbps(static_cast<int>(std::max(row, kLine)), static_cast<std::int64_t>(pool),
                                               threads)};
  }

 private:
  // Reads and writes more than a last-level cache holds.
  void evict() {
    constexpr std::size_t kBytes = std::size_t{256} << 20, kLine = 64;
    if (scratch_.empty()) scratch_.resize(kBytes);
    volatile char* bytes = scratch_.data();
    for (std::size_t i = 0; i < kBytes; i += kLine) bytes[i] = static_cast<char>(bytes[i] + 1);
  }
  std::vector<char> scratch_;
};

}  // namespace

std::unique_ptr<Device> open_cpu() { return std::make_unique<CpuDevice>(); }

}  // namespace pasa
