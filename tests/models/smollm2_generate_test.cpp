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
#include "kvcache/io/safetensors.h"
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

const std::string kGoldens = KVCACHE_TEST_DATA_DIR "/parity/goldens/smollm2/";

json golden(const std::string& name) {
  std::ifstream file(kGoldens + name + ".json");
  EXPECT_TRUE(file.good()) << name;
  return json::parse(file);
}

at::Tensor tensor_of(const json& rows) { return ids_tensor(rows.get<Rows>()); }

class SmolLM2 : public ::testing::Test {
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

  static Inputs inputs_of(const json& item) {
    return {.input_ids = tensor_of(item.at("input_ids")),
            .attention_mask = tensor_of(item.at("attention_mask"))};
  }

  static GenerationConfig config_of(const json& item) {
    return GenerationConfig::from_json(item.at("generation").dump())
        .over(GenerationConfig::from_pretrained(folder()));
  }
};

class SmolLM2Prompts : public SmolLM2, public ::testing::WithParamInterface<const char*> {};

TEST_P(SmolLM2Prompts, TextsHaveTheOraclesIds) {
  const json item = golden(GetParam());
  const Tokenizer tokenizer = Tokenizer::from_folder(folder());
  for (std::size_t row = 0; row < item.at("prompts").size(); ++row) {
    const auto made = tokenizer.encode(item.at("prompts")[row].get<std::string>());
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
  const Tokenizer tokenizer = Tokenizer::from_folder(folder());
  const std::size_t prompt = item.at("input_ids")[0].size();
  for (std::size_t row = 0; row < item.at("text").size(); ++row) {
    const auto ids = item.at("sequences")[row].get<std::vector<std::int64_t>>();
    EXPECT_EQ(tokenizer.decode(std::span(ids).subspan(prompt), {.skip_special_tokens = true}),
              item.at("text")[row].get<std::string>());
  }
}

TEST_P(SmolLM2Prompts, UncachedIdsAreTheOracles) {
  const json item = golden(GetParam());
  const bool is_long = item.at("input_ids")[0].size() > 1000;
  const auto all = item.at("uncached_new_tokens").get<std::int64_t>();
  GenerationConfig config = config_of(item);
  config.use_cache = false;
  config.max_new_tokens = testing::sweep_count(is_long ? 2 : 6, all);
  const at::Tensor made = generate(float32(), inputs_of(item), config).sequences;
  const at::Tensor expected = tensor_of(item.at("sequences")).narrow(1, 0, made.size(1));
  EXPECT_TRUE(made.equal(expected)) << made << expected;
}

INSTANTIATE_TEST_SUITE_P(Goldens, SmolLM2Prompts,
                         ::testing::Values("english", "code", "chinese", "spanish", "numbers",
                                           "document", "one_token", "batch"),
                         [](const auto& suite) { return suite.param; });

// The largest difference from the oracle's scores of the first step, as a part of their range.
double first_step_difference(const CausalLM& model, const std::string& name,
                             const std::string& dtype) {
  const SafetensorsFile scores = SafetensorsFile::open(kGoldens + "logits.safetensors");
  const at::Tensor ids = scores.tensor(name + ".ids").to(at::kLong);
  const at::Tensor expected = scores.tensor(name + "." + dtype).to(at::kFloat);
  const at::Tensor range = scores.tensor(name + "." + dtype + "_range").to(at::kFloat);
  const at::Tensor made =
      model.forward({.input_ids = tensor_of(golden(name).at("input_ids")), .logits_to_keep = 1});
  const at::Tensor chosen = made.flatten().to(at::kFloat).index_select(0, ids);
  return testing::difference(chosen, expected) / (range[1] - range[0]).item<double>();
}

TEST_F(SmolLM2, FirstScoresAreTheOracles) {
  const auto bfloat16 = load_model(folder(), {.dtype = at::kBFloat16});
  for (const char* name : {"english", "chinese", "document"}) {
    EXPECT_LT(first_step_difference(float32(), name, "float32"), 1e-4) << name;
    EXPECT_LT(first_step_difference(*bfloat16, name, "bfloat16"), 0.02) << name;
  }
}

}  // namespace
}  // namespace kvcache
