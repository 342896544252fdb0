// What a step over a long packed history takes of memory: never a copy of it.

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/attention/mask.h"
#include "kvcache/cache/quantized_cache.h"

namespace kvcache {
namespace {

// Counts what tensors on the CPU take. Stays for the rest of the program, as they outlive it.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& installed() {
    static auto* allocator = [] {
      auto* made = new CountingAllocator;
      c10::SetCPUAllocator(made, /*priority=*/1);
      return made;
    }();
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    const std::int64_t now = live_ += size_of(data);
    if (now > peak_) peak_ = now;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // The most bytes that `call` holds at a time beyond those before it.
  template <typename Call>
  std::int64_t peak_of(const Call& call) {
    const std::int64_t before = live_;
    peak_ = before;
    call();
    return peak_ - before;
  }

 private:
  static std::int64_t size_of(void* data) {
    return data == nullptr ? 0 : static_cast<std::int64_t>(malloc_usable_size(data));
  }
  static void release(void* data) {
    installed().live_ -= size_of(data);
    c10::free_cpu(data);
  }

  std::atomic<std::int64_t> live_ = 0;
  std::int64_t peak_ = 0;
};

constexpr std::int64_t kHeads = 3, kQueryHeads = 9, kHeadDim = 64, kTokens = 16'384;
constexpr double kDense = 2.0 * kHeads * kHeadDim * kTokens * 4;  // bytes of a layer in float32

// Takes tokens in; with queries of theirs, as a model would, where `attends`.
void feed(Cache& cache, std::int64_t tokens, bool attends = true) {
  const at::Tensor keys = at::randn({1, kHeads, tokens, kHeadDim}), values = at::randn_like(keys);
  const at::Tensor query = at::randn({1, kQueryHeads, tokens, kHeadDim});
  Step step = cache.begin_step({.tokens = tokens, .batch = 1});
  const View view = step.append(0, keys, values);
  if (attends) {
    const std::int64_t seen = view.visible.length - tokens;
    attention(query, view, make_mask({.visible = view.visible, .seen = seen, .tokens = tokens}));
  }
  step.commit();
}

class PackedMemory : public ::testing::TestWithParam<QuantizedCacheConfig> {};

TEST_P(PackedMemory, StepsTakeLittleBesideTheDenseCache) {
  CountingAllocator& memory = CountingAllocator::installed();
  QuantizedCache cache({LayerSpec{}}, {.config = GetParam()});
  cache.reserve(kTokens + 4096);
  for (std::int64_t seen = 0; seen < kTokens; seen += 1024) feed(cache, 1024, /*attends=*/false);
  // A piece of a prompt goes through tile by tile.
  EXPECT_LT(static_cast<double>(memory.peak_of([&] { feed(cache, 64); })), 0.5 * kDense);
  double most = 0;
  for (int i = 0; i < 40; ++i) {
    most = std::max(most, static_cast<double>(memory.peak_of([&] { feed(cache, 1); })));
  }
  EXPECT_LT(most, 0.05 * kDense);
}

INSTANTIATE_TEST_SUITE_P(All, PackedMemory,
                         ::testing::Values(QuantizedCacheConfig{},
                                           QuantizedCacheConfig{.nbits = 2, .axis_key = -1},
                                           QuantizedCacheConfig{.backend = "fp8"}));

}  // namespace
}  // namespace kvcache
