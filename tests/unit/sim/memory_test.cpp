// The devices' memory: what is counted, limited, reused and poisoned.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/unit/sim/helpers.h"

namespace kvcache::testing::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kMiB = 1 << 20;

c10::DeviceAllocator& memory() { return *c10::getDeviceAllocator(c10::kPrivateUse1); }

std::int64_t active(c10::DeviceIndex index = 0) {
  return memory().getDeviceStats(index).active_bytes[0].current;
}

std::int64_t peak(c10::DeviceIndex index = 0) {
  return memory().getDeviceStats(index).active_bytes[0].peak;
}

at::Tensor bytes(std::int64_t count, c10::DeviceIndex index = 0) {
  return at::empty({count}, at::TensorOptions(device(index)).dtype(at::kByte));
}

TEST(Memory, ActiveBytesAndTheirPeakAreExact) {
  const std::int64_t before = active(), other = active(1);
  memory().resetPeakStats(0);
  {
    const at::Tensor a = bytes(3 * kMiB);
    EXPECT_EQ(active() - before, 3 * kMiB);
    { const at::Tensor b = bytes(2 * kMiB); }
    const at::Tensor c = bytes(kMiB);
    EXPECT_EQ(active() - before, 4 * kMiB);
  }
  EXPECT_EQ(active(), before);
  EXPECT_EQ(peak() - before, 5 * kMiB);
  EXPECT_EQ(active(1), other);
  const at::Tensor small = bytes(1);  // in blocks of 512, as on CUDA
  EXPECT_EQ(active() - before, 512);
  const auto requested = memory().getDeviceStats(0).requested_bytes[0].current;
  EXPECT_GE(requested, 1);
}

TEST(Memory, FreedBlocksAreReusedByTheirStreamOnly) {
  const void* first = nullptr;
  {
    const at::Tensor a = bytes(7 * 512);
    first = a.const_data_ptr();
  }
  {
    const c10::StreamGuard guard(side_stream());
    EXPECT_NE(bytes(7 * 512).const_data_ptr(), first);
  }
  EXPECT_EQ(bytes(7 * 512).const_data_ptr(), first);
}

TEST(Memory, BlocksOfOtherStreamsWaitForTheirEvents) {
  const std::int64_t before = active();
  const c10::Stream side = side_stream();
  configure({.kernel_delay = 300ms, .seed = 3});
  at::Tensor a = at::zeros({kMiB}, at::TensorOptions(device()).dtype(at::kByte));
  wait_for(side, current_stream());
  {
    const c10::StreamGuard guard(side);
    a.add_(1);
  }
  a.record_stream(side);
  a.reset();
  EXPECT_EQ(active() - before, kMiB);  // the side stream is not done
  synchronize();
  EXPECT_EQ(active(), before);
}

TEST(Memory, LimitThrowsOutOfMemory) {
  const std::int64_t before = active();
  configure({.memory_limit = before + 4 * kMiB});
  at::Tensor a = bytes(3 * kMiB);
  EXPECT_THROW(bytes(2 * kMiB), c10::OutOfMemoryError);
  EXPECT_EQ(active() - before, 3 * kMiB);
  EXPECT_EQ(memory().getMemoryInfo(0).first, std::size_t(kMiB));
  const at::Tensor elsewhere = bytes(2 * kMiB, 1);
  a.reset();
  EXPECT_EQ(bytes(4 * kMiB).numel(), 4 * kMiB);
}

TEST(Memory, LimitWaitsForBlocksInUseElsewhere) {
  const std::int64_t before = active();
  const c10::Stream side = side_stream();
  configure({.kernel_delay = 20ms, .seed = 9, .memory_limit = before + 4 * kMiB});
  at::Tensor a = bytes(3 * kMiB);
  wait_for(side, current_stream());
  {
    const c10::StreamGuard guard(side);
    a.zero_();
  }
  a.record_stream(side);
  a.reset();
  EXPECT_NO_THROW(bytes(3 * kMiB));
  EXPECT_GE(memory().getDeviceStats(0).num_alloc_retries, 1);
}

TEST(Memory, FreshAndFreedMemoryIsPoisoned) {
  const at::Tensor fresh = at::empty({5}, device());
  EXPECT_TRUE(fresh.cpu().isnan().all().item<bool>());
  at::Tensor x = at::ones({700}, device());
  const at::Tensor view = at::from_blob(x.mutable_data_ptr(), {700}, x.options());  // no owner
  x.reset();
  EXPECT_TRUE(view.cpu().isnan().all().item<bool>());
}

TEST(Memory, EmptyCacheGivesAddressesBack) {
  { const at::Tensor a = bytes(11 * kMiB); }
  EXPECT_GE(memory().getDeviceStats(0).reserved_bytes[0].current, 11 * kMiB);
  memory().emptyCache();
  EXPECT_EQ(memory().getDeviceStats(0).reserved_bytes[0].current, active());
  const at::Tensor whole = bytes(std::int64_t{1} << 20);
  EXPECT_EQ(whole.numel(), 1 << 20);
}

// Pages, which the system takes back whole, are larger than what is allocated.
TEST(Memory, EmptyCacheLeavesWhatIsHeld) {
  memory().emptyCache();
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 64; ++i) tensors.push_back(at::full({100}, i, device()));
  for (std::size_t i = 0; i < tensors.size(); i += 2) tensors[i].reset();
  memory().emptyCache();
  for (std::size_t i = 1; i < tensors.size(); i += 2) {
    EXPECT_TRUE(tensors[i].cpu().eq(static_cast<std::int64_t>(i)).all().item<bool>()) << i;
  }
}

TEST(Memory, EmptyTensorsHoldNothing) {
  const std::int64_t before = active();
  const at::Tensor none = at::empty({0, 3}, device());
  EXPECT_EQ(active(), before);
  EXPECT_EQ(none.cpu().numel(), 0);
  EXPECT_EQ(at::cat({none, at::ones({1, 3}, device())}).size(0), 1);
}

}  // namespace
}  // namespace kvcache::testing::sim
