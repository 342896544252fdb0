// update() joins what a layer hands over; where there is no memory for that, nothing was taken in.

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <memory>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/counting.h"

namespace kvcache {
namespace {

using testing::counting;
using testing::feed;
using testing::numbers;

// While it lives, LibTorch's allocator refuses more than `most` bytes at once.
class SmallAllocations final : public c10::Allocator {
 public:
  explicit SmallAllocations(std::size_t most) : most_(most), former_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this);
  }
  ~SmallAllocations() override { c10::SetCPUAllocator(former_); }

  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= most_, bytes, " bytes were refused by the test");
    return former_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    former_->copy_data(to, from, bytes);
  }

 private:
  std::size_t most_;
  c10::Allocator* former_;
};

TEST(UpdateMemory, WithoutRoomToJoinNothingIsTakenIn) {
  DynamicCache cache(std::vector<LayerSpec>(1));
  feed(cache, 100);
  const std::unique_ptr<Cache> fork = cache.fork();
  const at::Tensor next = counting(100, 1, {1, 1, 1});
  {
    const SmallAllocations most(256);  // a tail of 16 tokens, not 101 of them joined
    EXPECT_THROW(fork->update(next, next, 0), c10::OutOfMemoryError);
    EXPECT_EQ(fork->get_seq_length(), 100);
    EXPECT_EQ(fork->history().seen(), 100);
    EXPECT_EQ(fork->append(next, next, 0).segments.size(), 2U);
    fork->crop(-1);
  }
  const KeyValue all = fork->update(next, next, 0);
  EXPECT_EQ(all.keys.size(2), 101);
  EXPECT_EQ(numbers(all.keys).back(), 100);
}

}  // namespace
}  // namespace kvcache
