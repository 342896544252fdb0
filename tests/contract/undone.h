// What the tests of steps and operations that end early share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "tests/contract/subject.h"
#include "tests/support/sweep.h"

namespace kvcache::testing {

// Brings a cache to some state worth undoing to; an empty one now and then.
inline void prepare(Subject& subject) {
  const std::int64_t steps = subject.random.below(4);
  for (std::int64_t i = 0; i < steps; ++i) take_step(subject, subject.random_plan());
  if (subject.random.one_in(3)) crop(subject, subject.random.below(3));
  if (subject.random.one_in(3)) (void)subject.cache->fork();
  if (subject.random.one_in(8)) subject.cache->reserve(subject.random.below(8));
}

// What was undone never was: equal to `control` now and after a next step of both, and a cache that
// holds nothing takes another batch and dtype.
inline void expect_undone(Subject& subject, const Subject& control, const StepPlan& next) {
  subject.memory->fail_after(std::nullopt);
  ASSERT_EQ(difference(control.digest(), subject.digest()), "");
  EXPECT_EQ(subject.layers().layer_count(), control.layers().layer_count());
  if (control.model.rows.empty()) {
    EXPECT_EQ(subject.cache->allocated_bytes(), 0);
    Subject other = subject.clone();
    other.setting.dtype = at::kHalf;
    other.setting.batch += 1;
    take_step(other, other.plan(2));
  }
  Subject follower = control.clone();
  take_step(follower, next);
  take_step(subject, next);
  EXPECT_EQ(difference(follower.digest(), subject.digest()), "");
}

// Checks what is undone from many states.
class UndoneTest : public ::testing::TestWithParam<Setting> {
 protected:
  template <typename Check>
  void sweep(std::int64_t sample, const Check& check) {
    for (std::int64_t seed = 0; seed < sweep_count(sample, 20 * sample); ++seed) {
      SCOPED_TRACE(c10::str("seed ", seed));
      Subject subject(GetParam(), 1000 + std::uint64_t(seed));
      prepare(subject);
      const StepPlan plan = subject.random_plan();
      const StepPlan next = subject.random_plan();
      if (!subject.model.fits(plan.tokens())) {
        take_step(subject, plan);  // is refused at once
        continue;
      }
      check(subject, plan, next);
      if (HasFailure()) return;
    }
  }
};

}  // namespace kvcache::testing
