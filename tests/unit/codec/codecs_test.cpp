// What the codecs make of numbers: as hqq and optimum-quanto where groups are equal, and right
// where they are wrong (F56 to F60).

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/codec/fp8_codec.h"
#include "kvcache/codec/hqq_codec.h"
#include "kvcache/codec/quanto_codec.h"
#include "kvcache/core/packing.h"
#include "tests/support/codec_values.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::codec_values;
using testing::difference;
using ::testing::HasSubstr;
using testing::listed;
using testing::refusal;
using Numbers = std::vector<std::int64_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::unique_ptr<Codec> make(const std::string& backend, const AffineCodecOptions& options) {
  if (backend == "fp8") return std::make_unique<Fp8Codec>();
  if (backend == "hqq") return std::make_unique<HqqCodec>(options);
  return std::make_unique<QuantoCodec>(options);
}

PackedStates encoded(const Codec& codec, const at::Tensor& states, const at::Tensor& before = {}) {
  return codec.encode(states, codec.format(states.size(3), states.scalar_type()), before);
}

at::Tensor decoded(const Codec& codec, const at::Tensor& states) {
  return unpack(encoded(codec, states), states.scalar_type());
}

at::Tensor floats(const nlohmann::json& list, at::IntArrayRef shape) {
  return at::tensor(list.get<std::vector<double>>(), at::kDouble).to(at::kFloat).reshape(shape);
}

at::Tensor codes_of(const nlohmann::json& hex, at::IntArrayRef shape) {
  const auto text = hex.get<std::string>();
  Numbers codes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    codes.push_back(std::stoll(text.substr(i, 2), nullptr, 16));
  }
  return at::tensor(codes, at::kLong).reshape(shape);
}

