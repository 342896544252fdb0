// Forced and suppressed tokens in rows of different lengths.
#include "kvcache/generation/token_processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/processors.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;

// Row 0 holds one token behind a pad, row 1 two tokens, and then as many more as `rest`.
TokenRows padded(std::int64_t rest = 0) {
  at::Tensor valid = at::ones({2, 2 + rest}, at::kBool);
  valid[0][0] = false;
  return {at::full({2, 2 + rest}, 4, at::kLong), valid};
}

at::Tensor finite(const at::Tensor& scores) { return scores.isfinite().sum(1); }

TEST(ForcedBos, GoesByARowsOwnTokens) {
  ForcedBOSTokenLogitsProcessor bos(3, 5);
  const at::Tensor scores = at::ones({2, 5});
  const at::Tensor after = bos.process(padded(), scores);
  EXPECT_TRUE(after[0].equal(at::tensor({0.F, 0.F, 0.F, 1.F, 0.F}).log())) << after;
  EXPECT_TRUE(after[1].equal(scores[1]));
  EXPECT_TRUE(bos.process(padded(1), scores).equal(scores));
}

TEST(ForcedTokens, ReplaceScoresThatAreNone) {
  const at::Tensor scores = at::full({1, 5}, NAN);
  EXPECT_EQ(ForcedBOSTokenLogitsProcessor(3, 5).process(texts({{1}}), scores)[0][3].item<float>(),
            0);
  const at::Tensor after =
      ForcedEOSTokenLogitsProcessor(3, {1, 2}, 5).process(texts({{1, 1}}), scores);
  EXPECT_TRUE(finite(after).equal(ids_tensor({{2}})[0])) << after;
}

TEST(SuppressAtBegin, WaitsForAForcedTokenRowByRow) {
  const at::Tensor scores = at::zeros({2, 5});
  const auto left = [&](std::int64_t rest, bool behind_forced_bos) {
    SuppressTokensAtBeginLogitsProcessor begin({0, 1}, 2, 5, behind_forced_bos);
    return finite(begin.process(padded(rest), scores));
  };
  EXPECT_TRUE(left(0, false).equal(ids_tensor({{3, 3}})[0]));
  EXPECT_TRUE(left(1, false).equal(ids_tensor({{5, 5}})[0]));
  EXPECT_TRUE(left(0, true).equal(ids_tensor({{5, 3}})[0]));
  EXPECT_TRUE(left(1, true).equal(ids_tensor({{3, 5}})[0]));
  EXPECT_TRUE(left(2, true).equal(ids_tensor({{5, 5}})[0]));
}

TEST(SuppressAtBegin, IsTheOraclesIndexWithoutPadding) {
  // A prompt of one token with a forced second one: the third is the first free one.
  SuppressTokensAtBeginLogitsProcessor one({0}, 1, 5, /*behind_forced_bos=*/true);
  const at::Tensor scores = at::zeros({1, 5});
  EXPECT_EQ(finite(one.process(texts({{4}}), scores)).item<int>(), 5);
  EXPECT_EQ(finite(one.process(texts({{4, 4}}), scores)).item<int>(), 4);
  // A longer prompt is not forced.
  SuppressTokensAtBeginLogitsProcessor two({0}, 2, 5, /*behind_forced_bos=*/true);
  EXPECT_EQ(finite(two.process(texts({{4, 4}}), scores)).item<int>(), 4);
  EXPECT_EQ(finite(two.process(texts({{4, 4, 4}}), scores)).item<int>(), 5);
}

TEST(TokenProcessors, RefuseWhatCannotWork) {
  EXPECT_THAT(refusal<ValueError>([] { ForcedBOSTokenLogitsProcessor(5, 5); }),
              HasSubstr("forced_bos_token_id holds 5"));
  EXPECT_THAT(refusal<ValueError>([] { ForcedEOSTokenLogitsProcessor(9, {5}, 5); }),
              HasSubstr("forced_eos_token_id holds 5"));
  EXPECT_THAT(refusal<ValueError>([] { ForcedEOSTokenLogitsProcessor(0, {1}, 5); }),
              HasSubstr("max_length must be at least 1, but is 0"));
  EXPECT_THAT(refusal<ValueError>([] { SuppressTokensLogitsProcessor({}, 5); }),
              HasSubstr("suppress_tokens is empty"));
  EXPECT_THAT(refusal<ValueError>([] { SuppressTokensAtBeginLogitsProcessor({-1}, 1, 5); }),
              HasSubstr("begin_suppress_tokens holds -1"));
}

}  // namespace
}  // namespace kvcache::testing
