// The parts that models are made of, each against its definition.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "kvcache/core/errors.h"
#include "kvcache/models/activations.h"
#include "kvcache/models/linear.h"
#include "kvcache/models/rms_norm.h"
#include "kvcache/models/rope.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

TEST(Linear, MultipliesByTheTransposedWeight) {
  const at::Tensor weight = at::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}).view({3, 2});
  const at::Tensor x = at::tensor({10.0F, 1.0F}).view({1, 2});
  EXPECT_TRUE(Linear(weight)(x).equal(at::tensor({12.0F, 34.0F, 56.0F}).view({1, 3})));
  EXPECT_TRUE(Linear(weight, at::tensor({1.0F, 0.0F, -1.0F}))(x).equal(
      at::tensor({13.0F, 34.0F, 55.0F}).view({1, 3})));
}

TEST(RmsNorm, DividesByTheRootMeanSquare) {
  const at::Tensor x = at::tensor({1.0F, -7.0F, 5.0F, 5.0F}).view({2, 2});
  const RmsNorm norm(at::tensor({2.0F, 1.0F}), 0);
  EXPECT_CLOSE(norm(x), at::tensor({0.4F, -1.4F, 2.0F, 1.0F}).view({2, 2}), 1e-6);
  const RmsNorm padded(at::ones({2}), 75);
  EXPECT_CLOSE(padded(x), x / at::tensor({10.0F, 10.0F}).view({2, 1}), 1e-6);
  EXPECT_TRUE(x.equal(at::tensor({1.0F, -7.0F, 5.0F, 5.0F}).view({2, 2})));  // not in place
}

TEST(RmsNorm, SquaresOfHalfPrecisionDoNotOverflow) {
  const at::Tensor x = at::tensor({300.0F, -400.0F}).to(at::kHalf);
  const at::Tensor y = RmsNorm(at::ones({2}, at::kHalf), 1e-5)(x);
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  EXPECT_CLOSE(y, x.to(at::kFloat) / std::sqrt(125000.0), 1e-3);
}

TEST(RmsNorm, ZeroCenteredWeighsByOneMoreInFloat32) {
  const at::Tensor x = at::tensor({1.0F, -7.0F}), weight = at::tensor({1.0F, -0.5F});
  EXPECT_CLOSE(RmsNorm::zero_centered(weight, 0)(x), at::tensor({0.4F, -0.7F}), 1e-6);
  const at::Tensor narrow = RmsNorm::zero_centered(weight.to(at::kHalf), 0)(x.to(at::kHalf));
  EXPECT_TRUE(narrow.equal(at::tensor({0.4F, -0.7F}).to(at::kHalf)));
}

TEST(RmsNorm, MayHaveNoWeight) {
  EXPECT_CLOSE(RmsNorm::unweighted(0, at::kCPU)(at::tensor({1.0F, -7.0F})),
               at::tensor({0.2F, -1.4F}), 1e-6);
}

// Each pair (x[i], x[i + half]) turns by position * frequency i.
TEST(Rope, RotatesPairsByTheirAngle) {
  const Rope rope({.theta = 100}, 4, at::kCPU);
  EXPECT_CLOSE(rope.inverse_frequencies(), at::tensor({1.0F, 0.1F}), 1e-7);
  const at::Tensor heads = at::tensor({1.0F, 2.0F, 3.0F, 4.0F}).view({1, 1, 1, 4});
  const at::Tensor turned = rotate(heads, rope.at(ids_tensor({{3}}), at::kFloat)).flatten();
  for (const int pair : {0, 1}) {
    const double angle = pair == 0 ? 3 : 0.3, a = pair + 1, b = pair + 3;
    EXPECT_NEAR(turned[pair].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-6);
    EXPECT_NEAR(turned[pair + 2].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-6);
  }
}

TEST(Rope, PositionZeroLeavesHeadsAsTheyAre) {
  const at::Tensor heads = at::randn({2, 1, 3, 8});
  const Rope rope({}, 8, at::kCPU);
  EXPECT_TRUE(rotate(heads, rope.at(ids_tensor({{0}, {0}}), at::kFloat)).equal(heads));
}