TEST(Codecs, CodesScalesAndOffsetsAreTheOracles) {
  std::ifstream file(std::filesystem::path(KVCACHE_TEST_DATA_DIR) / "parity/goldens/codecs.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden.at("cases").size(), 14U);
  for (const auto& entry : golden.at("cases")) {
    SCOPED_TRACE(entry.at("backend").get<std::string>() + " " + entry.at("nbits").dump() +
                 (entry.at("over_tokens").get<bool>() ? " over tokens" : " within tokens"));
    const auto shape = entry.at("shape").get<Numbers>();
    const auto bits = entry.at("nbits").get<std::int64_t>();
    const at::Tensor states = codec_values(shape, entry.at("salt").get<std::int64_t>());
    const auto codec = make(entry.at("backend"), {.bits = bits,
                                                  .group_size = entry.at("group_size"),
                                                  .over_tokens = entry.at("over_tokens")});
    const PackedStates packed = encoded(*codec, states);
    EXPECT_TRUE(at::equal(unpack_codes(packed.codes, bits, shape[3]).to(at::kLong),
                          codes_of(entry.at("codes"), shape)));
    EXPECT_LE(difference(packed.scales, floats(entry.at("scales"), packed.scales.sizes())), 1e-7);
    EXPECT_LE(difference(packed.offsets, floats(entry.at("offsets"), packed.offsets.sizes())),
              2e-6);
    EXPECT_LE(difference(unpack(packed, at::kFloat), floats(entry.at("decoded"), shape)), 4e-6);
  }
}

struct Setting {
  const char* backend;
  std::int64_t bits;
  bool over_tokens;
};

const std::vector<Setting> kSettings = [] {
  std::vector<Setting> settings{{"fp8", 8, true}};
  for (const bool over_tokens : {false, true}) {
    for (const std::int64_t bits : {2, 4, 8}) settings.push_back({"quanto", bits, over_tokens});
    for (const std::int64_t bits : {1, 2, 3, 4, 8}) settings.push_back({"hqq", bits, over_tokens});
  }
  return settings;
}();

class EveryCodec : public ::testing::TestWithParam<Setting> {
 protected:
  std::unique_ptr<Codec> codec(std::int64_t group_size) const {
    const Setting& setting = GetParam();
    return make(
        setting.backend,
        {.bits = setting.bits, .group_size = group_size, .over_tokens = setting.over_tokens});
  }

  // Tokens of a whole number of groups.
  static std::int64_t tokens(const Codec& codec, std::int64_t groups) {
    return groups * codec.format(8, at::kFloat).group_tokens;
  }
};

INSTANTIATE_TEST_SUITE_P(All, EveryCodec, ::testing::ValuesIn(kSettings), [](const auto& tested) {
  return std::string(tested.param.backend) + std::to_string(tested.param.bits) +
         (tested.param.over_tokens ? "OverTokens" : "WithinTokens");
});

// F56: what was packed does not change with what comes after it.
TEST_P(EveryCodec, GroupsDoNotDependOnThoseAfterThem) {
  const auto codec = this->codec(8);
  const std::int64_t half = tokens(*codec, 2);
  const at::Tensor states =
      at::cat({codec_values({2, 2, half, 16}, 1), codec_values({2, 2, half, 16}, 2) * 50}, 2);
  const at::Tensor first = states.narrow(2, 0, half);
  const at::Tensor alone = decoded(*codec, first), together = decoded(*codec, states);
  if (std::string(GetParam().backend) == "hqq") {
    // Its search ends by the mean error of all that is packed at once.
    EXPECT_LE(difference(together.narrow(2, 0, half), first), 1.5 * difference(alone, first));
  } else {
    EXPECT_TRUE(at::equal(together.narrow(2, 0, half), alone));
  }
}

TEST_P(EveryCodec, RowsDoNotTouchEachOther) {
  const auto codec = this->codec(8);
  at::Tensor states = codec_values({3, 2, tokens(*codec, 2), 16}, 3);
  states.select(0, 0).mul_(100);
  states[1][0][0][0] = kNan;
  const at::Tensor together = decoded(*codec, states);
  for (const std::int64_t row : {0, 2}) {
    const at::Tensor alone = decoded(*codec, states.narrow(0, row, 1));
    EXPECT_TRUE(at::equal(together.narrow(0, row, 1), alone)) << row;
  }
}

// F59
TEST_P(EveryCodec, ConstantAndZeroGroupsAreExact) {
  const auto codec = this->codec(8);
  for (const double value : {3.7, -3.7, 0.0}) {
    const at::Tensor states = at::full({1, 2, tokens(*codec, 1), 16}, value);
    EXPECT_LE(difference(decoded(*codec, states), states), 1e-6) << value;
  }
}

TEST_P(EveryCodec, WhatIsNotFiniteHarmsItsOwnGroupAlone) {
  const auto codec = this->codec(8);
  const std::int64_t count = tokens(*codec, 2);
  const at::Tensor states = codec_values({1, 2, count, 16}, 4);
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    at::Tensor spoilt = states.clone();
    spoilt[0][1][0][3] = bad;
    const at::Tensor result = decoded(*codec, spoilt);
    const bool is_float8 = std::string(GetParam().backend) == "fp8";
    const std::int64_t group = is_float8 ? (std::isnan(bad) ? 1 : 0) : 8;
    EXPECT_EQ(result.isfinite().logical_not().sum().item<std::int64_t>(),
              GetParam().over_tokens && !is_float8 ? 8 : group)
        << bad;
    const at::Tensor other = result.select(1, 0);
    EXPECT_LE(difference(other, states.select(1, 0)), 8.0);  // a step of one bit
    EXPECT_TRUE(at::isfinite(other).all().item<bool>());
  }
}

// F58
TEST_P(EveryCodec, HalfPrecisionDoesNotOverflow) {
  const auto codec = this->codec(8);
  const at::Tensor states = at::linspace(-60000, 60000, 16)
                                .repeat({tokens(*codec, 1), 1})
                                .unsqueeze(0)
                                .unsqueeze(0)
                                .to(at::kHalf);
  const at::Tensor mixed = GetParam().over_tokens ? states.clone() : states;
  if (GetParam().over_tokens) mixed.slice(2, 0, std::nullopt, 2).neg_();
  const at::Tensor result = decoded(*codec, mixed);
  EXPECT_TRUE(result.isfinite().all().item<bool>());
  const double steps = (1 << GetParam().bits) - 1;
  const bool is_hqq = std::string(GetParam().backend) == "hqq";
  const bool is_float8 = std::string(GetParam().backend) == "fp8";
  const double bound = is_float8 ? 60000.0 / 16 : 120000 / steps / (is_hqq ? 1 : 2) + 100;
  EXPECT_LE(difference(result, mixed), bound);
}

