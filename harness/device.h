// Where a problem runs and is timed: the host, or a GPU behind the same few words. device_cpu.cpp is the host;
// device_cuda.cu and device_hip.cpp (device_no_cuda.cpp and device_no_hip.cpp in a build without them) add GPUs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/case.h"
#include "harness/clock.h"
#include "harness/counts.h"
#include "pasa/pasa.h"

namespace pasa {

// What the device can do at most, measured in the same process; 0: not known.
struct Roofline {
  double gflops = 0;  // on the unit that a kernel's arithmetic uses
  double gbps = 0;    // gathering rows as large as the work's keys from a pool as large as what its rows name
};

class Device {
 public:
  virtual ~Device() = default;
  virtual pasa_device_type type() const = 0;
  virtual int index() const = 0;
  virtual std::string name() const = 0;         // "cpu", "cuda:0"
  virtual std::string description() const = 0;  // "NVIDIA H200, 132 SMs, 139 GiB"

  // Memory on the device, aligned to 256 bytes, freed with the last reference. Throws PASA_ERROR_MEMORY.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  virtual void upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device, std::size_t bytes) = 0;
  virtual void fill(void* device, int byte, std::size_t bytes) = 0;

  virtual pasa_stream stream() = 0;
  virtual void synchronize() = 0;
  // False on an emulator, where a call has no time but counts.
  virtual bool keeps_time() const { return true; }
  // What each kernel executed since the last question, by the name of the device's kernel.
  virtual std::map<std::string, Counts> take_counts() { return {}; }
  // Times body, which enqueues or does one call. On a GPU: events around the call, the host's own cost left out.
  virtual Samples time(const std::function<void()>& body, const Timing& timing) = 0;
  virtual Roofline roofline(std::string_view /*kernel*/, const Work& /*work*/, int /*threads*/) { return {}; }
};

// "cpu", "cuda", "cuda:1", or "auto": the first GPU, else the host. Throws PASA_ERROR_DEVICE that says what there is.
std::unique_ptr<Device> open_device(std::string_view name);
// What open_device() would accept: names of the devices of this machine, and of those that it emulates.
std::vector<std::string> device_names();
std::vector<std::string> emulated_device_names();

// A case on a device. On the host it is the case itself, nothing is copied; on a GPU each tensor has a copy with the same
// strides (of a pool with wide gaps, only the pages).
class Placed {
 public:
  Placed(Case& c, Device& device);
  const pasa_problem& problem() const { return problem_; }
  void poison_outputs();  // on the device
  void fetch_outputs();   // device to case

 private:
  Case& case_;
  Device& device_;
  pasa_problem problem_;
  std::vector<std::shared_ptr<void>> buffers_;
};

// A plan with its workspace. Throws Error.
class Runner {
 public:
  Runner(const pasa_problem& problem, Device& device);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void run();  // enqueues; Device::synchronize() to wait
  const pasa_plan* plan() const { return plan_; }
  std::string kernel() const { return pasa_plan_kernel(plan_); }
  std::string summary() const { return pasa_plan_summary(plan_); }
  int splits() const { return pasa_plan_splits(plan_); }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  const pasa_problem& problem_;
  Device& device_;
  pasa_plan* plan_ = nullptr;
  std::shared_ptr<void> workspace_;
  std::size_t workspace_bytes_ = 0;
};

// If the problem's plan on that device leaves partials (PASA_SKIP_REDUCE), makes room for them: add_partials(). Call it
// before Placed; afterwards reduce_partials() on the host gives the result.
void prepare_partials(Case& c, const Device& device);

// device_cuda.cpp or device_no_cuda.cpp.
int cuda_device_count();
std::unique_ptr<Device> open_cuda(int index);
// device_hip.cpp or device_no_hip.cpp. open_hip: nullptr if that is not a name of its kind.
std::vector<std::string> hip_device_names();
std::unique_ptr<Device> open_hip(std::string_view name);
// device_cpu.cpp
std::unique_ptr<Device> open_cpu();

// Throws Error with the library's message unless status is PASA_OK.
void check_status(pasa_status status);

}  // namespace pasa
