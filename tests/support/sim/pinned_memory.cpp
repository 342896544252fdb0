#include "tests/support/sim/pinned_memory.h"

#include <cstddef>
#include <iterator>
#include <new>

#include "tests/support/sim/runtime.h"

namespace kvcache::testing::sim {
namespace {

constexpr std::align_val_t kAlignment{64};

void release(void* memory) { pinned_memory().free(memory); }

}  // namespace

PinnedMemory& pinned_memory() {
  static auto& memory = *new PinnedMemory;  // outlives every tensor
  return memory;
}

c10::DataPtr PinnedMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release, c10::kCPU};
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  const std::lock_guard guard(lock_);
  live_.emplace(memory, bytes);
  stats_.active_requests.increase(1);
  stats_.active_bytes.increase(bytes);
  stats_.allocations.increase(1);
  stats_.allocated_bytes.increase(bytes);
  ++stats_.num_host_alloc;
  return {memory, memory, &release, c10::kCPU};
}

c10::DeleterFnPtr PinnedMemory::raw_deleter() const { return &release; }

void PinnedMemory::free(void* memory) {
  if (memory == nullptr) return;
  std::size_t bytes = 0;
  {
    const std::lock_guard guard(lock_);
    bytes = live_.extract(static_cast<const std::byte*>(memory)).mapped();
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(bytes);
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(bytes);
    ++stats_.num_host_free;
  }
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  Runtime::get().forget({first, first + bytes});
  ::operator delete(memory, kAlignment);
}

bool PinnedMemory::owns(const void* memory) {
  const auto* at = static_cast<const std::byte*>(memory);
  const std::lock_guard guard(lock_);
  const auto after = live_.upper_bound(at);
  if (after == live_.begin()) return false;
  const auto& [first, bytes] = *std::prev(after);
  return at < first + bytes;
}

bool PinnedMemory::record_event(void* memory, void*, c10::Stream) { return owns(memory); }

at::HostStats PinnedMemory::get_stats() {
  const std::lock_guard guard(lock_);
  return stats_;
}

void PinnedMemory::reset_accumulated_stats() {
  const std::lock_guard guard(lock_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                     &stats_.allocated_bytes}) {
    stat->reset_accumulated();
  }
}

void PinnedMemory::reset_peak_stats() {
  const std::lock_guard guard(lock_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                     &stats_.allocated_bytes}) {
    stat->reset_peak();
  }
}

}  // namespace kvcache::testing::sim
