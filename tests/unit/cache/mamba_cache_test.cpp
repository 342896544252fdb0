// What linear layers refuse, by way of the cache that is made of them alone.

#include "kvcache/cache/mamba_cache.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/counting_states.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::feed_rows;
using testing::feed_text;
using ::testing::HasSubstr;
using testing::outputs_of;
using testing::refusal;

const LayerSpec kFull{};
const LayerSpec kLinear{.type = std::string(kLinearAttention)};
const LayerSpec kTwoStates{.type = std::string(kLinearAttention), .states = 2};
const LayerSpec kBoth{.type = std::string(kHybrid)};
const LayerSpec kNothing{.type = std::string(kDummy)};

class RefusedStates : public ::testing::Test {
 protected:
  // A state is refused, and the step then goes on as if it had not been tried.
  template <typename Error, typename Call>
  void expect_refused(const std::string& message, const Call& call) {
    Step step = cache_.begin_step({.tokens = 2, .batch = 2});
    EXPECT_THAT(refusal<Error>([&] { call(step); }),
                AllOf(HasSubstr("layer 0"), HasSubstr(message)));
    const at::Tensor outputs = testing::run(step, cache_, {{7, 8}, {9, 10}});
    EXPECT_EQ(outputs[1][1].item<double>(), double(outputs_of({kTwoStates}, {4, 5, 6, 9, 10})[4]));
  }

  void SetUp() override { feed_rows(cache_, {{1, 2, 3}, {4, 5, 6}}); }

  static at::Tensor ones(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
    return at::ones(shape, dtype);
  }

  MambaCache cache_{{kTwoStates}};
};

TEST_F(RefusedStates, InputsOfAConvolution) {
  const auto feed = [](at::Tensor inputs, std::int64_t taps = 3, std::int64_t index = 0) {
    return [=](Step& step) { step.update_conv_state(0, inputs, {taps, index}); };
  };
  expect_refused<ValueError>("[batch, channels, tokens]", feed({}));
  expect_refused<ValueError>("[batch, channels, tokens]", feed(ones({2, 2, 3})));
  expect_refused<ValueError>("[batch, channels, tokens]", feed(ones({1, 2, 2})));
  expect_refused<ValueError>("[2, 3, 2]", feed(ones({2, 3, 2})));
  expect_refused<ValueError>("float64", feed(ones({2, 2, 2}, at::kDouble)));
  expect_refused<ValueError>("floating point", feed(ones({2, 2, 2}, at::kLong)));
  expect_refused<ValueError>("gradients", feed(ones({2, 2, 2}).requires_grad_()));
  expect_refused<ValueError>("kernel_size is 4", feed(ones({2, 2, 2}), 4));
  expect_refused<ValueError>("kernel_size is 0", feed(ones({2, 2, 2}), 0));
  expect_refused<ValueError>("states 0 to 1", feed(ones({2, 2, 2}), 3, 2));
}

TEST_F(RefusedStates, StatesOfARecurrence) {
  const auto feed = [](at::Tensor states, std::int64_t index = 0) {
    return [=](Step& step) { step.update_recurrent_state(0, states, index); };
  };
  expect_refused<ValueError>("[1, 2, ...]", feed({}));
  expect_refused<ValueError>("[1, 2, ...]", feed(ones({2, 2, 1})));
  expect_refused<ValueError>("[1, 2, ...]", feed(ones({1, 3, 1})));
  expect_refused<ValueError>("[1, 2, 2]", feed(ones({1, 2, 2})));
  expect_refused<ValueError>("[1, 2, 1, 1]", feed(ones({1, 2, 1, 1})));
  expect_refused<ValueError>("float16", feed(ones({1, 2, 1}, at::kHalf)));
  expect_refused<ValueError>("states 0 to 1", feed(ones({1, 2, 1}), -1));
}

TEST_F(RefusedStates, TurnsThatDoNotFit) {
  {
    Step step = cache_.begin_step({.tokens = 1, .batch = 2});
    step.update_recurrent_state(0, ones({1, 2, 1}), 0);
    EXPECT_THAT(refusal<RuntimeError>([&] {
                  step.update_recurrent_state(0, ones({1, 2, 1}), 0);
                }),
                AllOf(HasSubstr("layer 0"), HasSubstr("already")));
    step.update_recurrent_state(0, ones({1, 2, 1}), 1);
    step.update_conv_state(0, ones({2, 2, 1}), {.kernel_size = 3});
    EXPECT_THAT(refusal<RuntimeError>([&] { step.commit(); }),
                AllOf(HasSubstr("layer 0"), HasSubstr("convolution state 1")));
    step.update_conv_state(0, ones({2, 2, 1}), {.kernel_size = 4, .index = 1});
    step.commit();
  }
  // A state that was not there from the start has no past that a crop could go back to.
  MambaCache fresh({kTwoStates});
  for (const bool first : {true, false}) {
    Step step = fresh.begin_step({.tokens = 1, .batch = 2});
    step.update_recurrent_state(0, ones({1, 2, 1}), 0);
    if (!first) {
      EXPECT_THAT(refusal<RuntimeError>([&] {
                    step.update_recurrent_state(0, ones({1, 2, 1}), 1);
                  }),
                  HasSubstr("first step"));
    }
    step.update_conv_state(0, ones({2, 2, 1}), {.kernel_size = 3, .index = 1});
    step.commit();
  }
  DynamicCache mixed({kBoth});
  EXPECT_THAT(refusal<ValueError>([&] {
                mixed.update(ones({1, 1, 1, 1}), ones({1, 1, 1, 1}), 0);
              }),
              HasSubstr("begin_step"));
  Step step = mixed.begin_step({.tokens = 1, .batch = 1});
  step.append(0, ones({1, 1, 1, 1}), ones({1, 1, 1, 1}));
  EXPECT_THROW(step.commit(), RuntimeError);
}

TEST(MambaCache, IsOfLinearLayersOnly) {
  EXPECT_THAT(refusal<ValueError>([] {
                MambaCache({kLinear, kFull});
              }),
              AllOf(HasSubstr("layer 1 is 'full_attention'"), HasSubstr("DynamicCache")));
  EXPECT_THAT(refusal<ValueError>([] { MambaCache({{.type = "retention"}}); }),
              HasSubstr("unknown layer type 'retention'"));
  EXPECT_THAT(refusal<ValueError>([] { MambaCache(std::vector<LayerSpec>{}); }),
              HasSubstr("layers"));
  EXPECT_THAT(refusal<ValueError>(
                  [] { MambaCache({{.type = std::string(kLinearAttention), .states = 0}}); }),
              HasSubstr("0 states"));
  MambaCache cache({{.type = std::string(kConvolution)}, kNothing});
  EXPECT_EQ(cache.kind(), "mamba");
  EXPECT_EQ(cache.get_max_length(), -1);
  feed_text(cache, {1, 2, 3});
  const auto copy = cache.clone();
  EXPECT_EQ(copy->kind(), "mamba");
  feed_text(cache, {4});
  EXPECT_EQ(feed_text(static_cast<MambaCache&>(*copy), {5})[0],
            outputs_of({kLinear}, {1, 2, 3, 5})[3]);
}

}  // namespace
}  // namespace kvcache
