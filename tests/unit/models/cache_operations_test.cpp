// A model over caches that were forked, expanded or joined: every row as if it were alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/io/state_dict.h"
#include "models/fingerprint.h"
#include "tests/support/any_layers_model.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

const Rows kLong = {{5, 6, 7, 8, 9, 10, 11, 7, 8}};
const Rows kShort = {{12, 13, 14}};
const Rows kSuffixes = {{20, 21}, {30, 31}, {40, 41}};

at::Tensor last_logits(const LanguageModel& model, const at::Tensor& ids, Cache* cache = nullptr) {
  return model.forward({.input_ids = ids, .logits_to_keep = 1}, cache).squeeze(1);
}

// A kind of tiny model, a kind of cache.
class CacheOperations : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  CacheOperations() : model_(tiny_language_model(std::get<0>(GetParam()))) {}

  std::unique_ptr<LayeredCache> new_cache() const {
    const std::vector<LayerSpec> layers = layers_of(*model_);
    const std::string kind = std::get<1>(GetParam());
    if (kind == "Dynamic") return std::make_unique<DynamicCache>(layers);
    // The longest text, two tokens more and one more.
    const StaticCacheOptions options{.max_cache_len = 9 + 2 + 1,
                                     .record_slack = kind == "StaticSlack" ? 3 : 0};
    return std::make_unique<StaticCache>(layers, options);
  }

  std::unique_ptr<LayeredCache> fed(const Rows& prompt) const {
    auto cache = new_cache();
    last_logits(*model_, ids_tensor(prompt), cache.get());
    return cache;
  }

  // Feeds row i of `suffixes` to row i of the cache, whose text is texts[i]; then one token more.
  void expect_alone(Cache& cache, const std::vector<Rows>& texts, const Rows& suffixes) const {
    const at::Tensor first = last_logits(*model_, ids_tensor(suffixes), &cache);
    const at::Tensor next = at::full({std::int64_t(texts.size()), 1}, 9, at::kLong);
    const at::Tensor second = last_logits(*model_, next, &cache);
    for (std::size_t row = 0; row < texts.size(); ++row) {
      const auto at = std::int64_t(row);
      const at::Tensor text = at::cat({ids_tensor(texts[row]), ids_tensor({suffixes[row]})}, 1);
      EXPECT_CLOSE(first.narrow(0, at, 1), last_logits(*model_, text), 1e-4);
      EXPECT_CLOSE(second.narrow(0, at, 1),
                   last_logits(*model_, at::cat({text, next.narrow(0, at, 1)}, 1)), 1e-4);
    }
  }

  std::unique_ptr<LanguageModel> model_;
};

TEST_P(CacheOperations, ForksOfAPrefix) {
  const auto prefix = fed(kLong);
  std::vector<std::unique_ptr<Cache>> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(prefix->fork());
  for (std::size_t i = 0; i < 3; ++i) expect_alone(*forks[i], {kLong}, {kSuffixes[i]});
  expect_alone(*prefix, {kLong}, {kSuffixes[1]});
}

TEST_P(CacheOperations, RowsOverOnePrefix) {
  const auto cache = fed(kLong);
  cache->expand(3);
  expect_alone(*cache, {kLong, kLong, kLong}, kSuffixes);
}

TEST_P(CacheOperations, F71JoinedRowsOfDifferentLengths) {
  const auto longer = fed(kLong), shorter = fed(kShort);
  const std::unique_ptr<Cache> joined = shorter->concatenate({longer.get(), shorter.get()});
  expect_alone(*joined, {kShort, kLong, kShort}, kSuffixes);
}

// The same where the shorter one was as long before.
TEST_P(CacheOperations, F71JoinedRowsOfWhichSomeWereCropped) {
  const auto whole = new_cache(), cropped = new_cache();
  for (const auto& cache : {whole.get(), cropped.get()}) {
    cache->activate_past_recording(4);
    last_logits(*model_, ids_tensor(kLong), cache);
  }
  whole->crop(0);
  cropped->crop(-4);
  const std::unique_ptr<Cache> joined = cropped->concatenate({whole.get()});
  const Rows start{{kLong[0].begin(), kLong[0].end() - 4}};
  expect_alone(*joined, {start, kLong}, {kSuffixes[0], kSuffixes[1]});
}

INSTANTIATE_TEST_SUITE_P(Kinds, CacheOperations,
                         ::testing::Combine(::testing::Values("full", "sliding", "chunked", "mixed",
                                                              "hybrid", "hybrid_sliding", "shared"),
                                            ::testing::Values("Dynamic", "Static", "StaticSlack")),
                         [](const auto& suite) {
                           return std::string(std::get<0>(suite.param)) + "_" +
                                  std::get<1>(suite.param);
                         });

// The same whatever the layout of config.json; another with another number in it, or another shape
// of a weight.
TEST(Fingerprint, TellsModelsApart) {
  const std::filesystem::path source = KVCACHE_TEST_DATA_DIR "/parity/checkpoints/llama";
  const std::filesystem::path copy =
      std::filesystem::path(::testing::TempDir()) / "kvcache_fingerprint_test";
  std::filesystem::copy(
      source, copy,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  const std::string own = checkpoint("llama").fingerprint();
  EXPECT_EQ(own.substr(0, 6), "llama-");
  EXPECT_EQ(own.size(), 6U + 16U);
  const auto rewritten = [&](const auto& change) {
    nlohmann::json config;
    std::ifstream(source / "config.json") >> config;
    change(config);
    std::ofstream(copy / "config.json") << config.dump();
    return load_model(copy)->fingerprint();
  };
  EXPECT_EQ(rewritten([](auto& config) { config["transformers_version"] = "0.0.1"; }), own);
  EXPECT_NE(rewritten([](auto& config) { config["rms_norm_eps"] = 0.25; }), own);
  EXPECT_NE(checkpoint("mistral").fingerprint(), own);

  // Under one config.json: another number in a weight is the same model, another shape is not.
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, shape] : StateDict::from_checkpoint(source).shapes()) {
    weights[name] = at::zeros(shape);
  }
  const auto with_weights = [&] {
    return detail::fingerprint("llama", source / "config.json", StateDict(weights));
  };
  EXPECT_EQ(with_weights(), own);
  const std::string changed = "model.layers.1.mlp.up_proj.weight";
  weights.at(changed) = at::ones({48, 32});
  EXPECT_EQ(with_weights(), own);
  for (const std::vector<std::int64_t>& shape : Rows{{32, 48}, {49, 32}, {48 * 32}}) {
    weights.at(changed) = at::ones(shape);
    EXPECT_NE(with_weights(), own) << at::IntArrayRef(shape);
  }
  weights.erase(changed);
  EXPECT_NE(with_weights(), own);

  std::filesystem::remove_all(copy);
  EXPECT_EQ(tiny_model("full")->fingerprint(), "");
}

}  // namespace
}  // namespace kvcache::testing
