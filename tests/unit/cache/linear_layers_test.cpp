// Linear and hybrid layers as a cache shows them: exact whatever the pieces, and taken back.

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/uncached.h"
#include "tests/support/counting_states.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using testing::feed_rows;
using testing::feed_text;
using ::testing::HasSubstr;
using testing::kBoth;
using testing::kBothSliding;
using testing::kFull;
using testing::kLinear;
using testing::kMixes;
using testing::kTwoStates;
using testing::Numbers;
using testing::outputs_of;
using testing::refusal;

Numbers slice(const Numbers& text, std::size_t first, std::size_t end) {
  return {text.begin() + std::ptrdiff_t(first), text.begin() + std::ptrdiff_t(end)};
}

Numbers random_text(std::mt19937& random, std::size_t length) {
  Numbers text;
  for (std::size_t i = 0; i < length; ++i) text.push_back(1 + std::int64_t(random() % 97));
  return text;
}

TEST(LinearLayers, F66_AnyPiecesEqualTheWhole) {
  std::mt19937 random(1);
  for (const auto& layers : kMixes) {
    for (std::size_t piece = 1; piece <= 7; ++piece) {
      const Numbers text = random_text(random, 23);
      const Numbers right = outputs_of(layers, text);
      DynamicCache cache(layers);
      for (std::size_t at = 0; at < text.size(); at += piece) {
        const std::size_t end = std::min(at + piece, text.size());
        EXPECT_EQ(feed_text(cache, slice(text, at, end)), slice(right, at, end));
      }
      EXPECT_EQ(cache.get_seq_length(), 23);
      EXPECT_EQ(cache.get_seq_length(cache.layer_count() - 1), 23);
    }
  }
}

TEST(LinearLayers, F65_CropEqualsNeverHavingSeen) {
  std::mt19937 random(2);
  for (const auto& layers : kMixes) {
    for (std::size_t kept = 1; kept <= 7; ++kept) {
      for (std::size_t wrong = 1; wrong <= 6; ++wrong) {
        DynamicCache cache(layers);
        cache.activate_past_recording();
        const Numbers text = random_text(random, kept + 5);
        feed_text(cache, slice(text, 0, kept));
        cache.crop(0);
        feed_text(cache, random_text(random, wrong));
        EXPECT_TRUE(cache.can_crop(std::int64_t(wrong)));
        EXPECT_FALSE(cache.can_crop(std::int64_t(wrong + 1)));
        cache.crop(-std::int64_t(wrong));
        EXPECT_EQ(feed_text(cache, slice(text, kept, kept + 5)),
                  slice(outputs_of(layers, text), kept, kept + 5));
      }
    }
  }
}

TEST(LinearLayers, F65_WithoutRecordingCropRefuses) {
  for (const auto& layers : kMixes) {
    DynamicCache cache(layers);
    EXPECT_NO_THROW(cache.crop(0));
    feed_text(cache, {1, 2, 3});
    for (const std::int64_t tokens : {1, 2, 3}) {
      EXPECT_FALSE(cache.can_crop(tokens));
      EXPECT_THAT(refusal<RuntimeError>([&] { cache.crop(-tokens); }),
                  HasSubstr("activate_past_recording"));
    }
    cache.crop(0);
    EXPECT_EQ(feed_text(cache, {4}), slice(outputs_of(layers, {1, 2, 3, 4}), 3, 4));
  }
}

// From the first token on, recording reaches back to before it.
TEST(LinearLayers, CropToNothingIsAFreshCache) {
  for (const auto& layers : kMixes) {
    DynamicCache cache(layers);
    cache.activate_past_recording();
    feed_text(cache, {5, 6});
    feed_text(cache, {7, 8, 9});
    ASSERT_TRUE(cache.can_crop(5));
    cache.crop(-5);
    EXPECT_FALSE(cache.has_previous_state());
    EXPECT_EQ(cache.get_seq_length(), 0);
    EXPECT_EQ(feed_text(cache, {1, 2, 3}), outputs_of(layers, {1, 2, 3}));
  }
}

