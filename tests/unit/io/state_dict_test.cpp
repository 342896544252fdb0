#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <kvcache/io/safetensors.h>
#include <kvcache/io/state_dict.h>

#include <fstream>

#include "io_test_support.h"
#include "tests/support/temp_folder.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempFolder;
using testing::value_error;

at::Tensor counting(at::IntArrayRef shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count).to(at::kFloat).reshape(shape);
}

TEST(StateDict, ViewsTakeByRelativeNames) {
  const at::Tensor query = counting({4, 2});
  const StateDict weights({{"model.layers.0.self_attn.q_proj.weight", query},
                           {"model.layers.1.self_attn.q_proj.weight", counting({1})},
                           {"model.layers.10.x", counting({1})}});
  const StateDict layer = weights.select("model.layers.0");
  const StateDict attention = layer.select("self_attn");
  EXPECT_TRUE(attention.contains("q_proj.weight"));
  EXPECT_FALSE(attention.contains("k_proj.weight"));
  EXPECT_FALSE(weights.select("model.layers.1").contains("x"));
  EXPECT_TRUE(attention.take("q_proj.weight", {4, 2}).is_same(query));
  EXPECT_TRUE(layer.select("").contains("self_attn.q_proj.weight"));
}

TEST(StateDict, VerifiesThatAllWeightsWereTaken) {
  const StateDict weights({{"a.x", counting({2})}, {"b", counting({})}});
  EXPECT_THAT(value_error([&] { weights.verify(); }),
              AllOf(HasSubstr("missing: 0"), HasSubstr("unused: 2"),
                    HasSubstr("\"a.x\" of shape [2]"), HasSubstr("\"b\" of shape []")));
  weights.take("b", {});
  const StateDict view = weights.select("a");
  EXPECT_TRUE(view.contains("x"));
  EXPECT_THAT(value_error([&] { view.verify(); }), HasSubstr("unused: 1"));
  view.take("x", {2});
  EXPECT_NO_THROW(weights.verify());
  EXPECT_NO_THROW(view.verify());
}

TEST(LoadOptions, LongestPrefixOfTheDeviceMapCounts) {
  const at::Device meta("meta"), cpu("cpu");
  const LoadOptions options{.device_map = {{"model", meta}, {"model.layers.1", cpu}}};
  EXPECT_EQ(options.device_of("lm_head.weight"), cpu);
  EXPECT_EQ(options.device_of("model"), meta);
  EXPECT_EQ(options.device_of("model.layers.0.mlp"), meta);
  EXPECT_EQ(options.device_of("model.layers.1.mlp"), cpu);
  EXPECT_EQ(options.device_of("model.layers.10.mlp"), meta);
  EXPECT_EQ(options.device_of("models"), cpu);
}

TEST(StateDict, PutsWeightsWhereTheDeviceMapSays) {
  const std::map<std::string, at::Tensor> tensors{{"a.x", counting({2})}, {"b.x", counting({3})}};
  const StateDict weights(tensors, {.device_map = {{"b", at::Device("meta")}}});
  EXPECT_TRUE(weights.take("a.x", {2}).is_cpu());
  EXPECT_TRUE(weights.take("b.x", {3}).is_meta());
  EXPECT_TRUE(weights.take("b.y", {3}).is_meta());
  EXPECT_THAT(value_error([&] {
                StateDict(tensors, {.device_map = {{"bb", at::kCPU}}});
              }),
              HasSubstr("device map puts \"bb\" on cpu"));
}

TEST(StateDict, ListsEveryFaultAtOnce) {
  const StateDict weights({{"norm.weight", counting({3})},
                           {"lm_head.weight", counting({2, 5})},
                           {"extra.bias", counting({1, 7})}});
  const at::Tensor mis_shaped = weights.take("lm_head.weight", {5, 2});
  const at::Tensor missing = weights.select("mlp").take("up_proj.weight", {6, 2});
  weights.select("mlp").take("up_proj.weight", {6, 2});  // asked for twice, listed once
  weights.take("norm.weight", {3});
  // What stands in for them has the shape asked for.
  EXPECT_TRUE(at::equal(mis_shaped, at::zeros({5, 2})));
  EXPECT_TRUE(at::equal(missing, at::zeros({6, 2})));
  const std::string text = value_error([&] { weights.verify(); });
  EXPECT_THAT(text, AllOf(HasSubstr("missing: 1, of another shape: 1, unused: 1"),
                          HasSubstr("\"mlp.up_proj.weight\" of shape [6, 2]"),
                          HasSubstr("\"lm_head.weight\": stored as [2, 5], the model needs [5, 2]"),
                          HasSubstr("\"extra.bias\" of shape [1, 7]")));
  EXPECT_THAT(text, Not(HasSubstr("norm.weight")));
}

TEST(StateDict, ShapesMustBeEqualNotOnlyOfOneSize) {
  const StateDict weights({{"a", counting({4})}, {"b", counting({})}});
  EXPECT_EQ(weights.take("a", {4, 1}).sizes(), at::IntArrayRef({4, 1}));
  weights.take("b", {1});
  EXPECT_THAT(value_error([&] { weights.verify(); }),
              AllOf(HasSubstr("stored as [4], the model needs [4, 1]"),
                    HasSubstr("stored as [], the model needs [1]")));
}

