// Streams and events.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/unit/sim/helpers.h"

namespace kvcache::testing::sim {
namespace {

using namespace std::chrono_literals;

TEST(Streams, HostGoesOnWhileKernelsRun) {
  configure({.kernel_delay = 100ms, .seed = 3});
  const at::Tensor x = at::zeros({4}, device());
  const c10::Stream stream = current_stream();
  for (int i = 0; i < 5; ++i) x.add_(1);
  EXPECT_FALSE(stream.query());
  stream.synchronize();
  EXPECT_TRUE(stream.query());
  EXPECT_EQ(counters().synchronous_ops, 0);
  EXPECT_EQ(x.cpu().sum().item<float>(), 20);
}

TEST(Streams, PoolGivesDifferentStreams) {
  const c10::Stream a = side_stream(), b = side_stream();
  EXPECT_NE(a, b);
  EXPECT_NE(a, current_stream());
  EXPECT_EQ(a.device(), device());
  {
    const c10::StreamGuard guard(a);
    EXPECT_EQ(current_stream(), a);
    EXPECT_EQ(at::empty({1}, device()).device(), device());
  }
  EXPECT_EQ(current_stream().id(), 0);
}

TEST(Streams, EventsOrderStreams) {
  configure({.kernel_delay = 2ms, .seed = 5});
  const at::Tensor x = at::zeros({8}, device());
  const c10::Stream side = side_stream();
  for (int round = 0; round < 5; ++round) {
    x.add_(1);
    wait_for(side, current_stream());
    {
      const c10::StreamGuard guard(side);
      x.mul_(2);
    }
    wait_for(current_stream(), side);
  }
  EXPECT_EQ(x.cpu()[0].item<float>(), 62);
}

TEST(Streams, RecordingAgainLeavesEarlierWaitsAlone) {
  const c10::Stream first = side_stream(), second = side_stream();
  const at::Tensor x = at::zeros({2}, device());
  synchronize();
  const auto add_one = [&](const c10::Stream& stream) {
    const c10::StreamGuard guard(stream);
    x.add_(1);
  };
  c10::Event event(c10::kPrivateUse1);
  event.record(first);
  event.block(second);
  add_one(first);
  event.record(first);
  add_one(second);  // has waited for what the event stood for at block(), which was nothing
  EXPECT_FALSE(take_races().empty());
  synchronize();
  add_one(first);
  event.record(first);
  event.block(second);
  add_one(second);
  EXPECT_TRUE(take_races().empty());
  event.synchronize();
  EXPECT_TRUE(event.query());
  synchronize();
}

TEST(Streams, EventsTellTime) {
  c10::Event begin(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(current_stream());
  const at::Tensor x = at::ones({4}, device());
  end.record(current_stream());
  end.synchronize();
  EXPECT_GE(begin.elapsedTime(end), 0);
  c10::Event never(c10::kPrivateUse1);
  never.block(current_stream());  // waits for nothing
  EXPECT_TRUE(never.query());
}

TEST(Streams, KernelsStartLate) {
  configure({.kernel_delay = 10ms, .seed = 11});
  const at::Tensor x = at::zeros({2}, device());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) x.add_(1);
  synchronize();
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 10ms);  // some 50 ms
}

TEST(Streams, ErrorsSurfaceAtTheNextSynchronisation) {
  const at::Tensor x = at::arange(4, device());
  const at::Tensor outside = at::full({1}, 9, at::TensorOptions(device()).dtype(at::kLong));
  const at::Tensor picked = x.index_select(0, outside);  // queued
  EXPECT_ANY_THROW(current_stream().synchronize());
  EXPECT_NO_THROW(current_stream().synchronize());
  EXPECT_EQ(x.cpu()[3].item<std::int64_t>(), 3);
}

TEST(Streams, DevicesAreTwo) {
  EXPECT_EQ(c10::impl::VirtualGuardImpl(c10::kPrivateUse1).deviceCount(), 2);
  const at::Tensor a = at::full({3}, 2.0f, device(0)), b = at::full({3}, 3.0f, device(1));
  EXPECT_EQ(a.device(), at::Device("sim:0"));
  EXPECT_EQ(b.device(), at::Device("privateuseone:1"));
  EXPECT_THROW(a.add(b), c10::Error);
  EXPECT_THROW(a.add(at::ones({3})), c10::Error);
  EXPECT_EQ(a.add(at::scalar_tensor(5)).cpu()[0].item<float>(), 7);  // a number may come along
  const at::Tensor moved = a.to(device(1)).add_(b);
  EXPECT_EQ(moved.cpu().sum().item<float>(), 15);
  const c10::DeviceGuard guard(device(1));
  EXPECT_EQ(at::empty({1}, c10::kPrivateUse1).device().index(), 1);
  EXPECT_THROW(at::empty({1}, at::Device(c10::kPrivateUse1, 2)), c10::Error);
}

TEST(StreamsDeathTest, HostMayNotReadDeviceMemory) {
  const at::Tensor x = at::ones({1}, device());
  synchronize();
  const auto* memory = static_cast<const volatile char*>(x.const_data_ptr());
  EXPECT_DEATH((void)*memory, "");
}

}  // namespace
}  // namespace kvcache::testing::sim
