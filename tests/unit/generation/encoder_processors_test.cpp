// What goes by the encoder's ids: its padding, and several rows for each of its own.
#include "kvcache/generation/encoder_processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/processors.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;

// Padding on either side, as an encoder takes it.
TokenRows padded_encoder() {
  return {ids_tensor({{1, 2, 7, 7}, {7, 3, 1, 4}}),
          ids_tensor({{1, 1, 0, 0}, {0, 1, 1, 1}}).to(at::kBool)};
}

TEST(EncoderRepetitionPenalty, IgnoresPaddingAndServesNeighbours) {
  EncoderRepetitionPenaltyLogitsProcessor penalty(2, padded_encoder());
  const at::Tensor scores = at::ones({4, 8});
  scores.select(1, 1).fill_(-1);
  const at::Tensor first = at::tensor({1.F, -.5F, 2.F, 1.F, 1.F, 1.F, 1.F, 1.F});
  const at::Tensor second = at::tensor({1.F, -.5F, 1.F, 2.F, 2.F, 1.F, 1.F, 1.F});
  const at::Tensor after = penalty.process(texts({{1}, {1}, {1}, {1}}), scores);
  EXPECT_TRUE(after.equal(at::stack({first, first, second, second}))) << after;
  const at::Tensor two = penalty.process(texts({{1}, {1}}), scores.narrow(0, 0, 2));
  EXPECT_TRUE(two.equal(at::stack({first, second}))) << "fewer rows than before";
}

TEST(EncoderNoRepeatNGram, IgnoresPaddingOnBothSides) {
  EncoderNoRepeatNGramLogitsProcessor twice(2, padded_encoder());
  const TokenRows text{ids_tensor({{1, 7}, {7, 1}}), ids_tensor({{1, 0}, {0, 1}}).to(at::kBool)};
  const at::Tensor after = twice.process(text, at::zeros({2, 8}));
  EXPECT_EQ(after.isinf().nonzero().eq(ids_tensor({{0, 2}, {1, 4}})).sum().item<int>(), 4) << after;
}

TEST(EncoderProcessors, RefuseWhatCannotWork) {
  EXPECT_THAT(refusal<ValueError>([] { EncoderNoRepeatNGramLogitsProcessor(0, padded_encoder()); }),
              HasSubstr("encoder_no_repeat_ngram_size must be above 0, but is 0"));
  EXPECT_THAT(
      refusal<ValueError>([] { EncoderRepetitionPenaltyLogitsProcessor(-1, padded_encoder()); }),
      HasSubstr("encoder_repetition_penalty must be above 0 and a normal float32, but is -1"));
  EncoderRepetitionPenaltyLogitsProcessor penalty(2, padded_encoder());
  EXPECT_THAT(refusal<ValueError>([&] {
                penalty.process(texts({{1}}), at::zeros({3, 8}));
              }),
              HasSubstr("3 rows, which is no multiple of the encoder's 2"));
}

}  // namespace
}  // namespace kvcache::testing
