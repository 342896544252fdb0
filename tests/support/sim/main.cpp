// main() of test programs on simulated devices. KVCACHE_SIM_COPY_DELAY_US: copies between devices
// and host start late by up to so many microseconds, in tests that ask for nothing else.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>

#include "tests/support/sim/sim.h"

namespace kvcache::testing::sim {
namespace {

Config default_config() {
  const char* delay = std::getenv("KVCACHE_SIM_COPY_DELAY_US");
  return {.copy_delay = std::chrono::microseconds(delay != nullptr ? std::atoi(delay) : 0)};
}

// After each test: no races that it did not take, no errors that it did not see, no copy that was
// to go on by itself but could not, default behaviour.
class AfterEachTest final : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    try {
      synchronize();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "an error on a device that nobody saw: " << error.what();
    }
    for (const std::string& race : take_races()) ADD_FAILURE() << "race: " << race;
    EXPECT_EQ(counters().pageable_nonblocking, 0) << "copies from or to memory that is not pinned";
    configure(default_config());
  }
};

}  // namespace
}  // namespace kvcache::testing::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  kvcache::testing::sim::install();
  kvcache::testing::sim::configure(kvcache::testing::sim::default_config());
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new kvcache::testing::sim::AfterEachTest);  // GoogleTest deletes it
  const int result = RUN_ALL_TESTS();
  kvcache::testing::sim::shutdown();
  return result;
}
