// Host memory that copies may use while the host goes on.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <mutex>

namespace kvcache::testing::sim {

// Copies hold their host tensors, so memory is free once nobody has it.
class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool record_event(void* memory, void* context, c10::Stream stream) override;
  void empty_cache() override {}  // nothing is cached
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  void free(void* memory);
  bool owns(const void* memory);

 private:
  friend PinnedMemory& pinned_memory();
  PinnedMemory() = default;

  std::mutex lock_;
  std::map<const std::byte*, std::size_t> live_;  // bytes by first address
  at::HostStats stats_;
};

PinnedMemory& pinned_memory();

}  // namespace kvcache::testing::sim
