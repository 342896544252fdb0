// The real SmolLM2's tokenizer against the oracle, where scripts/fetch_model.py has put the model.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/text/incremental_decoder.h"
#include "kvcache/text/tokenizer.h"

namespace kvcache::test {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Where the script puts it by default.
std::filesystem::path model_folder() {
  std::filesystem::path models = environment("KVCACHE_MODELS");
  if (models.empty()) {
    std::filesystem::path cache = environment("XDG_CACHE_HOME");
    if (cache.empty()) cache = std::filesystem::path(environment("HOME")) / ".cache";
    models = cache / "kvcache/models";
  }
  return models / "SmolLM2-135M-Instruct";
}

TEST(RealTokenizer, SmolLM2EqualsTheOracle) {
  if (!std::filesystem::exists(model_folder() / "tokenizer.json")) {
    GTEST_SKIP() << "no model in " << model_folder() << "; scripts/fetch_model.py makes it";
  }
  const Tokenizer tokenizer = Tokenizer::from_folder(model_folder());
  std::ifstream file(std::filesystem::path(KVCACHE_TEST_DATA_DIR) /
                     "parity/goldens/text/smollm2.json");
  const auto golden = nlohmann::json::parse(file);
  EXPECT_EQ(tokenizer.vocab_size(), golden.at("vocab_size").get<std::int64_t>());
  EXPECT_EQ(tokenizer.special_ids().eos, tokenizer.token_to_id("<|im_end|>"));
  for (const auto& record : golden.at("records")) {
    const auto text = record.at("input").get<std::string>();
    const auto ids = record.at("ids").get<std::vector<std::int64_t>>();
    const auto full = record.value("text", text);
    SCOPED_TRACE(record.at("input").dump());
    EXPECT_EQ(tokenizer.encode(text), ids);
    EXPECT_EQ(tokenizer.decode(ids), full);
    EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), record.value("skipped", full));
    IncrementalDecoder decoder(tokenizer);
    std::string streamed = decoder.push(ids);
    streamed += decoder.finish();
    EXPECT_EQ(streamed, full);
  }
}

}  // namespace
}  // namespace kvcache::test
