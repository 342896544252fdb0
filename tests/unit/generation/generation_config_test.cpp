#include "kvcache/generation/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "kvcache/core/errors.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

std::string json_refusal(const char* text) {
  return refusal<ValueError>([&] { GenerationConfig::from_json(text, "config"); });
}

std::string invalid(const GenerationConfig& config) {
  return refusal<ValueError>([&] { config.validate(); });
}

constexpr const char* kAllSupported = R"({
  "max_length": 30, "max_new_tokens": 5, "min_length": 3, "min_new_tokens": 2,
  "max_time": 1.5, "stop_strings": ["a", "b"], "do_sample": true,
  "num_beams": 1, "early_stopping": "never", "length_penalty": 2.0,
  "temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25, "top_h": 0.4, "typical_p": 0.9,
  "epsilon_cutoff": 3e-4, "eta_cutoff": 2e-3, "repetition_penalty": 1.25,
  "encoder_repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 2,
  "bad_words_ids": [[5], [6, 7]], "sequence_bias": [[[8, 9], -2.5], [[10], 1]],
  "forced_bos_token_id": 11, "forced_eos_token_id": [12, 13], "suppress_tokens": [14],
  "begin_suppress_tokens": [15, 16], "exponential_decay_length_penalty": [17, 1.01],
  "remove_invalid_values": true, "renormalize_logits": true,
  "num_return_sequences": 2, "use_cache": false,
  "cache_implementation": "dynamic", "cache_config": {}, "max_cache_len": 40,
  "prefill_chunk_size": 18, "eos_token_id": [3, 4],
  "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 3,
  "prompt_lookup_num_tokens": 19, "max_matching_ngram_size": 6, "num_assistant_tokens": 21,
  "num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.6,
  "output_logits": true})";

void expect_all_of_length_and_output(const GenerationConfig& config) {
  EXPECT_EQ(config.max_length, 30);
  EXPECT_EQ(config.max_new_tokens, 5);
  EXPECT_EQ(config.min_length, 3);
  EXPECT_EQ(config.min_new_tokens, 2);
  EXPECT_EQ(config.max_time, 1.5);
  EXPECT_THAT(config.stop_strings.value(), ElementsAre("a", "b"));
  EXPECT_EQ(config.num_return_sequences, 2);
  EXPECT_EQ(config.output_logits, true);
}

void expect_all_of_choice(const GenerationConfig& config) {
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.num_beams, 1);
  EXPECT_EQ(config.early_stopping, EarlyStopping::never);
  EXPECT_EQ(config.length_penalty, 2);
  EXPECT_EQ(config.temperature, 0.5);
  EXPECT_EQ(config.top_k, 7);
  EXPECT_EQ(config.top_p, 0.75);
  EXPECT_EQ(config.min_p, 0.25);
  EXPECT_EQ(config.top_h, 0.4);
  EXPECT_EQ(config.typical_p, 0.9);
  EXPECT_EQ(config.epsilon_cutoff, 3e-4);
  EXPECT_EQ(config.eta_cutoff, 2e-3);
  EXPECT_EQ(config.prompt_lookup_num_tokens, 19);
  EXPECT_EQ(config.max_matching_ngram_size, 6);
  EXPECT_EQ(config.num_assistant_tokens, 21);
  EXPECT_EQ(config.num_assistant_tokens_schedule, "heuristic");
  EXPECT_EQ(config.assistant_confidence_threshold, 0.6);
}

void expect_all_of_processors(const GenerationConfig& config) {
  EXPECT_EQ(config.repetition_penalty, 1.25);
  EXPECT_EQ(config.encoder_repetition_penalty, 1.5);
  EXPECT_EQ(config.no_repeat_ngram_size, 3);
  EXPECT_EQ(config.encoder_no_repeat_ngram_size, 2);
  EXPECT_THAT(config.bad_words_ids.value(), ElementsAre(ElementsAre(5), ElementsAre(6, 7)));
  EXPECT_THAT(config.sequence_bias.value(),
              ElementsAre(SequenceBias{{8, 9}, -2.5}, SequenceBias{{10}, 1}));
  EXPECT_EQ(config.forced_bos_token_id, 11);
  EXPECT_THAT(config.forced_eos_token_id.value(), ElementsAre(12, 13));
  EXPECT_THAT(config.suppress_tokens.value(), ElementsAre(14));
  EXPECT_THAT(config.begin_suppress_tokens.value(), ElementsAre(15, 16));
  EXPECT_EQ(config.exponential_decay_length_penalty, (ExponentialDecayLengthPenalty{17, 1.01}));
  EXPECT_EQ(config.remove_invalid_values, true);
  EXPECT_EQ(config.renormalize_logits, true);
}

