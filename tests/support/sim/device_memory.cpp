#include "tests/support/sim/device_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

namespace kvcache::testing::sim {
namespace {

constexpr std::size_t kGranule = 512;

std::byte* map_range(int protection) {
  void* range =
      mmap(nullptr, kDeviceBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(range != MAP_FAILED, "no address range of ", kDeviceBytes, " bytes for a device");
  return static_cast<std::byte*>(range);
}

void release(void* memory) { device_memory().free(memory); }

Access whole(const std::byte* first, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  return {address, address + bytes, /*write=*/true};
}

// Gives the pages that lie whole within so many bytes back to the system.
void return_pages(void* first, std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::size_t left = bytes;
  if (std::align(page, page, first, left) == nullptr) return;  // there is none
  madvise(first, left / page * page, MADV_DONTNEED);
}

}  // namespace

DeviceMemory& device_memory() {
  static auto& memory = *new DeviceMemory;  // outlives every tensor
  return memory;
}

DeviceMemory::DeviceMemory() {
  for (Device& device : devices_) {
    device.visible = map_range(PROT_NONE);
    device.hidden = map_range(PROT_READ | PROT_WRITE);
    device.spare[0] = kDeviceBytes;
  }
}

c10::DataPtr DeviceMemory::allocate(std::size_t bytes) {
  const c10::DeviceIndex index = current_device();
  if (bytes == 0) return {nullptr, nullptr, &release, sim::device(index)};
  Stream& stream = Runtime::get().current_stream(index);
  const std::shared_ptr<Capture> capture = Runtime::get().capture_of(stream);
  const std::size_t rounded = (bytes + kGranule - 1) / kGranule * kGranule;

  const std::lock_guard guard(lock_);
  Device& device = at(index);
  Block block = take(device, rounded, stream, capture.get());
  block.requested = bytes;
  device.stats.allocation[0].increase(1);
  device.stats.active[0].increase(1);
  device.stats.allocated_bytes[0].increase(rounded);
  device.stats.active_bytes[0].increase(rounded);
  device.stats.requested_bytes[0].increase(bytes);
  static const std::string* const name = intern("allocation");
  fill(block, name, /*declare=*/true);
  void* first = block.first;
  device.live.emplace(first, std::move(block));
  return {first, first, &release, sim::device(index)};
}

c10::DeleterFnPtr DeviceMemory::raw_deleter() const { return &release; }

void DeviceMemory::copy_data(void*, const void*, std::size_t) const {
  TORCH_CHECK(false, "the host cannot copy a simulated device's memory");
}

DeviceMemory::Block DeviceMemory::take(Device& device, std::size_t bytes, Stream& stream,
                                       const Capture* graph) {
  collect(device, /*wait=*/false);
  make_room(device, bytes);
  const auto [first, end] = device.cached.equal_range(bytes);
  const auto fits = std::find_if(first, end, [&](const auto& entry) {
    return entry.second.stream == &stream && entry.second.graph == graph;
  });
  if (fits != end) {
    Block block = std::move(fits->second);
    device.cached.erase(fits);
    return block;
  }
  device.stats.segment[0].increase(1);
  device.stats.reserved_bytes[0].increase(bytes);
  ++device.stats.num_device_alloc;
  return {.first = carve(device, bytes), .bytes = bytes, .stream = &stream, .graph = graph};
}

// Throws OutOfMemoryError unless `bytes` more may be active.
void DeviceMemory::make_room(Device& device, std::size_t bytes) {
  const std::int64_t limit = Runtime::get().config().memory_limit;
  const std::int64_t most = limit > 0 ? limit : std::int64_t(kDeviceBytes);
  const auto& active = device.stats.active_bytes[0];
  if (active.current + std::int64_t(bytes) <= most) return;
  if (!device.waiting.empty()) {
    ++device.stats.num_alloc_retries;
    collect(device, /*wait=*/true);
    if (active.current + std::int64_t(bytes) <= most) return;
  }
  ++device.stats.num_ooms;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "simulated device out of memory: tried to allocate ",
                   bytes, " bytes; ", active.current, " of ", most, " are in use");
}

std::byte* DeviceMemory::carve(Device& device, std::size_t bytes) {
  const auto fits = std::find_if(device.spare.begin(), device.spare.end(),
                                 [&](const auto& range) { return range.second >= bytes; });
  TORCH_CHECK_WITH(OutOfMemoryError, fits != device.spare.end(),
                   "the simulated device's addresses are used up; call emptyCache()");
  const auto [offset, size] = *fits;
  device.spare.erase(fits);
  if (size > bytes) device.spare[offset + bytes] = size - bytes;
  return device.visible + offset;
}

void DeviceMemory::free(void* memory) {
  if (memory == nullptr) return;
  Runtime& runtime = Runtime::get();
  const std::lock_guard guard(lock_);
  Device& device = at(device_of(memory));
  auto node = device.live.extract(memory);
  TORCH_INTERNAL_ASSERT(!node.empty(), "freed what was not allocated");
  Block block = std::move(node.mapped());
  device.stats.allocation[0].decrease(1);
  device.stats.allocated_bytes[0].decrease(block.bytes);
  device.stats.requested_bytes[0].decrease(block.requested);
  std::vector<EventPtr> events;
  for (Stream* stream : block.used_on) events.push_back(runtime.record(*stream));
  block.used_on.clear();
  // A graph's replays go on using its blocks, in an order that the graph fixes.
  if (block.graph == nullptr) {
    runtime.note_free(whole(block.first, block.bytes), *block.stream, events);
  }
  if (events.empty()) {
    put_back(device, std::move(block));
  } else {
    device.waiting.push_back({std::move(block), std::move(events)});
  }
}

void DeviceMemory::put_back(Device& device, Block block) {
  device.stats.active[0].decrease(1);
  device.stats.active_bytes[0].decrease(block.bytes);
  static const std::string* const name = intern("free");
  if (block.graph == nullptr) fill(block, name, /*declare=*/false);
  device.cached.emplace(block.bytes, std::move(block));
}

void DeviceMemory::collect(Device& device, bool wait) {
  std::vector<Waiting> still;
  for (Waiting& entry : std::exchange(device.waiting, {})) {
    if (wait) {
      for (const EventPtr& event : entry.events) event->wait();
    }
    const bool done = std::all_of(entry.events.begin(), entry.events.end(),
                                  [](const EventPtr& event) { return event->is_set(); });
    if (done) {
      put_back(device, std::move(entry.block));
    } else {
      still.push_back(std::move(entry));
    }
  }
  device.waiting = std::move(still);
}

// Fills the block with 0xFF on its stream. `declare`: as a write that others must be ordered after.
void DeviceMemory::fill(const Block& block, const std::string* name, bool declare) const {
  Runtime& runtime = Runtime::get();
  if (runtime.is_down()) return;
  auto task = std::make_shared<Task>(Task{.name = name, .kind = Task::Kind::memory});
  if (declare) task->accesses.push_back(whole(block.first, block.bytes));
  if (runtime.config().poison) {
    task->run = [at = kernel_address(block.first), bytes = block.bytes] {
      std::memset(at, 0xFF, bytes);
    };
  } else if (!declare) {
    return;
  }
  if (block.graph != nullptr) {
    runtime.launch(*block.stream, std::move(task));
  } else {
    runtime.launch_uncaptured(*block.stream, std::move(task));
  }
}

void DeviceMemory::release_graph(const Capture* graph) {
  const std::lock_guard guard(lock_);
  for (Device& device : devices_) {
    for (auto& [memory, block] : device.live) {
      if (block.graph == graph) block.graph = nullptr;
    }
    for (auto& [bytes, block] : device.cached) {
      if (block.graph != graph) continue;
      block.graph = nullptr;
      Runtime::get().note_free(whole(block.first, block.bytes), *block.stream, {});
    }
    for (Waiting& entry : device.waiting) {
      if (entry.block.graph == graph) entry.block.graph = nullptr;
    }
  }
}

void DeviceMemory::emptyCache(c10::MempoolId_t) {
  for (c10::DeviceIndex index = 0; index < kDevices; ++index) {
    Runtime::get().synchronize_device(index);
    const std::lock_guard guard(lock_);
    Device& device = at(index);
    collect(device, /*wait=*/true);
  }
  for (c10::DeviceIndex index = 0; index < kDevices; ++index) {
    Runtime::get().synchronize_device(index);  // the fills of what was just collected
    const std::lock_guard guard(lock_);
    Device& device = at(index);
    for (auto entry = device.cached.begin(); entry != device.cached.end();) {
      const Block& block = entry->second;
      if (block.graph != nullptr) {
        ++entry;
        continue;
      }
      return_pages(kernel_address(block.first), block.bytes);
      Runtime::get().forget(whole(block.first, block.bytes));
      device.spare[std::size_t(block.first - device.visible)] = block.bytes;
      device.stats.segment[0].decrease(1);
      device.stats.reserved_bytes[0].decrease(block.bytes);
      ++device.stats.num_device_free;
      entry = device.cached.erase(entry);
    }
    for (auto range = device.spare.begin(); std::next(range) != device.spare.end();) {
      const auto next = std::next(range);
      if (range->first + range->second == next->first) {
        range->second += next->second;
        device.spare.erase(next);
      } else {
        range = next;
      }
    }
  }
}

void DeviceMemory::recordStream(const c10::DataPtr& memory, c10::Stream stream) {
  if (!memory) return;
  Stream* on = &Runtime::get().stream(stream);
  const std::lock_guard guard(lock_);
  auto& live = at(device_of(memory.get())).live;
  const auto found = live.find(memory.get());
  if (found == live.end() || found->second.stream == on) return;
  auto& used_on = found->second.used_on;
  if (std::find(used_on.begin(), used_on.end(), on) == used_on.end()) used_on.push_back(on);
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex device) {
  const std::lock_guard guard(lock_);
  collect(at(device), /*wait=*/false);
  return at(device).stats;
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex device) {
  const std::lock_guard guard(lock_);
  auto& stats = at(device).stats;
  for (auto* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes,
                     &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    (*stat)[0].reset_accumulated();
  }
  stats.num_alloc_retries = stats.num_ooms = stats.num_device_alloc = stats.num_device_free = 0;
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex device) {
  const std::lock_guard guard(lock_);
  auto& stats = at(device).stats;
  collect(at(device), /*wait=*/false);
  for (auto* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes,
                     &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    (*stat)[0].reset_peak();
  }
}

std::pair<std::size_t, std::size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex device) {
  const std::int64_t limit = Runtime::get().config().memory_limit;
  const std::size_t total = limit > 0 ? std::size_t(limit) : kDeviceBytes;
  const std::lock_guard guard(lock_);
  const auto active = std::size_t(at(device).stats.active_bytes[0].current);
  return {total - std::min(active, total), total};
}

void* DeviceMemory::kernel_address(const void* memory) const {
  const Device& device = devices_[std::size_t(device_of(memory))];
  return device.hidden + (static_cast<const std::byte*>(memory) - device.visible);
}

c10::DeviceIndex DeviceMemory::device_of(const void* memory) const {
  const auto* at = static_cast<const std::byte*>(memory);
  for (c10::DeviceIndex index = 0; index < kDevices; ++index) {
    const std::byte* first = devices_[std::size_t(index)].visible;
    if (at >= first && at < first + kDeviceBytes) return index;
  }
  TORCH_CHECK(false, "not an address of a simulated device");
}

Access bytes_of(const at::Tensor& tensor, bool write) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto first = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return {first, first + std::uintptr_t(last + 1) * tensor.element_size(), write};
}

}  // namespace kvcache::testing::sim
