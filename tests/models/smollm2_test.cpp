// SmolLM2-135M-Instruct against the oracle: the logits of each prompt's last token.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/io/safetensors.h"
#include "kvcache/models/registry.h"
#include "tests/support/model_folder.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

const std::filesystem::path kGoldens = KVCACHE_TEST_DATA_DIR "/parity/goldens/smollm2";

const std::filesystem::path kFolder = model_folder("SmolLM2-135M-Instruct");

class SmolLM2Logits : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(kFolder / "config.json"))
        << "no model in " << kFolder << "; run scripts/fetch_model.py";
  }

  // The prompt's logits at its last position, float32 [batch, vocab], the text in two pieces.
  at::Tensor last_logits(const CausalLM& model) const {
    std::ifstream file(kGoldens / (GetParam() + ".json"));
    const nlohmann::json golden = nlohmann::json::parse(file);
    const at::Tensor ids = ids_tensor(golden.at("input_ids").get<Rows>());
    const at::Tensor mask = ids_tensor(golden.at("attention_mask").get<Rows>());
    DynamicCache cache(model.config());
    const std::int64_t first = ids.size(1) / 2;
    if (first > 0) {
      model.forward({.input_ids = ids.narrow(1, 0, first),
                     .attention_mask = mask.narrow(1, 0, first),
                     .logits_to_keep = 1},
                    &cache);
    }
    const at::Tensor logits = model.forward({.input_ids = ids.narrow(1, first, ids.size(1) - first),
                                             .attention_mask = mask,
                                             .logits_to_keep = 1},
                                            &cache);
    return logits.select(1, 0).to(at::kFloat);
  }

  // The largest difference to the oracle's logits in `dtype`, as a part of their range.
  double relative_difference(const at::Tensor& logits, const std::string& dtype) const {
    const SafetensorsFile file = SafetensorsFile::open(kGoldens / "logits.safetensors");
    const auto named = [&](const std::string& what) {
      return file.tensor(GetParam() + "." + what).to(at::kFloat);
    };
    const at::Tensor ids =
        file.tensor(GetParam() + ".ids").to(at::kLong).view({logits.size(0), -1});
    const at::Tensor range = named(dtype + "_range").view({logits.size(0), 2});
    const at::Tensor width = range.select(1, 1) - range.select(1, 0);
    const at::Tensor expected = named(dtype).view({logits.size(0), -1});
    return ((logits.gather(1, ids) - expected).abs().amax(1) / width).max().item<double>();
  }
};

TEST_P(SmolLM2Logits, Float32) {
  static const auto model = load_model(kFolder, {.dtype = at::kFloat});
  EXPECT_LE(relative_difference(last_logits(*model), "float32"), 2e-5);
}

TEST_P(SmolLM2Logits, BFloat16WithinTwoPercentOfTheRange) {
  static const auto model = load_model(kFolder);
  ASSERT_EQ(model->dtype(), at::kBFloat16);
  EXPECT_LE(relative_difference(last_logits(*model), "bfloat16"), 0.02);
}

INSTANTIATE_TEST_SUITE_P(Prompts, SmolLM2Logits,
                         ::testing::Values("english", "code", "chinese", "spanish", "numbers",
                                           "document", "one_token", "batch"),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace kvcache::testing
