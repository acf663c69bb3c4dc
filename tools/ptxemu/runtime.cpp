#include "tools/ptxemu/runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tools/ptxemu/tensor_map.h"

namespace ptxemu {
namespace {

constexpr int kSms = 132;
// Clusters of 1, 2, ... blocks that run at once with one block a multiprocessor: what an H200 says.
constexpr int kClusters[] = {132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7};
constexpr int kSharedPerSm = 228 * 1024, kSharedPerBlock = 227 * 1024, kSystemShared = 1024, kPlainShared = 48 * 1024;

struct Kernel {
  std::string name;  // as registered
  Module* module = nullptr;
  std::string entry;  // in the module
  int dynamic_shared = kPlainShared;
  bool any_cluster = false;
};

std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The compiler names what is local to a file <length>_GLOBAL__N__<hash>_<length>_<file>_<hash>[_<number>], and the PTX has
// other hashes: the file's name alone stands for it.
std::string without_hashes(std::string name) {
  constexpr std::string_view kLocal = "_GLOBAL__N__";
  const auto is_digit = [&](std::size_t i) {
    return i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0;
  };
  for (std::size_t at = name.find(kLocal); at != std::string::npos; at = name.find(kLocal, at + 1)) {
    std::size_t begin = at, digits = at + kLocal.size() + 9;  // the hash and _
    while (begin > 0 && is_digit(begin - 1)) --begin;
    const std::size_t length = std::strtoull(name.c_str() + begin, nullptr, 10);
    if (!is_digit(digits)) continue;
    const std::size_t file_length = std::strtoull(name.c_str() + digits, nullptr, 10);
    while (is_digit(digits)) ++digits;
    const std::string file = name.substr(digits + 1, file_length);
    name.replace(begin, at + length - begin, file);
  }
  return name;
}

class Runtime {
 public:
  static Runtime& get() {
    static Runtime runtime;
    return runtime;
  }

  void add_kernel(const void* host, const char* name) {
    const std::lock_guard guard(lock_);
    kernels_[host].name = name;
  }
  Kernel& find(const void* host) {
    const std::lock_guard guard(lock_);
    const auto found = kernels_.find(host);
    if (found == kernels_.end()) throw Error("a launch of a function that is no kernel");
    Kernel& kernel = found->second;
    if (!kernel.module) {
      load();
      const auto entry = entries_.find(without_hashes(kernel.name));
      if (entry == entries_.end()) throw Error("no PTX of kernel " + kernel.name + " in " + where_);
      kernel.module = entry->second.first;
      kernel.entry = entry->second.second;
    }
    return kernel;
  }

  void* allocate(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
    if (!memory) return nullptr;
    std::memset(memory, 0xff, bytes);
    const auto begin = reinterpret_cast<std::uint64_t>(memory);
    const std::lock_guard guard(lock_);
    memory_[begin] = begin + bytes;
    return memory;
  }
  bool release(void* memory) {
    {
      const std::lock_guard guard(lock_);
      if (memory_.erase(reinterpret_cast<std::uint64_t>(memory)) == 0) return false;
    }
    std::free(memory);
    return true;
  }
  // Whether bytes from `memory` on are within an allocation.
  bool holds(const void* memory, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uint64_t>(memory);
    const std::lock_guard guard(lock_);
    auto found = memory_.upper_bound(begin);
    return found != memory_.begin() && begin + bytes <= (--found)->second;
  }

