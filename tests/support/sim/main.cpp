// main() of test programs on simulated devices.
#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "tests/support/sim/sim.h"

namespace kvcache::testing::sim {
namespace {

// After each test: no races that it did not take, no errors that it did not see, default behaviour.
class AfterEachTest final : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    try {
      synchronize();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "an error on a device that nobody saw: " << error.what();
    }
    for (const std::string& race : take_races()) ADD_FAILURE() << "race: " << race;
    configure({});
  }
};

}  // namespace
}  // namespace kvcache::testing::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  kvcache::testing::sim::install();
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new kvcache::testing::sim::AfterEachTest);  // GoogleTest deletes it
  const int result = RUN_ALL_TESTS();
  kvcache::testing::sim::shutdown();
  return result;
}