// Values of several sorts: even, most of them small, a few far out.
std::vector<at::Tensor> sorts_of_values(const Numbers& shape, std::int64_t salt) {
  at::manual_seed(static_cast<std::uint64_t>(salt));
  return {codec_values(shape, salt), at::randn(shape).mul(2).exp(),
          at::rand(shape).lt(0.1).to(at::kFloat).mul(30).add(at::randn(shape))};
}

void expect_within_steps(const Codec& codec, const at::Tensor& states, double steps) {
  const PackedStates packed = encoded(codec, states);
  const at::Tensor bound = detail::of_every_value(packed.scales, packed).mul(steps).add(1e-5);
  const at::Tensor error = unpack(packed, at::kFloat).sub(states).abs();
  EXPECT_TRUE(error.le(bound).all().item<bool>())
      << "head size " << states.size(3) << ", bits " << packed.format.bits;
}

TEST(AffineCodecs, ErrorsStayWithinTheirBounds) {
  for (const std::int64_t head_dim : {1, 8, 16, 17, 64, 67, 80, 96, 128}) {
    for (const std::int64_t bits : {1, 2, 3, 4, 8}) {
      for (const at::Tensor& states : sorts_of_values({2, 1, 5, head_dim}, bits)) {
        expect_within_steps(HqqCodec({.bits = bits, .group_size = 64}), states, 1);
        if (bits == 1 || bits == 3) continue;
        expect_within_steps(QuantoCodec({.bits = bits, .group_size = 64}), states, 0.5);
      }
    }
  }
}

// F59: the range is not stretched to 0.
TEST(QuantoCodec, OneSidedGroupsUseTheirOwnRange) {
  const at::Tensor states = at::linspace(100, 101, 64).view({1, 1, 1, 64});
  EXPECT_LE(difference(decoded(QuantoCodec({.bits = 4}), states), states), 1.0 / 30 + 1e-5);
}

// F58: 8000 is the step.
TEST(QuantoCodec, HalfPrecisionIsOffByHalfAStep) {
  const at::Tensor states = at::linspace(-60000, 60000, 64).to(at::kHalf).view({1, 1, 1, 64});
  EXPECT_LE(difference(decoded(QuantoCodec({.bits = 4}), states), states), 4000 + 16);
}

TEST(AffineCodecs, ParametersTake16BitsForStatesOf16) {
  const QuantoCodec codec({.bits = 4});
  EXPECT_EQ(codec.format(64, at::kHalf).parameter_dtype, at::kHalf);
  EXPECT_EQ(codec.format(64, at::kBFloat16).parameter_dtype, at::kHalf);
  EXPECT_EQ(codec.format(64, at::kFloat).parameter_dtype, at::kFloat);
  const QuantoCodec narrow({.bits = 4, .parameter_dtype = at::kHalf});
  EXPECT_EQ(encoded(narrow, codec_values({1, 1, 2, 64}, 1)).scales.scalar_type(), at::kHalf);
  // Beyond what float16 can say, values saturate.
  const at::Tensor large = at::tensor({-1e30F, 1e30F, 0.0F, 1.0F}).view({1, 1, 1, 4});
  const at::Tensor result = decoded(narrow, large);
  EXPECT_TRUE(result.isfinite().all().item<bool>());
  EXPECT_LT(result[0][0][0][0].item<float>(), result[0][0][0][1].item<float>());
}

// F57: settled by the head size alone.
TEST(AffineCodecs, GroupsDivideAHeadEvenly) {
  const auto channels = [](std::int64_t head_dim) {
    const PackedFormat format = QuantoCodec({.group_size = 64}).format(head_dim, at::kFloat);
    return Numbers{format.group_channels, format.channel_groups()};
  };
  EXPECT_EQ(channels(8), (Numbers{8, 1}));
  EXPECT_EQ(channels(64), (Numbers{64, 1}));
  EXPECT_EQ(channels(67), (Numbers{34, 2}));
  EXPECT_EQ(channels(80), (Numbers{40, 2}));
  EXPECT_EQ(channels(96), (Numbers{48, 2}));
  EXPECT_EQ(channels(256), (Numbers{64, 4}));
  const PackedFormat over =
      HqqCodec({.group_size = 32, .over_tokens = true}).format(80, at::kFloat);
  EXPECT_EQ(over.group_tokens, 32);
  EXPECT_EQ(over.channel_groups(), 80);
}

