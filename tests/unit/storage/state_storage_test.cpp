// The bytes of states: what a step is handed, what stays, and when memory is asked for.

#include "kvcache/storage/state_storage.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/support/failing_memory.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::from_to;
using Numbers = std::vector<std::int64_t>;

// What a storage promises, oldest first.
template <typename State>
Numbers held(State& state) {
  struct Read final : Visitor {
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      if (!tensor.defined()) return;
      const std::int64_t slots = tensor.size(*info.token_dim);
      for (std::int64_t slot = info.live.first; slot < info.live.end; ++slot) {
        const at::Tensor one = tensor.select(*info.token_dim, slot % slots);
        numbers.push_back(one.flatten()[-1].template item<std::int64_t>());
      }
    }
    void count(std::string_view, std::int64_t&) override {}
    Numbers numbers;
  };
  Read read;
  state.visit("state", /*recorded=*/0, read);
  return read.numbers;
}

class States : public ::testing::Test {
 protected:
  // Inputs first, first + 1, ..: two rows of three channels.
  static at::Tensor inputs(std::int64_t first, std::int64_t tokens) {
    return at::arange(first, first + tokens).to(at::kFloat).expand({2, 3, tokens}).contiguous();
  }

  static at::Tensor states(std::int64_t first, std::int64_t count) {
    return inputs(first, count).permute({2, 0, 1}).contiguous();
  }

  std::shared_ptr<testing::FailingMemory> memory_ = std::make_shared<testing::FailingMemory>();
  ConvolutionStorage convolution_{memory_};
  RecurrentStorage recurrence_{memory_};
};

TEST_F(States, AConvolutionReadsZerosThenItsContext) {
  EXPECT_TRUE(at::equal(convolution_.stage(inputs(1, 2), 4, 0),
                        at::cat({at::zeros({2, 3, 3}), inputs(1, 2)}, 2)));
  convolution_.publish();
  EXPECT_EQ(held(convolution_), (Numbers{0, 1, 2}));
  for (std::int64_t next = 3; next < 40; ++next) {
    EXPECT_TRUE(
        at::equal(convolution_.stage(inputs(next, 1), 4, 0).narrow(2, 1, 3), inputs(next - 2, 3)));
    convolution_.publish();
    EXPECT_EQ(held(convolution_), from_to(next - 2, next));
  }
  EXPECT_EQ(memory_->allocations(), 1);
}

TEST_F(States, AOneTapConvolutionNeedsNoContext) {
  for (std::int64_t next = 0; next < 9; ++next) {
    EXPECT_TRUE(at::equal(convolution_.stage(inputs(next, 1), 1, 0), inputs(next, 1)));
    convolution_.publish();
    EXPECT_TRUE(convolution_.holds());
    EXPECT_EQ(held(convolution_), Numbers{});
  }
}

// Steps of every length over a record of 5, each first staged and let go.
TEST_F(States, WhatIsDiscardedLeavesNoTrace) {
  std::int64_t seen = 0, recorded = 0;
  for (const std::int64_t tokens : {1, 1, 3, 1, 7, 2, 2, 2, 30, 1, 1, 1, 1, 1, 4, 6, 5}) {
    const Numbers inputs_before = held(convolution_), states_before = held(recurrence_);
    const std::int64_t after = std::min<std::int64_t>(recorded + tokens, 5);
    const std::int64_t wanted = std::min<std::int64_t>(tokens, 6);
    for (const bool published : {false, true}) {
      const at::Tensor joined = convolution_.stage(inputs(seen + 1, tokens), 3, after);
      EXPECT_TRUE(at::equal(joined.narrow(2, 2, tokens), inputs(seen + 1, tokens)));
      const std::int64_t before = std::min<std::int64_t>(seen, 2);
      EXPECT_TRUE(
          at::equal(joined.narrow(2, 2 - before, before), inputs(seen - before + 1, before)));
      const at::Tensor last = recurrence_.stage(states(seen + 1 + tokens - wanted, wanted), 6);
      EXPECT_TRUE(at::equal(last, states(seen + tokens, 1)[0]));
      EXPECT_EQ(held(convolution_), inputs_before);
      EXPECT_EQ(held(recurrence_), states_before);
      if (published) break;
      convolution_.discard();
      recurrence_.discard();
    }
    convolution_.publish();
    recurrence_.publish();
    seen += tokens;
    recorded = after;
    const Numbers all = held(convolution_);
    EXPECT_EQ(std::int64_t(all.size()), 2 + recorded);
    EXPECT_EQ(all.back(), seen);
    EXPECT_EQ(held(recurrence_), from_to(std::max<std::int64_t>(seen - 5, 1), seen));
  }
}

