// Codecs over turned states.

#include "kvcache/codec/rotated_codec.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "kvcache/codec/fp8_codec.h"
#include "kvcache/codec/int_codec.h"
#include "kvcache/codec/quanto_codec.h"
#include "kvcache/core/packing.h"
#include "kvcache/core/rotation.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::difference;
using ::testing::HasSubstr;
using testing::refusal;

at::Tensor decoded(const Codec& codec, const at::Tensor& states) {
  const PackedFormat format = codec.format(states.size(3), states.scalar_type());
  return unpack(codec.encode(states, format, {}), states.scalar_type());
}

TEST(Rotation, IsTheHadamardMatrixOfTheLargestPowerOfTwo) {
  EXPECT_EQ(rotation_size(64), 64);
  EXPECT_EQ(rotation_size(80), 16);
  EXPECT_EQ(rotation_size(96), 32);
  EXPECT_EQ(rotation_size(67), 1);
  // Of size 4: each row and column of 1 and -1, halved.
  const at::Tensor right =
      at::tensor({1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1}, at::kFloat)
          .view({4, 4})
          .div(2);
  EXPECT_TRUE(at::equal(rotated(at::eye(4)), right));
  const at::Tensor blocks = rotated(at::eye(12));
  EXPECT_TRUE(at::equal(blocks.narrow(0, 4, 4).narrow(1, 4, 4), right));
  EXPECT_EQ(blocks.narrow(0, 4, 4).narrow(1, 0, 4).abs().max().item<float>(), 0);
}

TEST(Rotation, IsItsOwnInverseAndKeepsProducts) {
  at::manual_seed(1);
  for (const std::int64_t dim : {1, 2, 64, 67, 80, 96, 256}) {
    const at::Tensor keys = at::randn({2, 3, 5, dim}), queries = at::randn({2, 3, 1, dim});
    EXPECT_LE(difference(rotated(rotated(keys)), keys), 1e-5);
    EXPECT_LE(difference(rotated(queries).matmul(rotated(keys).mT()), queries.matmul(keys.mT())),
              1e-4);
  }
}

TEST(RotatedCodec, ComesBackAsItWasWithinTheOtherCodecsError) {
  at::manual_seed(2);
  const at::Tensor states = at::randn({2, 2, 64, 64});
  EXPECT_LE(
      difference(decoded(RotatedCodec(std::make_shared<QuantoCodec>(AffineCodecOptions{.bits = 8})),
                         states),
                 states),
      0.1);
  EXPECT_LE(difference(decoded(RotatedCodec(std::make_shared<IntCodec>(IntCodecOptions{})), states),
                       states),
            0.1);
  EXPECT_LE(difference(decoded(RotatedCodec(std::make_shared<Fp8Codec>()), states), states), 1);
}

// What rotation is for: a few channels far out of the others.
TEST(RotatedCodec, OutlyingChannelsCostLess) {
  at::manual_seed(3);
  at::Tensor states = at::randn({1, 2, 128, 64});
  states.select(3, 5).mul_(40);
  const auto plain = std::make_shared<QuantoCodec>(AffineCodecOptions{.bits = 4});
  const auto mean_error = [&](const Codec& codec) {
    return decoded(codec, states).sub(states).square().mean().item<double>();
  };
  EXPECT_LT(mean_error(RotatedCodec(plain)), 0.5 * mean_error(*plain));
}

TEST(RotatedCodec, RefusesWhatTheOtherCodecWould) {
  EXPECT_THAT(refusal<ValueError>([] { RotatedCodec(nullptr); }), HasSubstr("null"));
  const RotatedCodec codec(
      std::make_shared<QuantoCodec>(AffineCodecOptions{.group_size = 8, .over_tokens = true}));
  EXPECT_THAT(refusal<ValueError>([&] {
                decoded(codec, at::ones({1, 1, 12, 4}));
              }),
              HasSubstr("a multiple of 8 tokens"));
}

}  // namespace
}  // namespace kvcache