void expect_all_of_cache_and_tokens(const GenerationConfig& config) {
  EXPECT_EQ(config.use_cache, false);
  EXPECT_EQ(config.cache_implementation, "dynamic");
  EXPECT_EQ(config.cache_config, "{}");
  EXPECT_EQ(config.max_cache_len, 40);
  EXPECT_EQ(config.prefill_chunk_size, 18);
  EXPECT_THAT(config.eos_token_id.value(), ElementsAre(3, 4));
  EXPECT_EQ(config.pad_token_id, 0);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.decoder_start_token_id, 3);
}

void expect_all_supported(const GenerationConfig& config) {
  expect_all_of_length_and_output(config);
  expect_all_of_choice(config);
  expect_all_of_processors(config);
  expect_all_of_cache_and_tokens(config);
}

TEST(GenerationConfig, ReadsEverySupportedField) {
  expect_all_supported(GenerationConfig::from_json(kAllSupported));
}

TEST(GenerationConfig, ReadsTheOtherFormsOfAField) {
  const auto read = [](const char* json) { return GenerationConfig::from_json(json); };
  EXPECT_EQ(read(R"({"early_stopping": true})").early_stopping, EarlyStopping::yes);
  EXPECT_EQ(read(R"({"early_stopping": false})").early_stopping, EarlyStopping::no);
  EXPECT_THAT(read(R"({"stop_strings": "a"})").stop_strings.value(), ElementsAre("a"));
  EXPECT_THAT(read(R"({"forced_eos_token_id": 3})").forced_eos_token_id.value(), ElementsAre(3));
  EXPECT_THAT(
      read(R"json({"sequence_bias": {"(1, 2)": -0.5, "(3,)": 2}})json").sequence_bias.value(),
      ElementsAre(SequenceBias{{1, 2}, -0.5}, SequenceBias{{3}, 2}));
}

TEST(GenerationConfig, MergesEverySupportedField) {
  const GenerationConfig config = GenerationConfig::from_json(kAllSupported);
  expect_all_supported(config.over({}));
  expect_all_supported(GenerationConfig{}.over(config));
}

TEST(GenerationConfig, TheCallersFieldsGoBeforeTheCheckpoints) {
  const GenerationConfig checkpoint{.do_sample = true, .top_k = 3, .eos_token_id = {{1, 2}}};
  const GenerationConfig merged =
      GenerationConfig{.do_sample = false, .eos_token_id = {{9}}}.over(checkpoint);
  EXPECT_EQ(merged.do_sample, false);
  EXPECT_EQ(merged.top_k, 3);
  EXPECT_THAT(merged.eos_token_id.value(), ElementsAre(9));
}

TEST(GenerationConfig, NullLeavesAFieldUnset) {
  const GenerationConfig config =
      GenerationConfig::from_json(R"({"top_k": null, "eos_token_id": null, "stop_strings": null})");
  EXPECT_FALSE(config.top_k);
  EXPECT_FALSE(config.eos_token_id);
}

TEST(GenerationConfig, OneEosTokenIsAListOfOne) {
  EXPECT_THAT(GenerationConfig::from_json(R"({"eos_token_id": 2})").eos_token_id.value(),
              ElementsAre(2));
}

TEST(GenerationConfig, NegativeIdsAreNone) {
  const GenerationConfig config = GenerationConfig::from_json(
      R"({"eos_token_id": -1, "pad_token_id": -1, "bos_token_id": -1})");
  EXPECT_THAT(config.eos_token_id.value(), ElementsAre());
  EXPECT_FALSE(config.pad_token_id);
  EXPECT_FALSE(config.bos_token_id);
  EXPECT_THAT(config.over({.eos_token_id = {{2}}}).eos_token_id.value(), ElementsAre());
  config.validate();
}

TEST(GenerationConfig, IgnoresMetadataAndAcceptsDefaults) {
  GenerationConfig::from_json(R"({
    "_from_model_config": true, "transformers_version": "4.9", "_commit_hash": "x",
    "early_stopping": false, "max_time": null, "stop_strings": null, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0, "length_penalty": 1, "no_repeat_ngram_size": 0,
    "renormalize_logits": false, "num_assistant_tokens": 20, "assistant_lookbehind": 10,
    "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4,
    "output_scores": false, "return_dict_in_generate": true, "disable_compile": true,
    "diversity_penalty": 0.0, "num_beam_groups": 1, "low_memory": null})");
}

TEST(GenerationConfig, RefusesUnsupportedFieldsThatAskForSomething) {
  EXPECT_THAT(json_refusal(R"({"guidance_scale": 2})"),
              HasSubstr("config: guidance_scale = 2 is not supported; leave it out"));
  EXPECT_THAT(json_refusal(R"({"watermarking_config": {}})"), HasSubstr("watermarking_config"));
  EXPECT_THAT(json_refusal(R"({"num_beam_groups": 2})"), HasSubstr("or set it to 1"));
}

