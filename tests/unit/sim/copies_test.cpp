// Copies go on in the background where CUDA's do, and nowhere else.
#include <ATen/core/CachingHostAllocator.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/unit/sim/helpers.h"

namespace kvcache::testing::sim {
namespace {

using namespace std::chrono_literals;

// What the counters say of one copy.
struct Seen {
  bool waited, went_on, pageable;
  bool operator==(const Seen&) const = default;
};

void PrintTo(const Seen& seen, std::ostream* out) {
  *out << "waited " << seen.waited << ", went on " << seen.went_on << ", pageable "
       << seen.pageable;
}

constexpr Seen kWent{false, true, false}, kWaited{true, false, false};

Seen copy_counted(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  synchronize();
  reset_counters();
  to.copy_(from, non_blocking);
  const Counters c = counters();
  synchronize();
  EXPECT_EQ(c.host_to_device + c.device_to_host, 1);
  EXPECT_TRUE(at::equal(to.cpu(), from.cpu().to(to.scalar_type()))) << to << from;
  reset_counters();  // the caller judges what they said
  return {c.synchronizations > 0, c.async_copies > 0, c.pageable_nonblocking > 0};
}

at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
}

at::Tensor pinned_numbers(at::IntArrayRef sizes) { return pinned(sizes).copy_(numbers(sizes)); }

TEST(Copies, ToTheDevice) {
  const at::Tensor target = at::empty({3, 4}, device());
  EXPECT_EQ(copy_counted(target, pinned_numbers({3, 4}), true), kWent);
  EXPECT_EQ(copy_counted(target, pinned_numbers({3, 4}), false), kWaited);
  EXPECT_EQ(copy_counted(target, numbers({3, 4}), false), kWaited);
  // Staged before the call returns, which CUDA does not promise to be fast.
  EXPECT_EQ(copy_counted(target, numbers({3, 4}), true), (Seen{false, false, true}));
}

TEST(Copies, ToTheHost) {
  const at::Tensor source = numbers({3, 4}).to(device());
  EXPECT_EQ(copy_counted(pinned({3, 4}), source, true), kWent);
  EXPECT_EQ(copy_counted(pinned({3, 4}), source, false), kWaited);
  EXPECT_EQ(copy_counted(at::empty({3, 4}), source, true), (Seen{true, false, true}));
}

TEST(Copies, StridedDeviceSideAndDtypesGoThroughTheDevice) {
  const at::Tensor wide = at::zeros({3, 8}, device());
  EXPECT_EQ(copy_counted(wide.narrow(1, 2, 4), pinned_numbers({3, 4}), true), kWent);
  EXPECT_EQ(copy_counted(pinned({3, 4}), wide.narrow(1, 2, 4), true), kWent);
  const at::Tensor narrow = at::zeros({3, 4}, at::TensorOptions(device()).dtype(at::kBFloat16));
  EXPECT_EQ(copy_counted(narrow, pinned_numbers({3, 4}), true), kWent);
  EXPECT_EQ(copy_counted(pinned({3, 4}), narrow, true), kWent);
}

TEST(Copies, StridedHostSideIsSynchronousInSilence) {
  const at::Tensor wide = pinned_numbers({3, 8});
  const at::Tensor on_device = at::ones({3, 4}, device());
  EXPECT_EQ(copy_counted(on_device, wide.narrow(1, 2, 4), true), (Seen{false, false, true}));
  EXPECT_EQ(copy_counted(wide.narrow(1, 2, 4), on_device, true), (Seen{true, false, true}));
  // Dense in the same order on both sides is one transfer.
  EXPECT_EQ(copy_counted(at::empty({4, 3}, device()).t(), pinned_numbers({4, 3}).t(), true), kWent);
}

TEST(Copies, BroadcastTheSource) {
  const at::Tensor target = at::empty({2, 3}, device());
  target.copy_(at::tensor({1.0f, 2.0f, 3.0f}));
  EXPECT_TRUE(at::equal(target.cpu(), at::tensor({1.f, 2.f, 3.f, 1.f, 2.f, 3.f}).view({2, 3})));
  EXPECT_THROW(target.copy_(at::ones({4})), c10::Error);
}

TEST(Copies, PageableMemoryIsTheCallersAgain) {
  configure({.copy_delay = 5ms, .seed = 2});
  const at::Tensor source = at::ones({8}), target = at::zeros({8}, device());
  target.copy_(source, /*non_blocking=*/true);
  source.fill_(9);
  EXPECT_EQ(target.cpu().sum().item<float>(), 8);
  reset_counters();  // the copy could not go on by itself, and was meant so
}

TEST(Copies, PinnedMemoryMustWait) {
  configure({.copy_gbps = 1e-7});  // 0.3 s
  const at::Tensor source = at::ones({8}, device()), target = pinned({8}).zero_();
  synchronize();
  target.copy_(source, /*non_blocking=*/true);
  EXPECT_EQ(target.sum().item<float>(), 0);  // not there yet
  declare_host_access(target, HostAccess::read);
  const auto races = take_races();
  ASSERT_EQ(races.size(), 1u);
  EXPECT_EQ(races[0],
            "read by the host is not ordered after write by copy to host on stream 0 of sim:0");
  current_stream().synchronize();
  declare_host_access(target, HostAccess::read);
  EXPECT_EQ(target.sum().item<float>(), 8);
}

TEST(Copies, TakeTheTimeThatTheBandwidthSays) {
  configure({.copy_gbps = 0.1});
  const at::Tensor source = pinned({1 << 20}).zero_();  // 4 MiB: 42 ms
  const at::Tensor target = at::empty({1 << 20}, device());
  synchronize();
  const auto begin = std::chrono::steady_clock::now();
  target.copy_(source, /*non_blocking=*/true);
  synchronize();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 40ms);
  EXPECT_EQ(counters().bytes_host_to_device, 4 << 20);
}

TEST(Copies, BetweenDevicesAreOrderedOnBothSides) {
  configure({.kernel_delay = 3ms, .seed = 4});
  const at::Tensor a = at::ones({16}, device(0));
  at::Tensor b = at::zeros({16}, device(1));
  for (int i = 0; i < 5; ++i) {
    a.add_(b.to(device(0), /*non_blocking=*/true));
    b.copy_(a, /*non_blocking=*/true);
  }
  EXPECT_EQ(b.cpu()[0].item<float>(), 16);
}

TEST(PinnedMemory, IsCounted) {
  at::HostAllocator& memory = *at::getHostAllocator(c10::kPrivateUse1);
  const auto before = memory.get_stats().active_bytes.current;
  {
    const at::Tensor x = pinned({100});
    EXPECT_TRUE(x.is_pinned());
    EXPECT_TRUE(x.narrow(0, 50, 10).is_pinned());
    EXPECT_TRUE(at::ones({3}).pin_memory().is_pinned());
    EXPECT_FALSE(at::ones({3}).is_pinned());
    EXPECT_EQ(memory.get_stats().active_bytes.current - before, 400);
  }
  EXPECT_EQ(memory.get_stats().active_bytes.current, before);
}

TEST(PinnedMemory, LivesUntilItsCopiesAreDone) {
  configure({.copy_delay = 30ms, .seed = 6});
  const at::Tensor target = at::zeros({8}, device());
  target.copy_(pinned({8}).fill_(3), /*non_blocking=*/true);
  EXPECT_EQ(target.cpu().sum().item<float>(), 24);
}

}  // namespace
}  // namespace kvcache::testing::sim
