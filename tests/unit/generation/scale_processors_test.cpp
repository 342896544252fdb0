// Scores rescaled, and those that are no numbers.
#include "kvcache/generation/scale_processors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/processors.h"

namespace kvcache::testing {
namespace {

TEST(InfNanRemove, KeepsTheLimitsOfTheDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor scores = at::tensor({NAN, INFINITY, -INFINITY, 2.F}).unsqueeze(0).to(dtype);
    const at::Tensor after = InfNanRemoveLogitsProcessor().process(texts({{1}}), scores);
    const double largest = dtype == at::kHalf    ? 65504
                           : dtype == at::kFloat ? std::numeric_limits<float>::max()
                                                 : 0x1.FEp127;
    EXPECT_EQ(after[0][0].item<double>(), 0);
    EXPECT_EQ(after[0][1].item<double>(), largest);
    EXPECT_EQ(after[0][2].item<double>(), -largest);
    EXPECT_EQ(after[0][3].item<double>(), 2);
  }
}

TEST(LogitNormalization, SumsInFloat32) {
  const at::Tensor scores = at::zeros({1, 4096}, at::kHalf);
  const at::Tensor after = LogitNormalization().process(texts({{1}}), scores);
  EXPECT_EQ(after.scalar_type(), at::kHalf);
  EXPECT_TRUE(after.eq(at::tensor(-std::log(4096.F)).to(at::kHalf)).all().item<bool>());
}

}  // namespace
}  // namespace kvcache::testing
