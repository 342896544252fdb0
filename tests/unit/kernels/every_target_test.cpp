// Kernels are compiled for several kinds of vectors, of which a processor runs the widest that it
// has. Here it runs each that it can.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/kernels/few_rows.h"
#include "tests/support/segment_attention.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> bits;
  for (std::uint64_t left = static_cast<std::uint64_t>(hwy::SupportedTargets()); left != 0;
       left &= left - 1) {
    bits.push_back(static_cast<std::int64_t>(left & (~left + 1)));
  }
  return bits;
}

class EveryTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(EveryTarget, AttendsAsThePlainForm) {
  testing::expect_plain_form_at_every_length(at::kCPU);
  testing::expect_plain_form_at_the_edges(at::kCPU);
  testing::expect_plain_form_after_crops(at::kCPU);
}

TEST_P(EveryTarget, MultipliesAsInFloat64) {
  for (const std::int64_t width : {1, 5, 16, 63, 576}) {
    const at::Tensor x = at::randn({3, width}), weight = at::randn({130, width});
    const at::Tensor exact = x.to(at::kDouble).mm(weight.t().to(at::kDouble));
    const at::Tensor result = detail::few_row_product(x, weight.t(), {});
    EXPECT_LE(testing::difference(result.to(at::kDouble), exact), 1e-6 * double(width));
  }
}

INSTANTIATE_TEST_SUITE_P(Highway, EveryTarget, ::testing::ValuesIn(targets()),
                         [](const auto& target) {
                           return std::string(hwy::TargetName(target.param));
                         });

}  // namespace
}  // namespace kvcache
