// SmolLM2-135M-Instruct, text to text, against the oracle: 64 greedy tokens on eight prompts with a
// cache; without one the first few by default, as many as the oracle made with
// KVCACHE_FULL_SWEEP=1.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kvcache/generation/runner.h"
#include "kvcache/models/registry.h"
#include "kvcache/text/tokenizer.h"
#include "tests/support/model_folder.h"
#include "tests/support/sweep.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using nlohmann::json;
using testing::ids_tensor;
using testing::Rows;

json golden(const std::string& name) {
  std::ifstream file(KVCACHE_TEST_DATA_DIR "/parity/goldens/smollm2/" + name + ".json");
  EXPECT_TRUE(file.good()) << name;
  return json::parse(file);
}

at::Tensor tensor_of(const json& rows) { return ids_tensor(rows.get<Rows>()); }

class SmolLM2Prompts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(folder() / "config.json"))
        << "there is no model in " << folder() << "; run scripts/fetch_model.py";
  }

  static std::filesystem::path folder() { return testing::model_folder("SmolLM2-135M-Instruct"); }

  static const CausalLM& float32() {
    static const auto model = load_model(folder(), {.dtype = at::kFloat});
    return *model;
  }

  static const Tokenizer& tokenizer() {
    static const Tokenizer loaded = Tokenizer::from_folder(folder());
    return loaded;
  }

  static Inputs inputs_of(const json& item) {
    return {.input_ids = tensor_of(item.at("input_ids")),
            .attention_mask = tensor_of(item.at("attention_mask"))};
  }

  static GenerationConfig config_of(const json& item) {
    return GenerationConfig::from_json(item.at("generation").dump())
        .over(GenerationConfig::from_pretrained(folder()));
  }
};

TEST_P(SmolLM2Prompts, TextsHaveTheOraclesIds) {
  const json item = golden(GetParam());
  for (std::size_t row = 0; row < item.at("prompts").size(); ++row) {
    const auto made = tokenizer().encode(item.at("prompts")[row].get<std::string>());
    const auto padded = item.at("input_ids")[row].get<std::vector<std::int64_t>>();
    ASSERT_LE(made.size(), padded.size());
    EXPECT_TRUE(std::equal(made.rbegin(), made.rend(), padded.rbegin())) << item.at("prompts")[row];
    EXPECT_EQ(item.at("attention_mask")[row].get<std::vector<int>>(), [&] {
      std::vector<int> mask(padded.size(), 0);
      std::fill_n(mask.rbegin(), made.size(), 1);
      return mask;
    }());
  }
}

TEST_P(SmolLM2Prompts, GreedyIdsAndTextAreTheOracles) {
  const json item = golden(GetParam());
  const Output output = generate(float32(), inputs_of(item), config_of(item));
  const at::Tensor expected = tensor_of(item.at("sequences"));
  ASSERT_TRUE(output.sequences.equal(expected)) << output.sequences << expected;
  const std::size_t prompt = item.at("input_ids")[0].size();
  for (std::size_t row = 0; row < item.at("text").size(); ++row) {
    const auto ids = item.at("sequences")[row].get<std::vector<std::int64_t>>();
    EXPECT_EQ(tokenizer().decode(std::span(ids).subspan(prompt), {.skip_special_tokens = true}),
              item.at("text")[row].get<std::string>());
  }
}

TEST_P(SmolLM2Prompts, UncachedIdsAreTheOracles) {
  const json item = golden(GetParam());
  const bool is_long = item.at("input_ids")[0].size() > 1000;
  const auto all = item.at("uncached_new_tokens").get<std::int64_t>();
  GenerationConfig config = config_of(item);
  config.use_cache = false;
  config.max_new_tokens = testing::sweep_count(is_long ? 4 : 6, all);
  const at::Tensor made = generate(float32(), inputs_of(item), config).sequences;
  const at::Tensor expected = tensor_of(item.at("sequences")).narrow(1, 0, made.size(1));
  EXPECT_TRUE(made.equal(expected)) << made << expected;
}

INSTANTIATE_TEST_SUITE_P(Goldens, SmolLM2Prompts,
                         ::testing::Values("english", "code", "chinese", "spanish", "numbers",
                                           "document", "one_token", "batch"),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace kvcache
