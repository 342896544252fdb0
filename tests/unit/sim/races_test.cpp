// The check finds each wait that is missing, whatever the timing, and nothing in code that waits.
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/sim/helpers.h"

namespace kvcache::testing::sim {
namespace {

// Waits of the pattern "fill on the side, use on the main stream, save on the side, free".
struct Waits {
  bool before_fill = true;  // the side stream for what the main stream did with the memory
  bool after_fill = true;   // the main stream for the fill
  bool before_save = true;  // the side stream for the main stream's update
  bool before_free = true;  // the main stream for the save
};

void round_trip(const Waits& waits) {
  const c10::Stream main = current_stream(), side = side_stream();
  const at::Tensor host = pinned({64}).fill_(1), saved = pinned({64});
  {
    const at::Tensor layer = at::empty({64}, device());  // of the main stream
    if (waits.before_fill) wait_for(side, main);
    {
      const c10::StreamGuard guard(side);
      layer.copy_(host, /*non_blocking=*/true);
    }
    if (waits.after_fill) wait_for(main, side);
    layer.add_(1);
    if (waits.before_save) wait_for(side, main);
    {
      const c10::StreamGuard guard(side);
      saved.copy_(layer, /*non_blocking=*/true);
    }
    if (waits.before_free) wait_for(main, side);
  }
  synchronize();
  declare_host_access(saved, HostAccess::read);
}

std::string first_race() {
  const std::vector<std::string> races = take_races();
  return races.empty() ? "" : races[0];
}

TEST(Races, NoneWhereEverythingWaits) {
  for (int i = 0; i < 5; ++i) round_trip({});
  EXPECT_EQ(first_race(), "");
}

TEST(Races, EveryMissingWaitIsFound) {
  for (int i = 0; i < 5; ++i) {
    round_trip({.before_fill = false});
    EXPECT_THAT(
        first_race(),
        ::testing::MatchesRegex("write by copy to device on stream [0-9]+ of sim:0 is not ordered "
                                "after write by allocation on stream 0 of sim:0"));
    round_trip({.after_fill = false});
    EXPECT_THAT(first_race(), ::testing::MatchesRegex(
                                  "read by aten::add.* on stream 0 of sim:0 is not ordered after "
                                  "write by copy to device on stream [0-9]+ of sim:0"));
    round_trip({.before_save = false});
    EXPECT_THAT(first_race(), ::testing::MatchesRegex(
                                  "read by copy to host on stream [0-9]+ of sim:0 is not ordered "
                                  "after write by aten::add.* on stream 0 of sim:0"));
    round_trip({.before_free = false});
    EXPECT_THAT(first_race(), ::testing::MatchesRegex(
                                  "write by free on stream 0 of sim:0 is not ordered after read by "
                                  "copy to host on stream [0-9]+ of sim:0"));
  }
}

TEST(Races, RecordStreamKeepsMemoryForTheOtherStream) {
  const c10::Stream side = side_stream();
  const auto use = [&](bool record) {
    const at::Tensor target = at::zeros({8}, device());
    at::Tensor source;
    {
      const c10::StreamGuard guard(side);
      source = at::ones({8}, device());
    }
    wait_for(current_stream(), side);
    target.add_(source);
    if (record) source.record_stream(current_stream());
    source.reset();
    return target.cpu().sum().item<float>();
  };
  EXPECT_EQ(use(true), 8);
  EXPECT_EQ(first_race(), "");
  use(false);  // gives anything
  EXPECT_NE(first_race(), "");
}

TEST(Races, HostSynchronisationOrdersWhatFollows) {
  const c10::Stream side = side_stream();
  const at::Tensor x = at::zeros({8}, device());
  current_stream().synchronize();
  {
    const c10::StreamGuard guard(side);
    x.add_(1);
  }
  c10::Event done(c10::kPrivateUse1);
  done.record(side);
  done.synchronize();
  x.add_(1);
  EXPECT_EQ(x.cpu()[0].item<float>(), 2);
  EXPECT_EQ(first_race(), "");
}

TEST(Races, ReadersDoNotConflictAndDifferentBytesNeither) {
  const c10::Stream side = side_stream();
  const at::Tensor x = at::ones({8}, device());
  current_stream().synchronize();
  const auto on_side = [&](const auto& work) {
    const c10::StreamGuard guard(side);
    work();
  };
  at::Tensor a, b;
  on_side([&] { a = x + 1; });
  b = x + 1;
  EXPECT_EQ(first_race(), "");
  on_side([&] { a.narrow(0, 0, 4).add_(1); });
  wait_for(current_stream(), side);
  on_side([&] { a.narrow(0, 0, 4).add_(1); });
  a.narrow(0, 4, 4).add_(1);
  EXPECT_EQ(first_race(), "");
  a.add_(1);
  EXPECT_NE(first_race(), "");
  synchronize();
}

TEST(Races, PinnedMemoryCounts) {
  const c10::Stream side = side_stream();
  const at::Tensor host = pinned({8}).zero_(), x = at::ones({8}, device());
  const at::Tensor y = at::empty({8}, device());
  wait_for(side, current_stream());
  host.copy_(x, /*non_blocking=*/true);
  {
    const c10::StreamGuard guard(side);
    y.copy_(host, /*non_blocking=*/true);
  }
  EXPECT_THAT(first_race(), ::testing::MatchesRegex(
                                "read by copy to device on stream [0-9]+ of sim:0 is not ordered "
                                "after write by copy to host on stream 0 of sim:0"));
  synchronize();
}

TEST(Races, CanBeSwitchedOff) {
  configure({.detect_races = false});
  round_trip({.after_fill = false});
  EXPECT_EQ(first_race(), "");
}

}  // namespace
}  // namespace kvcache::testing::sim