TEST(GenerationConfig, WhatIsNotBuiltYetSaysSo) {
  const auto says = [](const GenerationConfig& config) { return invalid(config); };
  for (const char* kind : {"offloaded", "offloaded_static", "offloaded_hybrid"}) {
    EXPECT_THAT(says({.cache_implementation = kind}),
                HasSubstr(std::string("cache_implementation \"") + kind +
                          "\" is not supported yet; leave it out or set it to \"dynamic\""));
  }
  GenerationConfig{.stop_strings = {{}}, .num_beams = 1}.validate();
}

TEST(GenerationConfig, RefusesFieldsThatNobodyKnows) {
  EXPECT_THAT(json_refusal(R"({"max_new_token": 3})"), HasSubstr("no field \"max_new_token\""));
  EXPECT_THAT(json_refusal(R"({"streamer": null})"), HasSubstr("no field \"streamer\""));
}

TEST(GenerationConfig, RefusesWrongTypes) {
  EXPECT_THAT(json_refusal(R"({"max_new_tokens": "many"})"),
              HasSubstr("max_new_tokens must be an integer, but is \"many\""));
  EXPECT_THAT(json_refusal(R"({"max_new_tokens": 2.5})"), HasSubstr("an integer"));
  EXPECT_THAT(json_refusal(R"({"max_new_tokens": true})"), HasSubstr("an integer"));
  EXPECT_THAT(json_refusal(R"({"max_new_tokens": 18446744073709551615})"), HasSubstr("an integer"));
  EXPECT_THAT(json_refusal(R"({"do_sample": 1})"), HasSubstr("true or false"));
  EXPECT_THAT(json_refusal(R"({"temperature": "hot"})"), HasSubstr("a number"));
  EXPECT_THAT(json_refusal(R"({"cache_implementation": 1})"), HasSubstr("a string"));
  EXPECT_THAT(json_refusal(R"({"cache_config": "x"})"), HasSubstr("an object"));
  EXPECT_THAT(json_refusal(R"({"eos_token_id": "x"})"), HasSubstr("a list of integers"));
  EXPECT_THAT(json_refusal(R"({"eos_token_id": ["x"]})"), HasSubstr("an integer"));
  EXPECT_THAT(json_refusal(R"({"disable_compile": 1})"), HasSubstr("true or false"));
}

TEST(GenerationConfig, RefusesTextThatIsNoObject) {
  EXPECT_THAT(json_refusal("{"), HasSubstr("config"));
  EXPECT_THAT(json_refusal("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(json_refusal(R"({"temperature": 1e999})"), HasSubstr("config"));
  EXPECT_THAT(json_refusal(R"({"top_k": 1, "top_k": 2})"), HasSubstr("top_k"));
}

TEST(GenerationConfig, SaysWhichTokensEndARow) {
  const GenerationConfig config{.eos_token_id = {{2, 7}}};
  EXPECT_TRUE(config.ends_at(2));
  EXPECT_TRUE(config.ends_at(7));
  EXPECT_FALSE(config.ends_at(3));
  EXPECT_FALSE(GenerationConfig{}.ends_at(2));
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const char* text) { std::ofstream(folder_ / name) << text; }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / "generation_config";
};

TEST_F(Folder, TheCheckpointsOwnFileIsRead) {
  write("generation_config.json", R"({"eos_token_id": 2, "transformers_version": "5.24.0"})");
  write("config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(GenerationConfig::from_pretrained(folder_).eos_token_id.value(), ElementsAre(2));
}

TEST_F(Folder, WithoutItTheModelsSpecialTokensCount) {
  write("config.json", R"({"eos_token_id": [7], "pad_token_id": null, "hidden_size": 32})");
  const GenerationConfig config = GenerationConfig::from_pretrained(folder_);
  EXPECT_THAT(config.eos_token_id.value(), ElementsAre(7));
  EXPECT_FALSE(config.pad_token_id);
}

TEST_F(Folder, AFaultyFileIsNamed) {
  write("generation_config.json", R"({"top_q": 1})");
  EXPECT_THAT(refusal<ValueError>([&] { GenerationConfig::from_pretrained(folder_); }),
              HasSubstr("generation_config.json: GenerationConfig has no field \"top_q\""));
}

TEST_F(Folder, AbsentFilesLeaveEverythingUnset) {
  EXPECT_FALSE(GenerationConfig::from_pretrained(folder_).eos_token_id);
}

TEST_F(Folder, AMissingFolderIsNamed) {
  EXPECT_THAT(refusal<ValueError>([&] { GenerationConfig::from_pretrained(folder_ / "none"); }),
              HasSubstr("generation_config/none' is not a folder; name that of a checkpoint"));
}

TEST_F(Folder, ALoopOfLinksIsNamed) {
  for (const char* name : {"config.json", "generation_config.json"}) {
    std::filesystem::create_symlink(name, folder_ / name);
    EXPECT_THAT(refusal<ValueError>([&] { GenerationConfig::from_pretrained(folder_); }),
                HasSubstr(name));
  }
}

}  // namespace
}  // namespace kvcache
