// What goes by a text's length, under padding and at the edges.
#include "kvcache/generation/length_processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/processors.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<std::int64_t> kEos{1, 3};

// Row 0 holds five tokens, row 1 two behind three pads.
TokenRows padded() {
  return {ids_tensor({{5, 6, 7, 8, 9}, {0, 0, 0, 6, 7}}),
          ids_tensor({{1, 1, 1, 1, 1}, {0, 0, 0, 1, 1}}).to(at::kBool)};
}

TEST(MinLength, CountsARowsOwnTokens) {
  const at::Tensor scores = at::zeros({2, 5});
  const auto banned = [&](std::int64_t min_length) {
    const at::Tensor after =
        MinLengthLogitsProcessor(min_length, kEos, 5).process(padded(), scores);
    return after.isinf().sum(1);
  };
  EXPECT_TRUE(banned(2).equal(ids_tensor({{0, 0}})[0]));
  EXPECT_TRUE(banned(3).equal(ids_tensor({{0, 2}})[0]));
  EXPECT_TRUE(banned(5).equal(ids_tensor({{0, 2}})[0]));
  EXPECT_TRUE(banned(6).equal(ids_tensor({{2, 2}})[0]));
}

TEST(MinNewTokens, CountsBehindThePromptsColumns) {
  const at::Tensor scores = at::zeros({2, 5});
  MinNewTokensLengthLogitsProcessor two(4, 2, kEos, 5), one(4, 1, kEos, 5);
  EXPECT_EQ(two.process(padded(), scores).isinf().sum().item<int>(), 4);
  EXPECT_TRUE(one.process(padded(), scores).equal(scores));
}

TEST(ExponentialDecay, IsAtMostTheLargestNumber) {
  const TokenRows text{at::zeros({1, 4000}, at::kLong)};
  ExponentialDecayLengthPenaltyLogitsProcessor decay({0, 10}, {0, 1, 2}, 1, 4);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor scores = at::tensor({0.F, -2.F, 3.F, 1.F}).unsqueeze(0).to(dtype);
    const at::Tensor after = decay.process(text, scores);
    EXPECT_TRUE(after.isfinite().all().item<bool>()) << after;
    EXPECT_EQ(after[0][0].item<double>(), 0);
    EXPECT_EQ(after[0][1].item<double>(), after[0][2].item<double>());
    EXPECT_GT(after[0][1].item<double>(), 60000);
    EXPECT_EQ(after[0][3].item<double>(), 1);
  }
}

TEST(ExponentialDecay, LeavesScoresThatAreNotFinite) {
  const TokenRows text{at::zeros({1, 3}, at::kLong)};
  ExponentialDecayLengthPenaltyLogitsProcessor decay({0, 2}, {0, 1}, 1, 3);
  const at::Tensor after = decay.process(text, at::tensor({-INFINITY, NAN, 1.F}).unsqueeze(0));
  EXPECT_EQ(after[0][0].item<float>(), -INFINITY);
  EXPECT_TRUE(std::isnan(after[0][1].item<float>()));
}

TEST(ExponentialDecay, MayNeverSetIn) {
  const TokenRows text{at::zeros({1, 5}, at::kLong)};
  const at::Tensor scores = at::tensor({1.F, -2.F, 3.F}).unsqueeze(0);
  for (const std::int64_t prompt : {0, 1, 5}) {
    ExponentialDecayLengthPenaltyLogitsProcessor decay({INT64_MAX, 2}, {0, 1}, prompt, 3);
    EXPECT_TRUE(decay.process(text, scores).equal(scores)) << prompt;
  }
}

TEST(LengthProcessors, RefuseWhatCannotWork) {
  const auto decay = [](std::int64_t start, double factor) {
    return refusal<ValueError>([&] {
      ExponentialDecayLengthPenaltyLogitsProcessor({start, factor}, kEos, 1, 5);
    });
  };
  EXPECT_THAT(decay(-1, 2), HasSubstr("must not be negative, but is -1"));
  EXPECT_THAT(refusal<ValueError>([] {
                ExponentialDecayLengthPenaltyLogitsProcessor({1, 2}, kEos, -1, 5);
              }),
              HasSubstr("input_ids_seq_length must not be negative, but is -1"));
  EXPECT_THAT(decay(1, 0), HasSubstr("must be above 0, but is 0"));
  EXPECT_THAT(decay(1, NAN), HasSubstr("must be above 0, but is nan"));
  EXPECT_THAT(refusal<ValueError>([] { MinLengthLogitsProcessor(-1, kEos, 5); }),
              HasSubstr("min_length must not be negative, but is -1"));
  EXPECT_THAT(refusal<ValueError>([] { MinLengthLogitsProcessor(1, {5}, 5); }),
              HasSubstr("eos_token_id holds 5"));
  EXPECT_THAT(refusal<ValueError>([] { MinNewTokensLengthLogitsProcessor(1, -1, kEos, 5); }),
              HasSubstr("min_new_tokens must not be negative, but is -1"));
  EXPECT_THAT(refusal<ValueError>([] { MinNewTokensLengthLogitsProcessor(-1, 1, kEos, 5); }),
              HasSubstr("prompt_length_to_skip must not be negative, but is -1"));
}

}  // namespace
}  // namespace kvcache::testing
