// Whole numbers with a scale for each token and head.

#include "kvcache/codec/int_codec.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kvcache/core/packing.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::difference;
using ::testing::HasSubstr;
using testing::refusal;

PackedStates encoded(const IntCodec& codec, const at::Tensor& states) {
  return codec.encode(states, codec.format(states.size(3), states.scalar_type()), {});
}

at::Tensor decoded(const IntCodec& codec, const at::Tensor& states) {
  return unpack(encoded(codec, states), states.scalar_type());
}

TEST(IntCodec, CodesAreWholeStepsFromZero) {
  const IntCodec codec({.bits = 4});
  const at::Tensor states =
      at::tensor({-14.0, 2.9, 0.0, 14.0, -3.1}, at::kFloat).view({1, 1, 1, 5});
  const PackedStates packed = encoded(codec, states);
  EXPECT_EQ(packed.scales.item<float>(), 2);
  EXPECT_FALSE(packed.offsets.defined());
  EXPECT_TRUE(at::equal(unpack_codes(packed.codes, 4, 5).flatten(),
                        at::tensor({1, 9, 8, 15, 6}, at::kByte)));
  EXPECT_TRUE(at::equal(unpack(packed, at::kFloat).flatten(),
                        at::tensor({-14.0, 2.0, 0.0, 14.0, -4.0}, at::kFloat)));
}

TEST(IntCodec, ErrorsAreHalfAStepAtMost) {
  at::manual_seed(1);
  for (const std::int64_t bits : {4, 8}) {
    for (const std::int64_t head_dim : {1, 8, 17, 64, 80, 128}) {
      const at::Tensor states = at::randn({2, 3, 5, head_dim}).pow(3);
      const PackedStates packed = encoded(IntCodec({.bits = bits}), states);
      const at::Tensor error = unpack(packed, at::kFloat).sub(states).abs();
      EXPECT_TRUE(error.le(packed.scales.mul(0.5).add(1e-5)).all().item<bool>())
          << bits << " bits of " << head_dim;
      const double most = bits == 4 ? 7 : 127;
      EXPECT_LE(difference(packed.scales.mul(most), states.abs().amax(-1, true)), 1e-5);
    }
  }
}

TEST(IntCodec, ScalesTake16BitsForStatesOf16AndDoNotOverflow) {
  const IntCodec codec({.bits = 8});
  const at::Tensor states = at::linspace(-60000, 60000, 16).to(at::kHalf).view({1, 1, 1, 16});
  EXPECT_EQ(encoded(codec, states).scales.scalar_type(), at::kHalf);
  EXPECT_LE(difference(decoded(codec, states), states), 60000.0 / 127 / 2 + 64);
  const IntCodec narrow({.bits = 4, .parameter_dtype = at::kHalf});
  const at::Tensor large = at::tensor({-1e30F, 1e30F, 0.0F}).view({1, 1, 1, 3});
  EXPECT_TRUE(decoded(narrow, large).isfinite().all().item<bool>());
}

// F59
TEST(IntCodec, ZerosAreExactAndWhatIsNotFiniteHarmsItsOwnTokenAndHeadAlone) {
  const IntCodec codec({.bits = 8});
  EXPECT_EQ(difference(decoded(codec, at::zeros({1, 2, 3, 8})), at::zeros({1, 2, 3, 8})), 0);
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    at::Tensor states = at::ones({1, 2, 3, 8});
    states[0][1][2][4] = bad;
    const at::Tensor result = decoded(codec, states);
    EXPECT_EQ(result.isfinite().logical_not().sum().item<std::int64_t>(), 8);
    EXPECT_TRUE(result[0][1][2].isfinite().logical_not().all().item<bool>());
  }
}

TEST(IntCodec, OtherOptionsAreRefused) {
  EXPECT_THAT(refusal<ValueError>([] { IntCodec({.bits = 2}); }),
              AllOf(HasSubstr("nbits is 2"), HasSubstr("int takes 4 or 8")));
  EXPECT_THAT(refusal<ValueError>([] { IntCodec({.parameter_dtype = at::kBFloat16}); }),
              AllOf(HasSubstr("bfloat16"), HasSubstr("float32 or float16")));
  EXPECT_THAT(refusal<ValueError>([] { IntCodec({}).format(0, at::kFloat); }),
              HasSubstr("the head size is 0"));
}

}  // namespace
}  // namespace kvcache