TEST(LinearLayers, ALongPrefillRecordsNoMoreThanItsBound) {
  std::mt19937 random(3);
  const Numbers text = random_text(random, 300);
  for (const std::int64_t bound : {1, 3, 16}) {
    auto memory = std::make_shared<testing::FailingMemory>();
    MambaCache cache({kLinear}, {.memory = memory});
    bound == 16 ? cache.activate_past_recording() : cache.activate_past_recording(bound);
    feed_text(cache, slice(text, 0, 290));
    const auto held = [&] { return cache.nbytes() / std::int64_t(sizeof(float)); };
    EXPECT_EQ(held(), 2 * (2 + bound) + (bound + 1));  // two channels of context; the states
    EXPECT_LE(memory->peak_bytes(), std::int64_t(sizeof(float)) * (4 * (3 + bound) + bound + 2));
    EXPECT_TRUE(cache.can_crop(bound));
    EXPECT_FALSE(cache.can_crop(bound + 1));
    for (std::size_t at = 290; at < 295; ++at) feed_text(cache, {text[at]});
    EXPECT_EQ(held(), 2 * (2 + bound) + (bound + 1));
    EXPECT_FALSE(cache.can_crop(bound + 1));
    EXPECT_THROW(cache.crop(-bound - 1), RuntimeError);
    cache.crop(-bound);
    EXPECT_EQ(held(), 2 * 2 + 1);
    const auto at = std::size_t(295 - bound);
    EXPECT_EQ(feed_text(cache, slice(text, at, 300)), slice(outputs_of({kLinear}, text), at, 300));
  }
}

TEST(LinearLayers, ALowerBoundLetsOldStatesGoAtOnce) {
  MambaCache cache({kLinear});
  cache.activate_past_recording(8);
  for (int i = 1; i <= 6; ++i) feed_text(cache, {i});
  EXPECT_TRUE(cache.can_crop(6));
  cache.activate_past_recording(2);
  EXPECT_TRUE(cache.can_crop(2));
  EXPECT_FALSE(cache.can_crop(3));
  EXPECT_EQ(cache.nbytes(), 4 * (2 * (2 + 2) + 3));
  cache.crop(-2);
  EXPECT_EQ(feed_text(cache, {5}), slice(outputs_of({kLinear}, {1, 2, 3, 4, 5}), 4, 5));
}

TEST(LinearLayers, OneTokenStepsAllocateNothing) {
  auto memory = std::make_shared<testing::FailingMemory>();
  MambaCache cache({kLinear, kTwoStates}, {.memory = memory});
  feed_text(cache, {1, 2, 3, 4, 5});
  const std::int64_t allocations = memory->allocations();
  for (int i = 0; i < 100; ++i) feed_text(cache, {i});
  EXPECT_EQ(memory->allocations(), allocations);
}

// What rests in a state is as if the padding had never been: its inputs are zeros.
TEST(LinearLayers, F36_LeftPaddingOfOneRow) {
  MambaCache padded({kLinear}), bare({kLinear});
  const Numbers first = feed_text(padded, {0, 0, 0, 0, 0, 0, 12, 13, 14});
  const Numbers alone = feed_text(bare, {12, 13, 14});
  EXPECT_EQ(slice(first, 6, 9), alone);
  EXPECT_EQ(feed_text(padded, {15, 16}), feed_text(bare, {15, 16}));
}

TEST(LinearLayers, F37_LeftPaddingInPieces) {
  for (std::size_t piece = 1; piece <= 5; ++piece) {
    MambaCache batch({kLinear}), solo({kLinear});
    const Numbers row0{1, 2, 3, 4, 5, 6, 7, 8, 9}, row1{0, 0, 0, 0, 0, 0, 12, 13, 14};
    Numbers last;
    for (std::size_t at = 0; at < 9; at += piece) {
      const std::size_t end = std::min<std::size_t>(at + piece, 9);
      last = feed_rows(batch, {slice(row0, at, end), slice(row1, at, end)})[1];
    }
    EXPECT_EQ(last.back(), feed_text(solo, {12, 13, 14}).back());
  }
}

TEST(LinearLayers, F67_RowOperationsReachEveryLayer) {
  const std::vector<LayerSpec> layers{kFull, kLinear, kBothSliding};
  DynamicCache cache(layers);
  cache.activate_past_recording();
  feed_rows(cache, {{1, 2, 3}, {4, 5, 6}});
  cache.batch_repeat_interleave(2);
  EXPECT_EQ(cache.batch_size(), 4);
  const auto after = feed_rows(cache, {{7}, {8}, {9}, {10}});
  EXPECT_EQ(after[1][0], outputs_of(layers, {1, 2, 3, 8})[3]);
  EXPECT_EQ(after[2][0], outputs_of(layers, {4, 5, 6, 9})[3]);
  cache.reorder_cache(at::tensor(Numbers{3, 3, 0, 1}, at::kLong));
  cache.batch_select_indices(at::tensor(Numbers{1, 2}, at::kLong));
  cache.crop(-1);
  const auto next = feed_rows(cache, {{11, 12}, {13, 14}});
  EXPECT_EQ(next[0][1], outputs_of(layers, {4, 5, 6, 11, 12})[4]);
  EXPECT_EQ(next[1][1], outputs_of(layers, {1, 2, 3, 13, 14})[4]);
}

