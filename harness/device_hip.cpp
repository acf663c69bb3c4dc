#include "harness/device_hip.h"

#include <charconv>

#include "core/error.h"
#include "hip/device.h"

namespace pasa {
namespace {

class HipDevice : public Device {
 public:
  using Take = std::map<std::string, Counts> (*)(hip::Driver&);
  // take: of an emulator.
  HipDevice(hip::Driver& driver, int index, std::string name, Take take = nullptr)
      : driver_(driver), index_(index), name_(std::move(name)), take_(take) {}

  pasa_device_type type() const override { return PASA_HIP; }
  int index() const override { return index_; }
  std::string name() const override { return name_; }
  std::string description() const override {
    const hip::DeviceInfo info = driver_.device(index_);
    const std::string_view architecture = hip::architecture(index_);
    std::string text = concat(info.name, ", ", info.compute_units, " compute units");
    for (const std::string& part : {std::string(architecture), driver_.version()}) {
      if (!part.empty()) text += ", " + part;
    }
    return text;
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    void* memory = driver_.allocate(index_, bytes ? bytes : 1);
    if (!memory) throw Error(PASA_ERROR_MEMORY, concat("cannot allocate ", bytes, " bytes on ", name_));
    return {memory, [&driver = driver_](void* p) { driver.release(p); }};
  }
  void upload(void* device, const void* host, std::size_t bytes) override { driver_.copy(device, host, bytes); }
  void download(void* host, const void* device, std::size_t bytes) override { driver_.copy(host, device, bytes); }
  void fill(void* device, int byte, std::size_t bytes) override { driver_.fill(device, byte, bytes); }
  pasa_stream stream() override { return nullptr; }
  void synchronize() override { driver_.synchronize(index_); }

  bool keeps_time() const override { return take_ == nullptr; }
  std::map<std::string, Counts> take_counts() override { return take_ ? take_(driver_) : Device::take_counts(); }

  Samples time(const std::function<void()>& body, const Timing& timing) override {
    const auto once = [&] {
      const auto call = [](void* f) { (*static_cast<const std::function<void()>*>(f))(); };
      const float milliseconds = driver_.time(index_, call, const_cast<std::function<void()>*>(&body));
      require(PASA_ERROR_UNSUPPORTED, milliseconds >= 0, name_, " executes instructions and keeps no time");
      return static_cast<double>(milliseconds) * 1e-3;
    };
    // Cold caches: write more than the 256 MiB that the largest of these devices keeps.
    constexpr std::size_t kMoreThanCaches = std::size_t{512} << 20;
    const std::shared_ptr<void> waste = timing.cold ? allocate(kMoreThanCaches) : nullptr;
    return measure(timing, once, [&] { fill(waste.get(), 0, kMoreThanCaches); });
  }

 private:
  hip::Driver& driver_;
  int index_;
  std::string name_;
  Take take_;
};

}  // namespace

std::vector<std::string> hip_device_names() {
  std::vector<std::string> names;
  hip::Driver& driver = hip::driver();
  if (driver.unavailable().empty()) {
    for (int i = 0; i < driver.device_count(); ++i) names.push_back("hip:" + std::to_string(i));
  }
  return names;
}

std::vector<std::string> emulated_device_names() {
#ifdef PASA_WITH_GFX950EMU
  return {"gfx950-emu", "gfx942-emu"};
#else
  return {};
#endif
}

std::unique_ptr<Device> open_hip(std::string_view name) {
#ifdef PASA_WITH_GFX950EMU
  if (name == "gfx942-emu" || name == "gfx950-emu") {
    hip::Driver& emulator = name == "gfx942-emu" ? gfx942_emulator() : gfx950_emulator();
    hip::use_driver(&emulator);
    return std::make_unique<HipDevice>(emulator, 0, std::string(name), take_emulated_counts);
  }
#endif
  int index = name == "hip" ? 0 : -1;
  if (name.starts_with("hip:")) {
    const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), index);
    if (error != std::errc() || end != name.data() + name.size()) index = -1;
  }
  if (index < 0) return nullptr;
  hip::Driver& driver = hip::driver();
  const std::string missing = driver.unavailable();
  require(PASA_ERROR_DEVICE, missing.empty(), "device '", name, "' is not there: ", missing);
  require(PASA_ERROR_DEVICE, index < driver.device_count(), "device '", name, "' is not there, this machine has ",
          driver.device_count(), " HIP devices");
  return std::make_unique<HipDevice>(driver, index, "hip:" + std::to_string(index));
}

}  // namespace pasa