TEST(AffineCodecs, OptionsOutOfRangeAreRefused) {
  EXPECT_THAT(refusal<ValueError>([&] { QuantoCodec({.bits = 3}); }),
              AllOf(HasSubstr("nbits is 3"), HasSubstr("quanto takes 2, 4 or 8")));
  EXPECT_THAT(refusal<ValueError>([&] { HqqCodec({.bits = 5}); }),
              AllOf(HasSubstr("nbits is 5"), HasSubstr("hqq takes 1, 2, 3, 4 or 8")));
  EXPECT_THAT(refusal<ValueError>([&] { HqqCodec({.group_size = 0}); }),
              HasSubstr("q_group_size is 0"));
  EXPECT_THAT(refusal<ValueError>([&] { QuantoCodec({.parameter_dtype = at::kBFloat16}); }),
              AllOf(HasSubstr("bfloat16"), HasSubstr("float32 or float16")));
}

TEST(AffineCodecs, StatesThatAreNoWholeGroupsAreRefused) {
  const HqqCodec codec({.group_size = 8, .over_tokens = true});
  EXPECT_THAT(refusal<ValueError>([&] {
                encoded(codec, at::ones({1, 1, 12, 4}));
              }),
              HasSubstr("a multiple of 8 tokens"));
  EXPECT_THAT(refusal<ValueError>([&] {
                codec.encode(at::ones({1, 8, 4}), codec.format(4, at::kFloat), {});
              }),
              HasSubstr("[batch, kv_heads, tokens, 4]"));
}

// Half-quadratic steps make large errors rarer where a few values are far out.
TEST(HqqCodec, ItsMeanErrorIsNotAboveThatOfTheRange) {
  at::manual_seed(5);
  const at::Tensor states = at::randn({1, 4, 64, 64}).pow(3);
  const auto mean = [&](const Codec& codec) {
    return decoded(codec, states).sub(states).abs().mean().item<double>();
  };
  for (const std::int64_t bits : {2, 4}) {
    EXPECT_LT(mean(HqqCodec({.bits = bits})), mean(QuantoCodec({.bits = bits}))) << bits;
  }
}

// F60
TEST(Fp8Codec, LaterValuesSaturateNothing) {
  const Fp8Codec codec;
  const at::Tensor ones = at::ones({1, 1, Fp8Codec::kGroupTokens, 4});
  const PackedStates first = encoded(codec, ones);
  EXPECT_LE(difference(unpack(first, at::kFloat), ones), 1e-6);
  at::Tensor later = ones.clone();
  const std::vector<double> given = {1.03, 1.04, 1.1, 2, -3};
  for (std::int64_t i = 0; i < 5; ++i) later.select(2, i).fill_(given[static_cast<std::size_t>(i)]);
  const PackedStates second = encoded(codec, later, first.scales);
  EXPECT_GT(second.scales.item<float>(), first.scales.item<float>());
  const at::Tensor error = unpack(second, at::kFloat).sub(later).abs();
  EXPECT_TRUE(error.le(later.abs().div(16).add(1e-6)).all().item<bool>());
}

TEST(Fp8Codec, AScaleStaysWhileItWillDo) {
  const Fp8Codec codec;
  const at::Tensor states = codec_values({2, 2, 3 * Fp8Codec::kGroupTokens, 8}, 1).clamp(-2, 2);
  states.narrow(2, 0, 1).fill_(2);
  states.narrow(2, Fp8Codec::kGroupTokens, Fp8Codec::kGroupTokens).mul_(0.01);
  states[1][0][2 * Fp8Codec::kGroupTokens][0] = 20;  // outgrows that of its head
  const at::Tensor scales = encoded(codec, states).scales.squeeze(3);
  EXPECT_TRUE(at::equal(scales.select(2, 0), scales.select(2, 1)));
  const at::Tensor grown = scales.select(2, 2).gt(scales.select(2, 1));
  EXPECT_EQ(listed(grown), (Numbers{0, 0, 1, 0}));
}

}  // namespace
}  // namespace kvcache
