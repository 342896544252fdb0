// Biased and forbidden sequences: padding, -inf, and what is refused.
#include "kvcache/generation/sequence_processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/processors.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;
using Biases = std::vector<SequenceBias>;

TEST(SequenceBias, MatchesARowsLastTokensPaddingOrNot) {
  SequenceBiasLogitsProcessor bias(Biases{{{1, 2, 3}, 5}, {{2, 3}, 1}, {{0, 3}, 7}, {{4}, -1}}, 5);
  // Padding before, between and behind the tokens 1, 2; a row with 2 alone; and one with pads 0.
  const TokenRows text{
      ids_tensor({{0, 0, 1, 2}, {1, 0, 0, 2}, {1, 2, 0, 0}, {0, 0, 0, 2}, {2, 0, 0, 0}}),
      ids_tensor({{0, 0, 1, 1}, {1, 0, 0, 1}, {1, 1, 0, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}})
          .to(at::kBool)};
  const at::Tensor after = bias.process(text, at::zeros({5, 5}));
  const at::Tensor both = at::tensor({0.F, 0.F, 0.F, 6.F, -1.F});
  const at::Tensor short_one = at::tensor({0.F, 0.F, 0.F, 1.F, -1.F});
  EXPECT_TRUE(after.equal(at::stack({both, both, both, short_one, short_one}))) << after;
}

TEST(SequenceBias, ForbidsWithMinusInfinityWhateverElseIsAdded) {
  SequenceBiasLogitsProcessor bias(Biases{{{3}, -INFINITY}, {{2, 3}, 100}}, 5);
  const at::Tensor after = bias.process(texts({{1, 2}}), at::zeros({1, 5}));
  EXPECT_EQ(after[0][3].item<float>(), -INFINITY);
  EXPECT_EQ(after.isfinite().sum().item<int>(), 4);
}

TEST(NoBadWords, LeavesLoneEndTokensAlone) {
  NoBadWordsLogitsProcessor words({{2}, {4}, {1, 2}}, {2}, 5);
  const at::Tensor after = words.process(texts({{0}, {1}}), at::zeros({2, 5}));
  EXPECT_TRUE(after.isinf().nonzero().equal(ids_tensor({{0, 4}, {1, 2}, {1, 4}}))) << after;
}

TEST(SequenceProcessors, RefuseWhatCannotWork) {
  const auto biased = [](const Biases& biases) {
    return refusal<ValueError>([&] { SequenceBiasLogitsProcessor(biases, 5); });
  };
  EXPECT_THAT(biased({}), HasSubstr("sequence_bias holds no sequence"));
  EXPECT_THAT(biased({{{1}, 1}, {{}, 1}}), HasSubstr("sequence_bias holds an empty sequence"));
  EXPECT_THAT(biased({{{1, 5}, 1}}), HasSubstr("sequence_bias holds 5, which is no token of a "
                                               "vocabulary of 5"));
  EXPECT_THAT(biased({{{-1}, 1}}), HasSubstr("sequence_bias holds -1"));
  EXPECT_THAT(biased({{{1}, NAN}}), HasSubstr("sequence_bias has the bias nan"));
  EXPECT_THAT(biased({{{1}, INFINITY}}), HasSubstr("sequence_bias has the bias inf"));
  const auto bad = [](const Rows& words) {
    return refusal<ValueError>([&] { NoBadWordsLogitsProcessor(words, {2}, 5); });
  };
  EXPECT_THAT(bad({}), HasSubstr("bad_words_ids holds no sequence"));
  EXPECT_THAT(bad({{1}, {}}), HasSubstr("bad_words_ids holds an empty sequence"));
  EXPECT_THAT(bad({{2}}), HasSubstr("bad_words_ids holds nothing but lone end tokens"));
  EXPECT_THAT(bad({{7, 1}}), HasSubstr("bad_words_ids holds 7"));
}

}  // namespace
}  // namespace kvcache::testing
