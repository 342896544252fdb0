// The repetition penalty by known cases.
#include "kvcache/generation/repetition_processors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/processors.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

TEST(RepetitionPenalty, F35OnceForEachIdAndBySign) {
  constexpr float kGone = -INFINITY;
  const at::Tensor scores = at::tensor({2.F, -2.F, kGone, 4.F}).unsqueeze(0);
  const at::Tensor after =
      RepetitionPenaltyLogitsProcessor(2).process(texts({{0, 1, 2, 2}}), scores);
  EXPECT_TRUE(after.equal(at::tensor({1.F, -4.F, kGone, 4.F}).unsqueeze(0))) << after;
}

TEST(RepetitionPenalty, F34IgnoresPadding) {
  const at::Tensor scores = at::linspace(-2, 2, 64).unsqueeze(0);
  const at::Tensor ids = ids_tensor({{40, 40, 40, 40, 40, 40, 12, 13, 14}});
  const TokenRows padded{ids, ids.ne(40)};
  RepetitionPenaltyLogitsProcessor penalty(1.5);
  EXPECT_TRUE(
      penalty.process(padded, scores).equal(penalty.process(texts({{12, 13, 14}}), scores)));
}

TEST(RepetitionPenalty, LeavesOutIdsThatHaveNoScore) {
  const at::Tensor scores = at::tensor({1.F, 2.F}).unsqueeze(0);
  const at::Tensor after = RepetitionPenaltyLogitsProcessor(2).process(texts({{1, 2, 9}}), scores);
  EXPECT_TRUE(after.equal(at::tensor({1.F, 1.F}).unsqueeze(0))) << after;
}

}  // namespace
}  // namespace kvcache::testing