  void launch(const Kernel& kernel, const std::vector<std::byte>& arguments, const Launch& how) {
    std::vector<Range> ranges;
    {
      const std::lock_guard guard(lock_);
      for (const auto& [begin, end] : memory_) ranges.push_back({begin, end});
    }
    const Stats stats = kernel.module->launch(kernel.entry, arguments, how, ranges, options);
    if (print_stats_) {
      std::fprintf(
          stderr,
          "ptxemu: %s: %llu blocks, %.3f M warp instructions, %.3f MB global, shared wavefronts %.3f M of %.3f M\n",
          kernel.entry.c_str(), static_cast<unsigned long long>(how.grid.count()),
          static_cast<double>(stats.instructions) * 1e-6, static_cast<double>(stats.global_bytes) * 1e-6,
          static_cast<double>(stats.shared_ideal_wavefronts) * 1e-6,
          static_cast<double>(stats.shared_wavefronts) * 1e-6);
    }
    const std::lock_guard guard(lock_);
    Counts& counts = counts_[without_hashes(kernel.name)];
    counts.stats += stats;
    counts.blocks += how.grid.count();
    ++counts.launches;
  }

  std::map<std::string, Counts> take_counts() {
    const std::lock_guard guard(lock_);
    return std::exchange(counts_, {});
  }

  Options options{.seed = environment("PTXEMU_SEED", 1),
                  .check_races = environment("PTXEMU_RACES", 1) != 0,
                  .count_banks = environment("PTXEMU_STATS", 0) != 0,
                  .trace = environment("PTXEMU_TRACE", 0) != 0,
                  .threads = static_cast<std::uint32_t>(environment("PTXEMU_THREADS", 0))};

 private:
  void load() {
    if (!modules_.empty()) return;
    const char* given = std::getenv("PTXEMU_PTX");
    where_ = given && *given ? given : PTXEMU_PTX;
    for (std::size_t at = 0; at < where_.size();) {
      const std::size_t end = std::min(where_.find(':', at), where_.size());
      const std::filesystem::path folder = where_.substr(at, end - at);
      at = end + 1;
      if (!std::filesystem::is_directory(folder)) continue;
      for (const auto& file : std::filesystem::directory_iterator(folder)) {
        if (file.path().extension() != ".ptx") continue;
        modules_.push_back(Module::from_file(file.path()));
        for (const std::string& name : modules_.back().kernels()) {
          entries_.emplace(without_hashes(name), std::pair(&modules_.back(), name));
        }
      }
    }
  }

