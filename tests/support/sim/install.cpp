#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/sim/device_memory.h"
#include "tests/support/sim/pinned_memory.h"
#include "tests/support/sim/resize.h"
#include "tests/support/sim/runtime.h"
#include "tests/support/sim/sim.h"

namespace kvcache::testing::sim {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  // The random numbers are the CPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Device getDeviceFromPtr(void* memory) const override {
    return device(device_memory().device_of(memory));
  }
  bool isPinnedPtr(const void* memory) const override { return pinned_memory().owns(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  TORCH_CHECK(storage.resizable(), "the storage cannot be resized");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr memory = device_memory().allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    static const std::string* const name = intern("resize");
    const auto from = reinterpret_cast<std::uintptr_t>(storage.data());
    const auto to = reinterpret_cast<std::uintptr_t>(memory.get());
    auto task = std::make_shared<Task>(Task{.name = name});
    task->accesses = {{from, from + kept, /*write=*/false}, {to, to + kept, /*write=*/true}};
    task->run = [source = device_memory().kernel_address(storage.data()),
                 target = device_memory().kernel_address(memory.get()),
                 kept] { std::memcpy(target, source, kept); };
    Runtime& runtime = Runtime::get();
    runtime.launch(runtime.current_stream(current_device()), std::move(task));
  }
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
}

void install() {
  c10::register_privateuse1_backend("sim");
  c10::SetAllocator(c10::kPrivateUse1, &device_memory());
  at::setHostAllocator(c10::kPrivateUse1, &pinned_memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  at::set_num_threads(1);  // else each stream's thread starts a team of its own
}

void configure(const Config& config) { Runtime::get().configure(config); }

Counters counters() { return Runtime::get().counters(); }

void reset_counters() {
  Runtime::get().count([](Counters& c) { c = {}; });
}

std::vector<std::string> take_races() { return Runtime::get().take_races(); }

void declare_host_access(const at::Tensor& pinned, HostAccess access) {
  Runtime::get().note_host_access(bytes_of(pinned, access == HostAccess::write));
}

void synchronize() {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    Runtime::get().synchronize_device(device);
  }
}

void shutdown() { Runtime::get().shutdown(); }

}  // namespace kvcache::testing::sim
