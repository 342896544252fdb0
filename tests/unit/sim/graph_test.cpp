// A step of fixed addresses is captured once and replayed.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/sim/helpers.h"

namespace kvcache::testing::sim {
namespace {

// One decoding step over a static cache: writes the row of `at`, attends to rows up to it.
struct StaticStep {
  at::Tensor keys = at::zeros({1, 2, 8, 4}, device());
  at::Tensor at = at::zeros({1}, at::TensorOptions(device()).dtype(at::kLong));
  at::Tensor columns = at::arange(8, device());
  at::Tensor input = at::zeros({1, 2, 1, 4}, device());
  at::Tensor output = at::zeros({1, 2, 1, 4}, device());

  void run() {
    keys.index_copy_(2, at, input);
    const at::Tensor visible = (columns <= at).view({1, 1, 1, 8});
    output.copy_(at::scaled_dot_product_attention(input, keys, keys, visible));
    at.add_(1);
  }

  at::Tensor feed(int token, const std::function<void()>& step) {
    input.copy_((at::arange(8, at::kFloat) * 0.1 + token).sin().view({1, 2, 1, 4}));
    step();
    return output.cpu();
  }
};

TEST(Graph, ReplaysAStaticStep) {
  StaticStep eager, captured;
  Graph graph;
  captured.run();  // as on CUDA: once before, so that nothing is set up lazily meanwhile
  captured.at.zero_();
  graph.capture_begin();
  captured.run();
  graph.capture_end();
  EXPECT_GT(graph.size(), 3);
  EXPECT_EQ(captured.at.cpu().item<std::int64_t>(), 0);  // nothing ran
  for (int token = 0; token < 6; ++token) {
    const at::Tensor expected = eager.feed(token, [&] { eager.run(); });
    const at::Tensor found = captured.feed(token, [&] { graph.replay(); });
    EXPECT_TRUE(at::equal(found, expected)) << token;
  }
  EXPECT_EQ(captured.at.cpu().item<std::int64_t>(), 6);
}

TEST(Graph, ItsMemoryIsNobodyElses) {
  const at::Tensor x = at::ones({128}, device());
  at::Tensor y;
  const void* inner = nullptr;
  Graph graph;
  graph.capture_begin();
  {
    const at::Tensor temporary = x + 1;
    inner = temporary.const_data_ptr();
    y = temporary * 2;
  }
  graph.capture_end();
  const at::Tensor other = at::zeros({128}, device());
  EXPECT_NE(other.const_data_ptr(), inner);
  graph.replay();
  EXPECT_EQ(y.cpu()[5].item<float>(), 4);
  x.fill_(2);
  graph.replay();
  EXPECT_EQ(y.cpu()[5].item<float>(), 6);
  EXPECT_EQ(other.cpu().sum().item<float>(), 0);
}

TEST(Graph, WhatNeedsTheHostIsRefusedMeanwhile) {
  const at::Tensor x = at::ones({4}, device()), host = at::ones({4}), fixed = pinned({4}).fill_(3);
  Graph graph;
  graph.capture_begin();
  EXPECT_THROW(x.cpu(), c10::Error);
  EXPECT_THROW(x[0].item(), c10::Error);
  EXPECT_THROW(x.copy_(host), c10::Error);
  EXPECT_THROW(x.nonzero(), c10::Error);
  EXPECT_THROW(at::equal(x, x), c10::Error);
  EXPECT_THROW(current_stream().synchronize(), c10::Error);
  EXPECT_THROW(synchronize(), c10::Error);
  c10::Event event(c10::kPrivateUse1);
  EXPECT_THROW(event.record(current_stream()), c10::Error);
  Graph second;
  EXPECT_THROW(second.capture_begin(), c10::Error);
  x.copy_(fixed, /*non_blocking=*/true);
  graph.capture_end();
  EXPECT_EQ(x.cpu()[0].item<float>(), 1);
  graph.replay();
  EXPECT_EQ(x.cpu()[0].item<float>(), 3);
}

TEST(Graph, ReplaysAreCheckedForRaces) {
  const at::Tensor x = at::ones({4}, device());
  Graph graph;
  graph.capture_begin();
  x.add_(1);
  graph.capture_end();
  const c10::Stream side = side_stream();
  wait_for(side, current_stream());
  graph.replay();
  {
    const c10::StreamGuard guard(side);
    x.mul_(2);
  }
  EXPECT_FALSE(take_races().empty());
  synchronize();
}

}  // namespace
}  // namespace kvcache::testing::sim