TEST(StateDict, StandInsTakeNoMemory) {
  const StateDict weights({}, {.dtype = at::kBFloat16});
  const at::Tensor missing = weights.take("huge", {1 << 30, 1 << 30});
  EXPECT_EQ(missing.sizes(), at::IntArrayRef({1 << 30, 1 << 30}));
  EXPECT_EQ(missing.scalar_type(), at::kBFloat16);
  EXPECT_EQ(missing.storage().nbytes(), 2U);
}

TEST(StateDict, LongListsAreCut) {
  std::map<std::string, at::Tensor> many;
  for (int i = 100; i < 150; ++i) many[c10::str("w", i)] = counting({i});
  const StateDict weights(many);
  for (int i = 100; i < 121; ++i) weights.take(c10::str("none", i), {1});
  const std::string text = value_error([&] { weights.verify(); });
  EXPECT_THAT(text, AllOf(HasSubstr("unused: 50"), HasSubstr("w119"), HasSubstr("and 30 more"),
                          HasSubstr("missing: 21"), HasSubstr("none119"), HasSubstr("and 1 more")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("w120")), Not(HasSubstr("none120"))));
}

TEST(StateDict, KnownHarmlessWeightsMayStayUnused) {
  const StateDict weights({{"model.layers.0.rotary_emb.inv_freq", counting({2})},
                           {"model.layers.1.rotary_emb.inv_freq", counting({2})},
                           {"lm_head.weight", counting({2})},
                           {"other.lm_head.weight", counting({2})}});
  weights.select("model").ignore_unused("*.rotary_emb.inv_freq");
  weights.ignore_unused("lm_head.weight");
  const std::string text = value_error([&] { weights.verify(); });
  EXPECT_THAT(text, AllOf(HasSubstr("unused: 1"), HasSubstr("other.lm_head.weight")));
  weights.take("other.lm_head.weight", {2});
  EXPECT_NO_THROW(weights.verify());
}

TEST(StateDict, BadArgumentsAreRefused) {
  EXPECT_THAT(value_error([] { StateDict({{"a", at::Tensor()}}); }), HasSubstr("\"a\""));
  EXPECT_THAT(value_error([] { StateDict({}, {.dtype = at::kLong}); }), HasSubstr("int64"));
  const StateDict weights({{"a", counting({2})}});
  EXPECT_THAT(value_error([&] { weights.take("a", {-1}); }), HasSubstr("negative"));
  const at::Device none(at::kCUDA, 99);
  for (const LoadOptions& options :
       {LoadOptions{.device = none}, LoadOptions{.device_map = {{"a", none}}}}) {
    EXPECT_THAT(value_error([&] {
                  StateDict({{"a", counting({2})}}, options);
                }),
                HasSubstr("weights cannot be loaded to cuda:99: this program sees"));
  }
}

// A checkpoint with 8 MiB of bfloat16, and an integer.
class LoadedCheckpoint : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 4 << 20;

  LoadedCheckpoint() {
    save_safetensors(
        folder_.path() / "model.safetensors",
        {{"weight", at::full({kRows}, 3, at::kBFloat16)}, {"count", at::full({2}, 5, at::kLong)}});
  }

  // Resident KiB of the checkpoint's own mapping.
  std::int64_t resident_kib() const {
    std::ifstream maps("/proc/self/smaps");
    std::string line;
    bool inside = false;
    std::int64_t total = 0;
    while (std::getline(maps, line)) {
      const bool is_header = line.substr(0, line.find(' ')).back() != ':';
      if (is_header) inside = line.find(folder_.path().native()) != line.npos;
      if (inside && line.starts_with("Rss:")) total += std::stoll(line.substr(4));
    }
    return total;
  }

  TempFolder folder_;
};

TEST_F(LoadedCheckpoint, StaysMappedWhereNothingChanges) {
  for (const auto& dtype : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    const StateDict weights = StateDict::from_checkpoint(folder_.path(), {.dtype = dtype});
    const at::Tensor first = weights.take("weight", {kRows});
    EXPECT_EQ(first.const_data_ptr(), weights.take("weight", {kRows}).const_data_ptr());
    EXPECT_EQ(first.sum(at::kDouble).item<double>(), 3.0 * kRows);
    EXPECT_GE(resident_kib(), kRows * 2 / 1024);
    weights.take("count", {2});
    weights.verify();
  }
}

TEST_F(LoadedCheckpoint, ConvertsFloatingPointAndReleasesTheSource) {
  const StateDict weights = StateDict::from_checkpoint(folder_.path(), {.dtype = at::kFloat});
  const at::Tensor weight = weights.take("weight", {kRows});
  const at::Tensor count = weights.take("count", {2});
  EXPECT_LT(resident_kib(), 256);
  EXPECT_TRUE(at::equal(weight, at::full({kRows}, 3, at::kFloat)));
  EXPECT_TRUE(at::equal(count, at::full({2}, 5, at::kLong)));
  EXPECT_EQ(count.scalar_type(), at::kLong);
  weights.verify();
}

TEST_F(LoadedCheckpoint, FaultsNameTheFolder) {
  const StateDict weights = StateDict::from_checkpoint(folder_.path());
  EXPECT_THAT(value_error([&] { weights.verify(); }),
              AllOf(HasSubstr(folder_.path().string()), HasSubstr("unused: 2")));
}

TEST_F(LoadedCheckpoint, MovesToTheDevice) {
  const StateDict weights = StateDict::from_checkpoint(folder_.path(), {.device = at::kMeta});
  EXPECT_TRUE(weights.take("weight", {kRows}).is_meta());
  EXPECT_TRUE(weights.take("missing", {3}).is_meta());
}

}  // namespace
}  // namespace kvcache
