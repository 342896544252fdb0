// Sizes of states that a layer was made for: what is refused, what still goes together.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/serialization.h"
#include "tests/support/counting_states.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::feed_text;
using ::testing::HasSubstr;
using testing::kBoth;
using testing::kLinear;
using testing::outputs_of;
using testing::refusal;

LayerSpec linear(const StateSizes& sizes, std::int64_t states = 1) {
  return {.type = std::string(kLinearAttention), .states = states, .state_sizes = sizes};
}

// What the stand-in for a model feeds.
const StateSizes kFed{.convolutions = {{.channels = 2, .taps = 3}},
                      .recurrences = {{.shape = {1}}}};
const StateSizes kWider{.convolutions = {{.channels = 3, .taps = 3}},
                        .recurrences = {{.shape = {1}}}};
const StateSizes kOtherTaps{.convolutions = {{.channels = 2, .taps = 4}},
                            .recurrences = {{.shape = {1}}}};
const StateSizes kMatrix{.convolutions = {{.channels = 2, .taps = 3}},
                         .recurrences = {{.shape = {1, 1}}}};
const StateSizes kHalf{.convolutions = {{.channels = 2, .taps = 3}},
                       .recurrences = {{.shape = {1}, .dtype = at::kHalf}}};
const StateSizes kNoRecurrence{.convolutions = {{.channels = 2, .taps = 3}}};

// A state of another size is refused, and the step goes on as if it had not been tried.
TEST(StateSizes, OthersAreRefused) {
  MambaCache cache({linear(kFed)});
  const auto expected = outputs_of({kLinear}, {1, 2, 3, 4, 5});
  for (const bool first : {true, false}) {
    Step step = cache.begin_step({.tokens = first ? 3 : 2, .batch = 1});
    const std::int64_t tokens = step.tokens();
    const auto convolution = [&](std::int64_t channels, std::int64_t taps) {
      return refusal<ValueError>([&] {
        step.update_conv_state(0, at::ones({1, channels, tokens}), {taps});
      });
    };
    const auto recurrence = [&](at::IntArrayRef shape, at::ScalarType dtype) {
      return refusal<ValueError>([&] { step.update_recurrent_state(0, at::ones(shape, dtype)); });
    };
    EXPECT_THAT(convolution(3, 3), AllOf(HasSubstr("layer 0"), HasSubstr("3 channels and 3 taps"),
                                         HasSubstr("2 channels and 3 taps")));
    EXPECT_THAT(convolution(2, 4),
                AllOf(HasSubstr("2 channels and 4 taps"), HasSubstr("2 channels and 3 taps")));
    EXPECT_THAT(recurrence({1, 1, 4}, at::kFloat),
                AllOf(HasSubstr("layer 0"), HasSubstr("shape [4]"), HasSubstr("shape [1]")));
    EXPECT_THAT(recurrence({1, 1, 1}, at::kHalf),
                AllOf(HasSubstr("dtype float16"), HasSubstr("dtype float32")));
    const at::Tensor outputs =
        testing::run(step, cache, {first ? testing::Numbers{1, 2, 3} : testing::Numbers{4, 5}});
    step.commit();
    EXPECT_EQ(outputs[0][tokens - 1].item<double>(), double(expected[first ? 2 : 4]));
  }
}

TEST(StateSizes, StatesThatAreNotListedAreRefused) {
  MambaCache none({linear(kNoRecurrence)}), empty({linear({})}), two({linear(kFed, 2)});
  {
    Step step = none.begin_step({.tokens = 1, .batch = 1});
    EXPECT_THAT(refusal<ValueError>([&] {
                  step.update_recurrent_state(0, at::ones({1, 1, 1}));
                }),
                HasSubstr("for none"));
    step.update_conv_state(0, at::ones({1, 2, 1}), {.kernel_size = 3});
    step.commit();
  }
  {
    Step step = empty.begin_step({.tokens = 1, .batch = 1});
    EXPECT_THAT(refusal<ValueError>([&] {
                  step.update_conv_state(0, at::ones({1, 2, 1}), {3});
                }),
                HasSubstr("for none"));
  }
  Step step = two.begin_step({.tokens = 1, .batch = 1});
  EXPECT_THAT(refusal<ValueError>([&] {
                step.update_conv_state(0, at::ones({1, 2, 1}), {3, 1});
              }),
              HasSubstr("for none"));
}

