// The real SmolLM2's tokenizer against the oracle, on the model that scripts/fetch_model.py makes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/text/incremental_decoder.h"
#include "kvcache/text/tokenizer.h"
#include "tests/support/model_folder.h"

namespace kvcache {
namespace {

const std::filesystem::path kModel = testing::model_folder("SmolLM2-135M-Instruct");

TEST(RealTokenizer, SmolLM2EqualsTheOracle) {
  ASSERT_TRUE(std::filesystem::exists(kModel / "tokenizer.json"))
      << "no model in " << kModel << "; run: python3 scripts/fetch_model.py";
  const Tokenizer tokenizer = Tokenizer::from_folder(kModel);
  std::ifstream file(std::filesystem::path(KVCACHE_TEST_DATA_DIR) /
                     "parity/goldens/text/smollm2.json");
  const auto golden = nlohmann::json::parse(file);
  EXPECT_EQ(tokenizer.vocab_size(), golden.at("vocab_size").get<std::int64_t>());
  ASSERT_GE(golden.at("records").size(), 200U);
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
}  // namespace kvcache
