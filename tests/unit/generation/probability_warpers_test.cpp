// Cut-offs by rank and probability: ties, exact steps, narrow dtypes, small vocabularies.
#include "kvcache/generation/probability_warpers.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/processors.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

std::int64_t kept(LogitsProcessor&& warper, const at::Tensor& scores) {
  return warper.process(texts({{0}}), scores).isfinite().sum().item<std::int64_t>();
}

at::Tensor logs(const std::vector<float>& probabilities) {
  return at::tensor(probabilities).log().unsqueeze(0);
}

TEST(TopK, KeepsTiesAndSmallVocabularies) {
  const at::Tensor scores = at::tensor({1.F, 3.F, 2.F, 2.F, 0.F}).unsqueeze(0);
  EXPECT_EQ(kept(TopKLogitsWarper(2), scores), 3);
  EXPECT_EQ(kept(TopKLogitsWarper(3), scores), 3);
  EXPECT_EQ(kept(TopKLogitsWarper(100), scores), 5);
  EXPECT_EQ(kept(TopKLogitsWarper(1, 4), scores), 4);
}

TEST(TopP, F45ExactlyOnAStep) {
  const at::Tensor three = logs({0.5F, 0.3F, 0.2F});
  EXPECT_EQ(kept(TopPLogitsWarper(0.5), three), 1);
  EXPECT_EQ(kept(TopPLogitsWarper(0.79), three), 2);
  EXPECT_EQ(kept(TopPLogitsWarper(0.8), three), 2);
  EXPECT_EQ(kept(TopPLogitsWarper(0.81), three), 3);
  EXPECT_EQ(kept(TopPLogitsWarper(0.5), logs({0.5F, 0.5F})), 1);
}

TEST(TopP, F46SumsInFloat32) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_EQ(kept(TopPLogitsWarper(0.5), at::zeros({1, 4096}, dtype)), 2048) << dtype;
  }
}

TEST(TopP, ComesAfterTopKOnWhatThatLeft) {
  // Of the two best alone, the first has 0.4 / 0.6: one is enough.
  const at::Tensor scores = logs({0.4F, 0.2F, 0.1F, 0.1F, 0.1F, 0.1F});
  const at::Tensor two = TopKLogitsWarper(2).process(texts({{0}}), scores);
  EXPECT_EQ(kept(TopPLogitsWarper(0.5), scores), 2);
  EXPECT_EQ(kept(TopPLogitsWarper(0.5), two), 1);
}

TEST(EpsilonAndMinP, KeepWhatIsExactlyOnTheStep) {
  const at::Tensor scores = logs({0.5F, 0.25F, 0.25F});
  EXPECT_EQ(kept(EpsilonLogitsWarper(0.25), scores), 3);
  EXPECT_EQ(kept(EpsilonLogitsWarper(0.26), scores), 1);
  EXPECT_EQ(kept(MinPLogitsWarper(0.5), scores), 3);
  EXPECT_EQ(kept(MinPLogitsWarper(0.51), scores), 1);
}

TEST(Epsilon, KeepsEqualBestOnesWhereNoneIsLikelyEnough) {
  EXPECT_EQ(kept(EpsilonLogitsWarper(0.9), at::tensor({1.F, 1.F, 0.F}).unsqueeze(0)), 2);
  EXPECT_EQ(kept(EpsilonLogitsWarper(0.001), at::zeros({1, 4096}, at::kHalf)), 4096);
}

TEST(ProbabilityWarpers, KeepNoFewerThanOne) {
  EXPECT_THROW(TopKLogitsWarper(1, 0), ValueError);
  EXPECT_THROW(TopPLogitsWarper(1, 0), ValueError);
  EXPECT_THROW(MinPLogitsWarper(1, 0), ValueError);
  EXPECT_THROW(EpsilonLogitsWarper(0.5, 0), ValueError);
}

}  // namespace
}  // namespace kvcache::testing