// A full layer of 20 tokens beside one of a window that needs 9 to 16 to go back by 3, and no more.
TEST(LinearLayers, F70_AMixedCacheTakesBackAsFarAsItsLeastLayer) {
  std::mt19937 random(4);
  const Numbers text = random_text(random, 20);
  DynamicCache cache({kFull, {.type = std::string(kHybridSliding), .window = 9}});
  feed_text(cache, slice(text, 0, 17));
  cache.activate_past_recording(15);
  feed_text(cache, slice(text, 17, 20));
  EXPECT_FALSE(cache.can_crop(15));
  EXPECT_THROW(cache.crop(-15), RuntimeError);
  for (const std::int64_t layer : {0, 1}) EXPECT_EQ(cache.get_seq_length(layer), 20);
  cache.crop(-3);
  for (const std::int64_t layer : {0, 1}) EXPECT_EQ(cache.get_seq_length(layer), 17);
}

TEST(LinearLayers, F15_ResetForgetsStates) {
  for (const auto& layers : kMixes) {
    DynamicCache cache(layers);
    feed_text(cache, {5, 6, 7, 8, 9});
    EXPECT_TRUE(cache.has_previous_state());
    cache.reset();
    EXPECT_FALSE(cache.has_previous_state());
    EXPECT_EQ(cache.allocated_bytes(), 0);
    EXPECT_EQ(feed_text(cache, {1, 2}), outputs_of(layers, {1, 2}));
    EXPECT_EQ(cache.get_seq_length(), 2);
  }
}

TEST(LinearLayers, PreviousStateIsThatOfCommittedSteps) {
  DynamicCache cache({kFull, kTwoStates});
  EXPECT_FALSE(cache.has_previous_state());
  {
    Step step = cache.begin_step({.tokens = 2, .batch = 1});
    testing::run(step, cache, {{1, 2}});
    EXPECT_FALSE(step.recurrent_state(1).has_value());
    EXPECT_FALSE(cache.has_previous_state(1, 1));
  }
  EXPECT_EQ(cache.allocated_bytes(), 0);
  feed_text(cache, {1, 2});
  EXPECT_TRUE(cache.has_previous_state());
  EXPECT_TRUE(cache.has_previous_state(1, 1));
  EXPECT_THROW(cache.has_previous_state(1, 2), ValueError);
  EXPECT_THROW(cache.has_previous_state(0), ValueError);
}

TEST(LinearLayers, AForwardPassWithoutACacheBeginsAtZero) {
  for (const auto& layers : kMixes) {
    const Numbers text{3, 1, 4, 1, 5, 9, 2, 6};
    LayeredCache none = uncached(layers);
    Step step = none.begin_step({.tokens = 8, .batch = 1});
    const at::Tensor outputs = testing::run(step, none, {text});
    EXPECT_TRUE(at::equal(outputs[0].to(at::kLong), at::tensor(outputs_of(layers, text))));
  }
}

// Buffers made under InferenceMode are written in place outside it.
TEST(LinearLayers, InferenceModeComesAndGoes) {
  const std::vector<LayerSpec> layers{kTwoStates, kBoth};
  DynamicCache cache(layers);
  cache.activate_past_recording(2);
  const Numbers text{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const Numbers right = outputs_of(layers, text);
  for (std::size_t at = 0; at < text.size(); ++at) {
    const c10::InferenceMode mode(at % 3 != 1);
    EXPECT_EQ(feed_text(cache, {text[at]})[0], right[at]);
  }
}

TEST(HybridLayer, F17_ItsLengthIsThatOfItsAttention) {
  DynamicCache cache({kBoth, kLinear, kBothSliding});
  EXPECT_EQ(cache.get_max_length(0), -1);
  EXPECT_EQ(cache.get_max_length(1), -1);
  EXPECT_EQ(cache.get_max_length(2), 4);
  EXPECT_EQ(DynamicCache().get_max_length(), -1);
  feed_text(cache, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(cache.get_mask_sizes(2, 0), std::pair(std::int64_t{8}, std::int64_t{0}));
  EXPECT_EQ(cache.get_mask_sizes(2, 2), std::pair(std::int64_t{5}, std::int64_t{3}));
}

// Of the two halves the one that can less decides: the window here, the states there.
TEST(HybridLayer, F18_CropsBothHalvesOrNeither) {
  DynamicCache cache({kBothSliding});
  feed_text(cache, {1, 2, 3, 4, 5, 6, 7, 8});
  cache.activate_past_recording(4);
  feed_text(cache, {9, 10, 11});
  EXPECT_TRUE(cache.can_crop(3));
  EXPECT_FALSE(cache.can_crop(4));
  cache.crop(-2);
  EXPECT_EQ(cache.get_seq_length(), 9);
  EXPECT_EQ(feed_text(cache, {12}),
            slice(outputs_of({kBothSliding}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 12}), 9, 10));
}

}  // namespace
}  // namespace kvcache