  std::mutex lock_;
  std::map<const void*, Kernel> kernels_;
  std::deque<Module> modules_;
  std::map<std::string, std::pair<Module*, std::string>> entries_;
  std::string where_;
  std::map<std::uint64_t, std::uint64_t> memory_;  // begin -> end
  std::map<std::string, Counts> counts_;
  bool print_stats_ = environment("PTXEMU_STATS", 0) != 0;
};

// ---- errors, streams ---------------------------------------------------------------------------------------------------------

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string launch_failure;

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Runs `body`; a finding becomes a launch failure whose text is the finding.
template <typename Body>
cudaError_t guarded(Body&& body) {
  try {
    return note(body());
  } catch (const std::exception& error) {
    launch_failure = error.what();
    std::fprintf(stderr, "ptxemu: %s\n", error.what());
    return note(cudaErrorLaunchFailure);
  }
}

using Work = std::function<cudaError_t()>;
struct Graph {
  std::vector<Work> nodes;
};
// A stream's work is done when the call that asks for it returns, or recorded while the stream is captured.
std::map<cudaStream_t, Graph*> captures;

cudaError_t enqueue(cudaStream_t stream, Work work) {
  if (const auto found = captures.find(stream); found != captures.end()) {
    found->second->nodes.push_back(std::move(work));
    return cudaSuccess;
  }
  return guarded(work);
}

Dim3 dim(dim3 d) { return {d.x, d.y, d.z}; }

cudaError_t launch(const void* host, void** arguments, Launch how, cudaStream_t stream) {
  return guarded([&] {
    Kernel& kernel = Runtime::get().find(host);
    if (how.grid.count() == 0 || how.block.count() == 0) return cudaErrorInvalidConfiguration;
    if (how.dynamic_shared_bytes > static_cast<std::uint32_t>(kernel.dynamic_shared)) return cudaErrorInvalidValue;
    if (how.cluster.count() > 16 || (how.cluster.count() > 8 && !kernel.any_cluster))
      return cudaErrorInvalidClusterSize;
    const std::vector<Module::Parameter> parameters = kernel.module->parameters(kernel.entry);
    std::vector<std::byte> bytes(parameters.empty() ? 0 : parameters.back().at + parameters.back().bytes);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      std::memcpy(bytes.data() + parameters[i].at, arguments[i], parameters[i].bytes);
    return enqueue(stream, [&kernel, bytes, how] {
      Runtime::get().launch(kernel, bytes, how);
      return cudaSuccess;
    });
  });
}

bool on_device(const void* p, std::size_t bytes, bool wanted) { return !wanted || Runtime::get().holds(p, bytes); }

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!on_device(to, bytes, to_device) || !on_device(from, bytes, from_device)) return cudaErrorInvalidValue;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

// ---- tensor maps ----------------------------------------------------------------------------------------------------------------

CUresult encode_tiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* base, const cuuint64_t* sizes,
                      const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                      CUtensorMapFloatOOBfill fill) {
  TensorMap map{};
  map.magic = TensorMap::kMagic;
  map.base = reinterpret_cast<std::uint64_t>(base);
  map.rank = rank;
  map.element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1
                      : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ||
                              type == CU_TENSOR_MAP_DATA_TYPE_UINT16
                          ? 2
                      : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_INT32 ||
                              type == CU_TENSOR_MAP_DATA_TYPE_UINT32
                          ? 4
                          : 0;
  map.swizzle_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE  ? 0
                      : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                      : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                             : 128;
  if (map.element_bytes == 0 || rank < 1 || rank > 5 || map.base % 16 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || sizes[i] > (cuuint64_t{1} << 32) || box[i] == 0 || box[i] > 256 || steps[i] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    map.size[i] = static_cast<std::uint32_t>(sizes[i]);
    map.box[i] = box[i];
    if (i == 0) continue;
    map.stride[i] = strides[i - 1];
    if (map.stride[i] % 16 || map.stride[i] >= (cuuint64_t{1} << 40)) return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint32_t row = map.box[0] * map.element_bytes;
  if (row % 16 || (map.swizzle_bytes && row > map.swizzle_bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace

Options& runtime_options() { return Runtime::get().options; }
std::map<std::string, Counts> take_counts() { return Runtime::get().take_counts(); }

}  // namespace ptxemu

// ---- the runtime's functions -------------------------------------------------------------------------------------------------------

using ptxemu::guarded;
using ptxemu::note;
using ptxemu::Runtime;

extern "C" {

// What the compiler's host code calls, by its names.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Runtime::get().add_kernel(host, name);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}  // the PTX declares it
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return note(cudaErrorMissingConfiguration);
  const Configuration& c = configurations.back();
  *grid = c.grid, *block = c.block, *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  configurations.pop_back();
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return ptxemu::launch(host, arguments,
                        {ptxemu::dim(grid), ptxemu::dim(block), {}, static_cast<std::uint32_t>(shared), false}, stream);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** arguments) {
  ptxemu::Launch how{ptxemu::dim(config->gridDim),
                     ptxemu::dim(config->blockDim),
                     {},
                     static_cast<std::uint32_t>(config->dynamicSmemBytes),
                     false};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension) {
      how.cluster = {a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z};
    } else if (a.id == cudaLaunchAttributeCooperative) {
      how.cooperative = a.val.cooperative != 0;
    } else if (a.id != cudaLaunchAttributeProgrammaticStreamSerialization) {
      return note(cudaErrorInvalidValue);
    }
  }
  return ptxemu::launch(host, arguments, how, config->stream);
}

cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  return guarded([&] {
    ptxemu::Kernel& kernel = Runtime::get().find(host);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      if (value < 0 ||
          value + static_cast<int>(kernel.module->static_shared_bytes(kernel.entry)) > ptxemu::kSharedPerBlock)
        return cudaErrorInvalidValue;
      kernel.dynamic_shared = value;
    } else if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
      kernel.any_cluster = value != 0;
    } else {
      return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

// By threads and shared memory; registers are not known before ptxas.
static int blocks_per_sm(const void* host, int threads, std::size_t shared) {
  const ptxemu::Kernel& kernel = Runtime::get().find(host);
  const auto bytes =
      static_cast<int>(kernel.module->static_shared_bytes(kernel.entry) + shared) + ptxemu::kSystemShared;
  return std::min({32, 2048 / std::max(threads, 1), ptxemu::kSharedPerSm / bytes});
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* host, int threads,
                                                                   size_t shared, unsigned) {
  return guarded([&] {
    *blocks = blocks_per_sm(host, threads, shared);
    return cudaSuccess;
  });
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* host, const cudaLaunchConfig_t* config) {
  return guarded([&] {
    unsigned size = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const cudaLaunchAttribute& a = config->attrs[i];
      if (a.id == cudaLaunchAttributeClusterDimension)
        size = a.val.clusterDim.x * a.val.clusterDim.y * a.val.clusterDim.z;
    }
    const ptxemu::Kernel& kernel = Runtime::get().find(host);
    if (size == 0 || size > 16 || (size > 8 && !kernel.any_cluster)) return cudaErrorInvalidClusterSize;
    const int per_sm = blocks_per_sm(
        host, static_cast<int>(config->blockDim.x * config->blockDim.y * config->blockDim.z), config->dynamicSmemBytes);
    *clusters = ptxemu::kClusters[size - 1] * per_sm;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return note(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "H200 emulated by ptxemu");
  properties->major = 9;
  properties->multiProcessorCount = ptxemu::kSms;
  properties->sharedMemPerBlockOptin = ptxemu::kSharedPerBlock;
  properties->sharedMemPerMultiprocessor = ptxemu::kSharedPerSm;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = ptxemu::kSharedPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = ptxemu::kSharedPerSm;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = ptxemu::kSms;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 1 << 20;
      return cudaSuccess;
    default:
      return note(cudaErrorInvalidValue);
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorLaunchFailure:
      return ptxemu::launch_failure.c_str();
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "an error of the emulated runtime";
  }
}
cudaError_t cudaGetLastError() { return std::exchange(ptxemu::last_error, cudaSuccess); }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = Runtime::get().allocate(bytes);
  return note(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  return note(!memory || Runtime::get().release(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = std::size_t{8} << 30;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return note(ptxemu::copy(to, from, bytes, kind));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return ptxemu::enqueue(stream, [=] { return ptxemu::copy(to, from, bytes, kind); });
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t stream) {
  return ptxemu::enqueue(stream, [=] {
    if (!Runtime::get().holds(memory, bytes)) return cudaErrorInvalidValue;
    std::memset(memory, byte, bytes);
    return cudaSuccess;
  });
}

static cudaStream_t new_stream() {
  static std::atomic<std::uintptr_t> next = 0x1000;
  return reinterpret_cast<cudaStream_t>(next += 16);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

// Events know no time.
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new_stream());
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  ptxemu::captures[stream] = new ptxemu::Graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto found = ptxemu::captures.find(stream);
  if (found == ptxemu::captures.end()) return note(cudaErrorInvalidValue);
  *graph = reinterpret_cast<cudaGraph_t>(found->second);
  ptxemu::captures.erase(found);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new ptxemu::Graph(*reinterpret_cast<ptxemu::Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const ptxemu::Work& work : reinterpret_cast<ptxemu::Graph*>(exec)->nodes) {
    if (const cudaError_t error = guarded(work); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<ptxemu::Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<ptxemu::Graph*>(exec);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(name, "cuTensorMapEncodeTiled") != 0) return note(cudaErrorInvalidValue);
  *function = reinterpret_cast<void*>(&ptxemu::encode_tiled);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
