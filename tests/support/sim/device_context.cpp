// What LibTorch's guards, streams and events ask a device for.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "tests/support/sim/device_memory.h"
#include "tests/support/sim/runtime.h"

namespace kvcache::testing::sim {
namespace {

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<c10::StreamId, kDevices> this_stream{};

struct EventHandle {
  EventPtr state;
  c10::DeviceIndex device = 0;  // where it was recorded
};

EventHandle& handle_of(void* event) { return *static_cast<EventHandle*>(event); }

c10::Stream handle(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, sim::device(device), id);
}

class GuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device getDevice() const override { return device(this_device); }
  c10::Device exchangeDevice(c10::Device to) const override {
    return device(exchange_current_device(to.index()));
  }
  void setDevice(c10::Device to) const override { exchange_current_device(to.index()); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { this_device = to.index(); }

  c10::Stream getStream(c10::Device of) const override { return current_stream_of(of.index()); }
  c10::Stream getDefaultStream(c10::Device of) const override { return handle(index(of), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override {
    return Runtime::get().pool_stream(index(of));
  }
  c10::Stream getNewStream(c10::Device of, int) const override {
    return Runtime::get().pool_stream(index(of));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    Runtime::get().stream(to);  // there must be one
    const c10::DeviceIndex at = to.device_index();
    return handle(at, std::exchange(this_stream[std::size_t(at)], to.id()));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    Stream& on = Runtime::get().stream(stream);
    refuse_captured(on);
    if (*event == nullptr) *event = new EventHandle;
    handle_of(*event) = {Runtime::get().record(on), stream.device_index()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    Stream& on = Runtime::get().stream(stream);
    refuse_captured(on);
    Runtime::get().block(on, handle_of(event).state);
  }
  bool queryEvent(void* event) const override {
    return Runtime::get().query(handle_of(event).state);
  }
  void synchronizeEvent(void* event) const override {
    Runtime::get().synchronize(handle_of(event).state, handle_of(event).device);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(event);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    const auto passed = handle_of(to).state->time() - handle_of(from).state->time();
    return std::chrono::duration<double, std::milli>(passed).count();
  }

  bool queryStream(const c10::Stream& stream) const override {
    return Runtime::get().query(Runtime::get().stream(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Runtime::get().synchronize(Runtime::get().stream(stream));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    Runtime::get().synchronize_device(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    device_memory().recordStream(memory, stream);
  }

 private:
  static c10::DeviceIndex index(c10::Device of) {
    return of.has_index() ? of.index() : this_device;
  }

  static void refuse_captured(const Stream& stream) {
    TORCH_CHECK(!Runtime::get().capture_of(stream),
                "a graph is being captured, and events of its stream are not kept");
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

}  // namespace

c10::DeviceIndex current_device() { return this_device; }

c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) {
  if (device == -1) return this_device;  // "the current one", as LibTorch's guards have it
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no simulated device ", int(device));
  return std::exchange(this_device, device);
}

c10::Stream current_stream_of(c10::DeviceIndex device) {
  if (device == -1) device = this_device;
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no simulated device ", int(device));
  return handle(device, this_stream[std::size_t(device)]);
}

}  // namespace kvcache::testing::sim