TEST(Rope, AnglesAreFloat32InNarrowDtypesToo) {
  const Rope rope({}, 8, at::kCPU);
  const at::Tensor far = ids_tensor({{100'003}});
  const Rotation narrow = rope.at(far, at::kBFloat16), wide = rope.at(far, at::kFloat);
  EXPECT_EQ(narrow.cos.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(narrow.cos.equal(wide.cos.to(at::kBFloat16)));
  EXPECT_TRUE(narrow.sin.equal(wide.sin.to(at::kBFloat16)));
}

TEST(Rope, LinearScalingSlowsEveryFrequency) {
  const Rope plain({}, 8, at::kCPU), slow({.type = "linear", .factor = 4}, 8, at::kCPU);
  EXPECT_CLOSE(slow.inverse_frequencies(), plain.inverse_frequencies() / 4, 1e-7);
}

TEST(Rope, Llama3KeepsShortWavelengthsAndSlowsLongOnes) {
  const RopeConfig config{.type = "llama3",
                          .theta = 10000,
                          .factor = 8,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_max_position_embeddings = 64};
  const at::Tensor plain = Rope({}, 16, at::kCPU).inverse_frequencies();
  const at::Tensor ratio = Rope(config, 16, at::kCPU).inverse_frequencies() / plain;
  const at::Tensor wavelengths = 2 * M_PI / plain;
  for (std::int64_t i = 0; i < 8; ++i) {
    const auto wavelength = wavelengths[i].item<double>(), found = ratio[i].item<double>();
    const double share = (64 / wavelength - 1) / 3;  // 1 at 16 tokens, 0 at 64
    const double expected = wavelength < 16   ? 1
                            : wavelength > 64 ? 1.0 / 8
                                              : (1 - share) / 8 + share;
    EXPECT_NEAR(found, expected, 1e-5) << "wavelength " << wavelength;
  }
  EXPECT_GT(ratio[2].item<double>(), ratio[3].item<double>());
}

TEST(Rope, APartOfEachHeadMayTurn) {
  const Rope rope({.theta = 100, .partial_rotary_factor = 0.5}, 8, at::kCPU);
  const at::Tensor heads = at::randn({1, 1, 2, 8});
  const Rotation rotation = rope.at(ids_tensor({{3}}), at::kFloat);
  const at::Tensor turned = rotate(heads, rotation);
  EXPECT_CLOSE(turned.narrow(-1, 0, 4), rotate(heads.narrow(-1, 0, 4), rotation), 1e-6);
  EXPECT_TRUE(turned.narrow(-1, 4, 4).equal(heads.narrow(-1, 4, 4)));
}

TEST(Rope, NeighboursMayTurnInPlaceOfHalves) {
  const Rope rope({.theta = 100}, 4, at::kCPU);
  const Rotation rotation = rope.at(ids_tensor({{3}}), at::kFloat);
  const at::Tensor halves = at::tensor({1.0F, 2.0F, 3.0F, 4.0F}).view({1, 1, 1, 4});
  const at::Tensor neighbours = at::tensor({1.0F, 3.0F, 2.0F, 4.0F}).view({1, 1, 1, 4});
  const at::Tensor order = at::tensor({0, 2, 1, 3}, at::kLong);
  EXPECT_CLOSE(rotate_interleaved(neighbours, rotation),
               rotate(halves, rotation).index_select(-1, order), 1e-6);
  EXPECT_EQ(rotate_interleaved(neighbours.to(at::kBFloat16), rotation).scalar_type(),
            at::kBFloat16);
}

RopeConfig growing_rope() {
  return {.type = "dynamic", .factor = 2, .original_max_position_embeddings = 8};
}

TEST(Rope, RegimesStandForLengthsWithEqualFrequencies) {
  EXPECT_EQ(Rope({}, 8, at::kCPU).regime(1'000'000), 0);
  const Rope dynamic(growing_rope(), 8, at::kCPU);
  EXPECT_EQ(dynamic.regime(8), 0);
  EXPECT_EQ(dynamic.regime(9), 9);
  EXPECT_EQ(dynamic.regime(10), 10);
  const Rope longrope({.type = "longrope",
                       .original_max_position_embeddings = 8,
                       .short_factor = {1, 1},
                       .long_factor = {2, 4}},
                      4, at::kCPU);
  EXPECT_EQ(longrope.regime(8), 0);
  EXPECT_EQ(longrope.regime(9), 9);
  EXPECT_EQ(longrope.regime(500), 9);
  EXPECT_CLOSE(longrope.inverse_frequencies(9) * at::tensor({2.0F, 4.0F}),
               longrope.inverse_frequencies(), 1e-7);
}

TEST(Rope, EachRowHasItsOwnRegime) {
  const Rope rope(growing_rope(), 8, at::kCPU);
  const at::Tensor positions = ids_tensor({{3, 4}, {8, 9}});
  const Rotation both = rope.at(positions, at::kFloat, {0, 10});
  for (const auto& [row, regime] : {std::pair{0, 0}, std::pair{1, 10}}) {
    const Rotation alone = rope.at(positions.narrow(0, row, 1), at::kFloat, {regime});
    EXPECT_TRUE(both.cos.narrow(0, row, 1).equal(alone.cos)) << row;
    EXPECT_TRUE(both.sin.narrow(0, row, 1).equal(alone.sin)) << row;
  }
  EXPECT_FALSE(rope.at(positions, at::kFloat, {0, 11}).cos.equal(both.cos));
}

TEST(Rope, WhatDoesNotFitATypeIsRefused) {
  EXPECT_THROW(Rope({.type = "longrope", .short_factor = {1}, .long_factor = {1, 2}}, 4, at::kCPU),
               ValueError);
  EXPECT_THROW(Rope(growing_rope(), 2, at::kCPU), ValueError);
  EXPECT_THROW(Rope({.partial_rotary_factor = 0.3}, 10, at::kCPU), ValueError);
}

TEST(Rope, UnknownTypesAreRefused) {
  EXPECT_THROW(Rope({.type = "wavy"}, 8, at::kCPU), ValueError);
}

TEST(Activations, ByName) {
  const at::Tensor x = at::linspace(-3, 3, 13);
  const auto apply = [&](const char* name) { return find_activation(name)(x.clone()); };
  EXPECT_CLOSE(apply("silu"), x * at::sigmoid(x), 1e-6);
  EXPECT_CLOSE(apply("swish"), x * at::sigmoid(x), 1e-6);
  EXPECT_CLOSE(apply("relu"), x.clamp_min(0), 0);
  EXPECT_CLOSE(apply("gelu"), x * 0.5 * (1 + at::erf(x / std::sqrt(2.0))), 1e-6);
  const at::Tensor inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3));
  EXPECT_CLOSE(apply("gelu_pytorch_tanh"), x * 0.5 * (1 + at::tanh(inner)), 1e-6);
  EXPECT_CLOSE(apply("gelu_new"), x * 0.5 * (1 + at::tanh(inner)), 1e-6);
  EXPECT_THROW(find_activation("snake"), ValueError);
}

TEST(Activations, WorkInPlace) {
  at::Tensor x = at::linspace(-3, 3, 13);
  EXPECT_TRUE(find_activation("silu")(x).is_same(x));
}

}  // namespace
}  // namespace kvcache::testing