TEST(StateSizes, AreOfStatesThatThereAre) {
  const auto refused = [](const LayerSpec& spec) {
    return refusal<ValueError>([&] { MambaCache({spec}); });
  };
  EXPECT_THAT(refused(linear({.convolutions = {{2, 3}, {4, 5}}})),
              AllOf(HasSubstr("1 states"), HasSubstr("4 channels and 5 taps")));
  EXPECT_THAT(refused(linear({.recurrences = {{{2}}, {{3}}}})), HasSubstr("shape [3]"));
  EXPECT_THAT(refused(linear({.convolutions = {{-1, 3}}})), HasSubstr("-1 channels"));
  EXPECT_THAT(refused(linear({.convolutions = {{2, 0}}})), HasSubstr("0 taps"));
  EXPECT_THAT(refused(linear({.recurrences = {{{2, -3}}}})), HasSubstr("[2, -3]"));
}

// Where one side does not say, the first states that arrive do.
TEST(StateSizes, OfAModelMustBeTheCaches) {
  DynamicCache sized({linear(kFed)}), any({kLinear});
  LayerSpec hybrid = kBoth;
  hybrid.state_sizes = kFed;
  DynamicCache both({hybrid});
  for (const StateSizes& other : {kWider, kOtherTaps, kMatrix, kHalf, kNoRecurrence}) {
    EXPECT_THAT(refusal<ValueError>([&] { sized.check_fits({linear(other)}, at::kFloat); }),
                AllOf(HasSubstr("layer 0"), HasSubstr(c10::str(kFed)), HasSubstr(c10::str(other)),
                      HasSubstr("config")));
    any.check_fits({linear(other)}, at::kFloat);
    LayerSpec wanted = kBoth;
    wanted.state_sizes = other;
    EXPECT_THROW(both.check_fits({wanted}, at::kFloat), ValueError);
  }
  sized.check_fits({linear(kFed)}, at::kFloat);
  sized.check_fits({kLinear}, at::kFloat);
  both.check_fits({hybrid}, at::kFloat);
}

class StatesInFiles : public ::testing::Test {
 protected:
  ~StatesInFiles() override { std::filesystem::remove(path_); }

  void save(const LayerSpec& spec) {
    DynamicCache cache({spec});
    feed_text(cache, {1, 2, 3});
    save_cache(cache, path_);
  }

  const std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) / c10::str("kvcache_state_sizes_", ::getpid());
};

// Files do not say the sizes, so those of caches without any are as good.
TEST_F(StatesInFiles, GoTogetherWithSizesOrWithout) {
  for (LayerSpec from : {kLinear, kBoth}) {
    LayerSpec to = from;
    to.state_sizes = kFed;
    for (const bool swapped : {false, true}) {
      save(swapped ? to : from);
      DynamicCache cache({swapped ? from : to});
      load_cache(cache, path_);
      EXPECT_EQ(feed_text(cache, {4, 5})[1], outputs_of({from}, {1, 2, 3, 4, 5})[4]);
    }
  }
}

// A file that lacks a state which the cache's layer lists.
TEST_F(StatesInFiles, MustBeWhole) {
  DynamicCache convolutions({kLinear});
  {
    Step step = convolutions.begin_step({.tokens = 2, .batch = 1});
    step.update_conv_state(0, at::ones({1, 2, 2}), {.kernel_size = 3});
    step.commit();
  }
  save_cache(convolutions, path_);
  DynamicCache cache({linear(kFed)}), like({linear(kNoRecurrence)});
  EXPECT_THAT(refusal<ValueError>([&] { load_cache(cache, path_); }),
              AllOf(HasSubstr("layer 0"), HasSubstr("there is no recurrent_0")));
  EXPECT_EQ(cache.get_seq_length(), 0);
  load_cache(like, path_);
  EXPECT_EQ(like.get_seq_length(), 2);
}

TEST_F(StatesInFiles, OfOtherSizesAreRefused) {
  save(kLinear);
  for (const StateSizes& other : {kWider, kOtherTaps, kMatrix, kHalf, kNoRecurrence}) {
    DynamicCache cache({linear(other)});
    EXPECT_THAT(refusal<ValueError>([&] { load_cache(cache, path_); }),
                AllOf(HasSubstr(path_.string()), HasSubstr("layer 0"), HasSubstr("was made for")));
    EXPECT_EQ(cache.get_seq_length(), 0);
    EXPECT_EQ(cache.allocated_bytes(), 0);
  }
  DynamicCache held({linear(kFed)}), wider({kLinear});
  feed_text(held, {1, 2, 3});
  {
    Step step = wider.begin_step({.tokens = 2, .batch = 1});
    step.update_conv_state(0, at::ones({1, 3, 2}), {.kernel_size = 3});
    step.update_recurrent_state(0, at::ones({1, 1, 1}));
    step.commit();
  }
  save_cache(wider, path_);
  EXPECT_THROW(load_cache(held, path_), ValueError);
  EXPECT_EQ(feed_text(held, {4, 5})[1], outputs_of({kLinear}, {1, 2, 3, 4, 5})[4]);
}

}  // namespace
}  // namespace kvcache
