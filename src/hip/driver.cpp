// HIP through libamdhip64.so, found at run time. Its C interface is stable; the few declarations stand here so that no
// ROCm header is needed to build.
#include "hip/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <type_traits>

#include "core/error.h"

namespace pasa::hip {
namespace {

constexpr int kSuccess = 0;
constexpr int kMultiprocessorCount = 63;  // hipDeviceAttributeMultiprocessorCount
constexpr int kMemcpyDefault = 4;         // direction by the addresses

class Hip final : public Driver {
 public:
  Hip() {
    library_ = dlopen("libamdhip64.so", RTLD_NOW | RTLD_LOCAL);
    for (const char* version : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}) {
      if (!library_) library_ = dlopen(version, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library_) {
      problem_ = "libamdhip64.so is not there (no ROCm)";
      return;
    }
    find(get_device_count_, "hipGetDeviceCount");
    find(version_, "hipRuntimeGetVersion");
    find(set_device_, "hipSetDevice");
    find(get_device_, "hipGetDevice");
    find(device_name_, "hipDeviceGetName");
    find(attribute_, "hipDeviceGetAttribute");
    find(module_load_, "hipModuleLoadData");
    find(module_function_, "hipModuleGetFunction");
    find(launch_, "hipModuleLaunchKernel");
    find(malloc_, "hipMalloc");
    find(free_, "hipFree");
    find(memcpy_, "hipMemcpy");
    find(memset_, "hipMemset");
    find(synchronize_, "hipDeviceSynchronize");
    find(error_text_, "hipGetErrorString");
    find(event_create_, "hipEventCreate");
    find(event_record_, "hipEventRecord");
    find(event_synchronize_, "hipEventSynchronize");
    find(event_elapsed_, "hipEventElapsedTime");
    find(event_destroy_, "hipEventDestroy");
    if (!problem_.empty()) return;
    if (const int status = get_device_count_(&count_); status != kSuccess) {
      problem_ = concat("HIP reports ", error_text_(status));
    } else if (count_ == 0) {
      problem_ = "HIP finds no device";
    }
  }

  std::string unavailable() override { return problem_; }
  int device_count() override { return count_; }

  DeviceInfo device(int index) override {
    char name[256] = "";
    DeviceInfo info;
    check(device_name_(name, sizeof name, index), "hipDeviceGetName");
    check(attribute_(&info.compute_units, kMultiprocessorCount, index), "hipDeviceGetAttribute");
    info.name = name;
    return info;
  }

  std::string version() override {
    int number = 0;
    check(version_(&number), "hipRuntimeGetVersion");
    return concat("HIP ", number / 10000000, '.', number / 100000 % 100, '.', number % 100000);
  }

  Kernel load(int device, std::span<const std::byte> code, const char* name) override {
    const DeviceScope scope(*this, device);
    void *module = nullptr, *kernel = nullptr;
    if (module_load_(&module, code.data()) != kSuccess) return nullptr;  // code of another architecture
    check(module_function_(&kernel, module, name), "hipModuleGetFunction");
    return kernel;
  }

  void launch(int device, Kernel kernel, Dim3 grid, Dim3 block, std::span<const std::byte> arguments,
              void* stream) override {
    const DeviceScope scope(*this, device);
    std::size_t bytes = arguments.size();
    // HIP_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END
    void* extra[] = {reinterpret_cast<void*>(1), const_cast<std::byte*>(arguments.data()), reinterpret_cast<void*>(2),
                     &bytes, reinterpret_cast<void*>(3)};
    check(launch_(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, 0, stream, nullptr, extra),
          "hipModuleLaunchKernel");
  }

  void* allocate(int device, std::size_t bytes) override {
    const DeviceScope scope(*this, device);
    void* memory = nullptr;
    return malloc_(&memory, bytes) == kSuccess ? memory : nullptr;
  }
  void release(void* memory) override { free_(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    check(memcpy_(to, from, bytes, kMemcpyDefault), "hipMemcpy");
  }
  void fill(void* memory, int byte, std::size_t bytes) override { check(memset_(memory, byte, bytes), "hipMemset"); }
  void synchronize(int device) override {
    const DeviceScope scope(*this, device);
    check(synchronize_(), "hipDeviceSynchronize");
  }

  float time(int device, void (*body)(void*), void* context) override {
    const DeviceScope scope(*this, device);
    void *begin = nullptr, *end = nullptr;
    float milliseconds = 0;
    check(event_create_(&begin), "hipEventCreate");
    check(event_create_(&end), "hipEventCreate");
    check(event_record_(begin, nullptr), "hipEventRecord");
    body(context);
    check(event_record_(end, nullptr), "hipEventRecord");
    check(event_synchronize_(end), "hipEventSynchronize");
    check(event_elapsed_(&milliseconds, begin, end), "hipEventElapsedTime");
    event_destroy_(begin);
    event_destroy_(end);
    return milliseconds;
  }

 private:
  // The calling thread's device, restored at the end.
  class DeviceScope {
   public:
    DeviceScope(Hip& hip, int device) : hip_(hip) {
      hip.check(hip.get_device_(&previous_), "hipGetDevice");
      if (device != previous_) hip.check(hip.set_device_(device), "hipSetDevice");
    }
    ~DeviceScope() { hip_.set_device_(previous_); }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

   private:
    Hip& hip_;
    int previous_ = 0;
  };

  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (!function && problem_.empty()) problem_ = concat("libamdhip64.so has no ", name);
  }
  void check(int status, const char* call) {
    if (status != kSuccess) throw Error(PASA_ERROR_INTERNAL, concat("internal: ", call, ": ", error_text_(status)));
  }

  void* library_ = nullptr;
  std::string problem_;
  int count_ = 0;
  int (*get_device_count_)(int*);
  int (*version_)(int*);
  int (*set_device_)(int);
  int (*get_device_)(int*);
  int (*device_name_)(char*, int, int);
  int (*attribute_)(int*, int, int);
  int (*module_load_)(void**, const void*);
  int (*module_function_)(void**, void*, const char*);
  int (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  int (*malloc_)(void**, std::size_t);
  int (*free_)(void*);
  int (*memcpy_)(void*, const void*, std::size_t, int);
  int (*memset_)(void*, int, std::size_t);
  int (*synchronize_)();
  const char* (*error_text_)(int);
  int (*event_create_)(void**);
  int (*event_record_)(void*, void*);
  int (*event_synchronize_)(void*);
  int (*event_elapsed_)(float*, void*, void*);
  int (*event_destroy_)(void*);
};

std::atomic<Driver*> replacement_driver = nullptr;

}  // namespace

Driver& driver() {
  if (Driver* replacement = replacement_driver) return *replacement;
  static Hip hip;
  return hip;
}

void use_driver(Driver* replacement) { replacement_driver = replacement; }

}  // namespace pasa::hip