TEST_F(States, ARecordThatIsFullAsksForNoMoreMemory) {
  std::int64_t seen = 0, recorded = 0;
  const auto feed = [&](std::int64_t tokens) {
    recorded = std::min<std::int64_t>(recorded + tokens, 5);
    convolution_.stage(inputs(seen + 1, tokens), 3, recorded);
    recurrence_.stage(states(seen + 1, tokens), 6);
    convolution_.publish();
    recurrence_.publish();
    seen += tokens;
  };
  for (int i = 0; i < 20; ++i) feed(2);
  const std::int64_t allocations = memory_->allocations();
  for (int i = 0; i < 100; ++i) feed(2);
  EXPECT_EQ(memory_->allocations(), allocations);
  EXPECT_EQ(held(recurrence_), from_to(seen - 5, seen));
}

TEST_F(States, TrimmedToAnEarlierToken) {
  convolution_.stage(inputs(1, 9), 3, 9);
  recurrence_.stage(states(1, 9), 17);
  convolution_.publish();
  recurrence_.publish();
  convolution_.trim(4, 2);
  recurrence_.trim(4, 3);
  EXPECT_EQ(held(convolution_), from_to(2, 5));
  EXPECT_EQ(held(recurrence_), from_to(3, 5));
  EXPECT_TRUE(at::equal(*recurrence_.last(), states(5, 1)[0]));
  EXPECT_TRUE(at::equal(convolution_.stage(inputs(6, 1), 3, 3), inputs(4, 3)));
}

// A model may hand back the state that it was given, changed or not.
TEST_F(States, AStateMayBeGivenBack) {
  recurrence_.stage(states(7, 1), 3);
  recurrence_.publish();
  for (int i = 0; i < 9; ++i) {
    recurrence_.stage(recurrence_.last()->unsqueeze(0), 3);
    recurrence_.publish();
  }
  EXPECT_EQ(held(recurrence_), (Numbers{7, 7, 7}));
}

TEST_F(States, AStateThatFindsNoMemoryIsAsBefore) {
  for (std::int64_t seen = 0; seen < 12; ++seen) {
    const Numbers before = held(recurrence_), inputs_before = held(convolution_);
    memory_->fail_after(0);
    bool refused = false;
    try {
      recurrence_.stage(states(seen + 1, 1), 6);
      convolution_.stage(inputs(seen + 1, 1), 2, std::min<std::int64_t>(seen + 1, 5));
    } catch (const c10::OutOfMemoryError&) {
      refused = true;
    }
    memory_->fail_after(std::nullopt);
    if (refused) {
      recurrence_.discard();
      convolution_.discard();
      EXPECT_EQ(held(recurrence_), before);
      EXPECT_EQ(held(convolution_), inputs_before);
      recurrence_.stage(states(seen + 1, 1), 6);
      convolution_.stage(inputs(seen + 1, 1), 2, std::min<std::int64_t>(seen + 1, 5));
    }
    EXPECT_TRUE(refused || seen > 0);
    recurrence_.publish();
    convolution_.publish();
    EXPECT_EQ(held(recurrence_).back(), seen + 1);
    EXPECT_EQ(held(convolution_).back(), seen + 1);
  }
}

TEST_F(States, ACloneIsOnItsOwn) {
  convolution_.stage(inputs(1, 5), 3, 3);
  recurrence_.stage(states(2, 4), 4);
  convolution_.publish();
  recurrence_.publish();
  ConvolutionStorage inputs_copy = convolution_.clone();
  RecurrentStorage states_copy = recurrence_.clone();
  convolution_.stage(inputs(6, 9), 3, 3);
  recurrence_.stage(states(6, 1), 4);
  convolution_.publish();
  recurrence_.publish();
  EXPECT_EQ(held(inputs_copy), from_to(1, 5));
  EXPECT_EQ(held(states_copy), from_to(2, 5));
  inputs_copy.reset();
  states_copy.reset();
  EXPECT_FALSE(inputs_copy.holds() || states_copy.holds());
  EXPECT_EQ(held(recurrence_), from_to(3, 6));
}

}  // namespace
}  // namespace kvcache
