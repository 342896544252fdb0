// The memory of both devices. The addresses that tensors carry cannot be read or written by anyone;
// the streams' kernels use the same offsets of a second range.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tests/support/sim/runtime.h"

namespace kvcache::testing::sim {

inline constexpr std::size_t kDeviceBytes = std::size_t{16} << 30;

// An allocator with the rules of CUDA's caching one: a freed block is at once reused by its own
// stream; one used on other streams (record_stream) once their events are done. active_bytes counts
// both kinds and the live ones. Blocks are multiples of 512 bytes.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override;  // on the current device and stream
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;  // waits for both devices
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;

  void free(void* memory);

  // The captured graph is gone: what it kept for its replays is for all again.
  void release_graph(const Capture* graph);

  // The address at which kernels find what tensors have at `memory`.
  void* kernel_address(const void* memory) const;
  c10::DeviceIndex device_of(const void* memory) const;

 private:
  friend DeviceMemory& device_memory();
  DeviceMemory();

  struct Block {
    std::byte* first = nullptr;
    std::size_t bytes = 0;      // a multiple of 512
    std::size_t requested = 0;  // bytes
    Stream* stream = nullptr;
    std::vector<Stream*> used_on = {};
    const Capture* graph = nullptr;  // whose replays use it
  };
  struct Waiting {
    Block block;
    std::vector<EventPtr> events;
  };
  struct Device {
    std::byte* visible = nullptr;              // addresses of tensors
    std::byte* hidden = nullptr;               // addresses of kernels
    std::map<std::size_t, std::size_t> spare;  // offset -> bytes that no block covers
    std::unordered_map<void*, Block> live;
    std::multimap<std::size_t, Block> cached;  // by bytes
    std::vector<Waiting> waiting;              // freed, but used on other streams
    c10::CachingDeviceAllocator::DeviceStats stats;
  };

  Device& at(c10::DeviceIndex device) { return devices_[std::size_t(device)]; }
  Block take(Device& device, std::size_t bytes, Stream& stream, const Capture* graph);
  std::byte* carve(Device& device, std::size_t bytes);
  void make_room(Device& device, std::size_t bytes);
  void collect(Device& device, bool wait);
  void put_back(Device& device, Block block);
  void fill(const Block& block, const std::string* name, bool declare) const;

  std::mutex lock_;
  std::array<Device, kDevices> devices_;
};

DeviceMemory& device_memory();

// Bytes that a tensor's elements lie in, from the first to the last.
Access bytes_of(const at::Tensor& tensor, bool write);

}  // namespace kvcache::testing::sim
