// Tokenizers of each kind against the oracle: ids, text, and streaming, on difficult texts.
#include <gtest/gtest.h>

#include "golden_files.h"
#include "kvcache/core/errors.h"

namespace kvcache::test {
namespace {

class TokenizerGolden : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string name_ = GetParam();
  const Tokenizer tokenizer_ = golden_tokenizer(name_);
  const nlohmann::json golden_ = read_golden(name_ + "/expected.json");

  // Calls check(text, record, expected ids) for each text.
  template <typename Check>
  void for_each_record(Check check) const {
    const auto strings = read_golden("strings.json");
    const auto& records = golden_.at("records");
    ASSERT_GT(records.size(), 0u);
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::string text = records[i].value("input", strings.at(i).get<std::string>());
      SCOPED_TRACE(::testing::Message() << name_ << ", text " << i << ": " << nlohmann::json(text));
      check(text, records[i], records[i].at("ids").get<Ids>());
    }
  }
};

TEST_P(TokenizerGolden, EncodesAsTheOracle) {
  for_each_record([this](const std::string& text, const nlohmann::json& record, const Ids& ids) {
    EXPECT_EQ(tokenizer_.encode(text), ids);
    EXPECT_EQ(tokenizer_.encode(text, {.add_special_tokens = false}), record.value("bare", ids));
    EXPECT_EQ(tokenizer_.encode(text, {.parse_special_tokens = false}), record.value("plain", ids));
  });
}

TEST_P(TokenizerGolden, DecodesAsTheOracle) {
  for_each_record([this](const std::string& text, const nlohmann::json& record, const Ids& ids) {
    const auto full = record.value("text", text);
    EXPECT_EQ(tokenizer_.decode(ids), full);
    EXPECT_EQ(tokenizer_.decode(ids, {.skip_special_tokens = true}), record.value("skipped", full));
  });
}

TEST_P(TokenizerGolden, StreamsWhatItDecodes) {
  for_each_record([this](const std::string& text, const nlohmann::json& record, const Ids& ids) {
    const auto full = record.value("text", text);
    EXPECT_EQ(decode_stepwise(tokenizer_, ids), full);
    EXPECT_EQ(decode_stepwise(tokenizer_, ids, {.skip_special_tokens = true}),
              record.value("skipped", full));
  });
}

TEST_P(TokenizerGolden, HasTheOraclesVocabulary) {
  EXPECT_EQ(tokenizer_.vocab_size(), golden_.at("vocab_size").get<std::int64_t>());
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         ::testing::Values("smollm", "qwen", "llama3", "byte_fallback", "unknown",
                                           "flags", "llama2", "mistral", "phi3", "gemma", "t5"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(TokenizerGoldens, CoverEnoughTexts) {
  EXPECT_GE(read_golden("strings.json").size(), 200u);
  for (const char* name : {"smollm", "qwen", "llama3"}) {
    EXPECT_GE(read_golden(std::string(name) + "/expected.json").at("records").size(), 200u);
  }
}

// A tokenizer that only has the given component, under the key "normalizer" or "pre_tokenizer".
Tokenizer with_component(const std::string& key, const nlohmann::json& component) {
  nlohmann::json root = {{"model",
                          {{"type", "BPE"},
                           {"vocab", nlohmann::json::object()},
                           {"merges", nlohmann::json::array()}}}};
  root[key] = component;
  return Tokenizer::from_json(root.dump());
}

TEST(ComponentGoldens, EqualTheOracle) {
  const auto golden = read_golden("components.json");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  for (const auto& record : golden.at("records")) {
    const std::string key = record.contains("normalizer") ? "normalizer" : "pre_tokenizer";
    const Tokenizer tokenizer = with_component(key, record.at(key));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << record.at(key) << " of " << nlohmann::json(texts[i]));
      const auto& expected = record.at("results").at(i);
      if (key == "normalizer") {
        EXPECT_EQ(tokenizer.normalize(texts[i]), expected.get<std::string>());
      } else {
        EXPECT_EQ(tokenizer.pre_tokenize(texts[i]), expected.get<std::vector<std::string>>());
      }
    }
  }
}

// What Transformers makes of a folder with the file (smollm/tokenizer.json, ...) and each of the
// tokenizer_config.json files that `goldens` lists.
void expect_configs_equal(const std::string& goldens, const std::string& file) {
  const auto golden = read_golden(goldens);
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  for (const auto& record : golden.at("records")) {
    SCOPED_TRACE(record.at("config").dump());
    const TemporaryFolder folder;
    folder.copy(file);
    folder.write("tokenizer_config.json", record.at("config").dump());
    const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
    EXPECT_EQ(tokenizer.vocab_size(), record.at("vocab_size").get<std::int64_t>());
    const auto& special = record.at("special");
    const auto& ids = tokenizer.special_ids();
    for (const auto& [name, id] : {std::pair{"bos", ids.bos}, std::pair{"eos", ids.eos},
                                   std::pair{"pad", ids.pad}, std::pair{"unk", ids.unk}}) {
      const auto expected = special.at(name).is_null()
                                ? std::nullopt
                                : std::optional(special.at(name).get<std::int64_t>());
      EXPECT_EQ(id, expected) << name;
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto expected = record.at("ids").at(i).get<Ids>();
      EXPECT_EQ(tokenizer.encode(texts[i]), expected) << texts[i];
      EXPECT_EQ(tokenizer.decode(expected, {.skip_special_tokens = true}),
                record.at("skipped").at(i).get<std::string>());
    }
  }
}

TEST(ConfigGoldens, EqualTheOracle) {
  expect_configs_equal("configs.json", "smollm/tokenizer.json");
}

TEST(ConfigGoldens, OverASentencePieceModelEqualTheOracle) {
  expect_configs_equal("models.json", "llama2/tokenizer.model");
}

TEST(ConfigGoldens, DamagedConfigsAreRefused) {
  for (const char* config :
       {"", "[]", "{\"bos_token\":5}", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"a\"}}}",
        "{\"added_tokens_decoder\":{\"7\":{\"content\":\"<new>\"}}}",
        "{\"added_tokens_decoder\":[1]}", "{\"eos_token\":{}}", "{\"extra_special_tokens\":7}"}) {
    const TemporaryFolder folder;
    folder.copy("smollm/tokenizer.json");
    folder.write("tokenizer_config.json", config);
    EXPECT_THROW(Tokenizer::from_folder(folder.path()), ValueError) << config;
  }
}

}  // namespace
}  // namespace kvcache::test
