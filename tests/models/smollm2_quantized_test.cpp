// SmolLM2-135M-Instruct in float32 over a quantized cache of 8 bits, beside the dense one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/cache/quantized_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/models/registry.h"
#include "tests/support/model_folder.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

const std::filesystem::path kGoldens = KVCACHE_TEST_DATA_DIR "/parity/goldens/smollm2";

const std::filesystem::path kFolder = model_folder("SmolLM2-135M-Instruct");

class SmolLM2Quantized : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(kFolder / "config.json"))
        << "no model in " << kFolder << "; run scripts/fetch_model.py";
  }
};

// Of the prompt, too, nearly all tokens are packed.
TEST_P(SmolLM2Quantized, EightBitsMakeTheDenseCachesFirstEightTokens) {
  static const auto model = load_model(kFolder, {.dtype = at::kFloat});
  std::ifstream file(kGoldens / (GetParam() + ".json"));
  const nlohmann::json golden = nlohmann::json::parse(file);
  const Inputs inputs{.input_ids = ids_tensor(golden.at("input_ids").get<Rows>()),
                      .attention_mask = ids_tensor(golden.at("attention_mask").get<Rows>())};
  const GenerationConfig dense = GenerationConfig{.max_new_tokens = 8, .do_sample = false}.over(
      GenerationConfig::from_pretrained(kFolder));
  GenerationConfig quantized = dense;
  quantized.cache_implementation = "quantized";
  quantized.cache_config =
      R"({"backend":"hqq","nbits":8,"axis_key":1,"axis_value":1,"residual_length":1})";
  EXPECT_TRUE(at::equal(generate(*model, inputs, quantized).sequences,
                        generate(*model, inputs, dense).sequences));
}

INSTANTIATE_TEST_SUITE_P(Prompts, SmolLM2Quantized,
                         ::testing::Values("english", "code", "chinese", "spanish", "numbers",
                                           "document", "one_token", "batch"),
                         [](const auto& prompt) { return prompt.param; });

}  // namespace
}  // namespace kvcache::testing
