// Cut-offs by entropy: ties, everything kept, narrow dtypes, small vocabularies.
#include "kvcache/generation/entropy_warpers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/processors.h"

namespace kvcache::testing {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

std::int64_t kept(LogitsProcessor&& warper, const at::Tensor& scores) {
  return warper.process(texts({{0}}), scores).isfinite().sum().item<std::int64_t>();
}

TEST(TopH, KeepsAllOfProbabilityAboveZeroAtOne) {
  EXPECT_EQ(kept(TopHLogitsWarper(1), at::linspace(-3, 3, 37).unsqueeze(0)), 37);
  EXPECT_EQ(kept(TopHLogitsWarper(1), at::tensor({1.F, -INFINITY, 0.F, -200.F}).unsqueeze(0)), 2);
}

TEST(TopH, LooksAtAHundredTokens) {
  for (const at::ScalarType dtype : kDtypes) {
    EXPECT_EQ(kept(TopHLogitsWarper(1), at::zeros({1, 4096}, dtype)), 100) << dtype;
    EXPECT_EQ(kept(TopHLogitsWarper(0.505), at::zeros({1, 4096}, dtype)), 50) << dtype;
  }
}

TEST(Typical, EqualTokensAreEquallyTypical) {
  for (const at::ScalarType dtype : kDtypes) {
    EXPECT_EQ(kept(TypicalLogitsWarper(0.1), at::zeros({1, 4096}, dtype)), 4096) << dtype;
  }
}

TEST(Typical, SumsInFloat32) {
  // 2048 tokens of about the entropy share 0.999 of all; a second half is far from it.
  const at::Tensor scores = at::cat({at::zeros({1, 2048}), at::full({1, 2048}, -7.0)}, 1);
  for (const at::ScalarType dtype : kDtypes) {
    EXPECT_EQ(kept(TypicalLogitsWarper(0.99), scores.to(dtype)), 2048) << dtype;
  }
}

TEST(Eta, IsEpsilonWhereTheDistributionIsSharp) {
  // Entropy near 0: the limit is epsilon, not its root.
  const at::Tensor sharp = at::tensor({0.985F, 0.01F, 0.005F}).log().unsqueeze(0);
  EXPECT_EQ(kept(EtaLogitsWarper(0.004), sharp), 3);
  EXPECT_EQ(kept(EtaLogitsWarper(0.009), sharp), 2);
  // Of n equal tokens it is sqrt(epsilon) / n, below 1 / n: all stay.
  for (const at::ScalarType dtype : kDtypes) {
    EXPECT_EQ(kept(EtaLogitsWarper(0.9), at::zeros({1, 4096}, dtype)), 4096) << dtype;
  }
}

TEST(EntropyWarpers, KeepNoFewerThanOne) {
  EXPECT_THROW(TypicalLogitsWarper(0.5, 0), ValueError);
  EXPECT_THROW(EtaLogitsWarper(0.5, 0), ValueError);
}

}  // namespace
}  // namespace kvcache::testing
