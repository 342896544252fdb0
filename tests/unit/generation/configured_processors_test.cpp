// Which processors a config asks for, in which order, and where processors of one's own come in.
#include "generation/configured_processors.h"

#include <cxxabi.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/generation/logits_processors.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/processors.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

// Under Transformers' name.
std::string class_name(const LogitsProcessor& processor) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(typeid(processor).name(), nullptr, nullptr, nullptr), std::free);
  std::string name = text.get();
  name = name.substr(name.rfind(':') + 1);
  return name == "ExponentialDecayLengthPenaltyLogitsProcessor" ? "ExponentialDecayLengthPenalty"
                                                                : name;
}

LogitsProcessors configured(const GenerationConfig& config, const LogitsProcessors& given = {}) {
  const TokenRows text = texts({{5, 6, 7}});
  return detail::logits_processors(
      config, given, {.text = text, .read = text, .max_length = 10, .vocab_size = 64});
}

Names names(const GenerationConfig& config, const LogitsProcessors& given = {}) {
  Names found;
  for (const auto& processor : configured(config, given)) found.push_back(class_name(*processor));
  return found;
}

TEST(ConfiguredProcessors, AreTheOraclesInItsOrder) {
  const json file = parity_golden("processor_order");
  ASSERT_FALSE(file.at("cases").empty());
  for (const json& item : file.at("cases")) {
    const auto config = GenerationConfig::from_json(item.at("generation_config").dump());
    Names expected = item.at("processors").get<Names>();
    // The oracle says min_new_tokens a second time, as a min_length.
    if (config.min_new_tokens) std::erase(expected, "MinLengthLogitsProcessor");
    EXPECT_EQ(names(config), expected) << item.at("generation_config");
  }
}

class Own final : public LogitsProcessor {
 public:
  at::Tensor process(const TokenRows&, const at::Tensor& scores) override { return scores; }
};

TEST(ConfiguredProcessors, OnesOwnComeBehindTheConfigsAndBeforeWarpers) {
  const GenerationConfig config{.do_sample = true,
                                .temperature = 0.5,
                                .top_k = 0,
                                .repetition_penalty = 1.5,
                                .suppress_tokens = Ids{3},
                                .renormalize_logits = true};
  const auto own = std::make_shared<Own>();
  EXPECT_THAT(names(config, {own, own}),
              ElementsAre("RepetitionPenaltyLogitsProcessor", "SuppressTokensLogitsProcessor",
                          "Own", "TemperatureLogitsWarper", "LogitNormalization"));
}

TEST(ConfiguredProcessors, OnesOwnOfTheSameClassTakesTheConfigsPlace) {
  const GenerationConfig config{.do_sample = true,
                                .temperature = 0.5,
                                .top_k = 0,
                                .repetition_penalty = 1.5,
                                .suppress_tokens = Ids{3}};
  const LogitsProcessors own{std::make_shared<TemperatureLogitsWarper>(2),
                             std::make_shared<RepetitionPenaltyLogitsProcessor>(2),
                             std::make_shared<RepetitionPenaltyLogitsProcessor>(3)};
  const LogitsProcessors found = configured(config, own);
  EXPECT_EQ(found[0], own[1]);
  EXPECT_THAT(names(config, own),
              ElementsAre("RepetitionPenaltyLogitsProcessor", "SuppressTokensLogitsProcessor",
                          "TemperatureLogitsWarper", "RepetitionPenaltyLogitsProcessor",
                          "TemperatureLogitsWarper"));
  EXPECT_EQ(found[2], own[0]);
  EXPECT_EQ(found[3], own[2]);
}

TEST(ConfiguredProcessors, WarpersLeaveBeamsATokenBesideTheEndTokens) {
  const at::Tensor scores = at::linspace(0, 30, 64).unsqueeze(0);
  const auto left = [&](std::int64_t beams, std::optional<Ids> eos) {
    const LogitsProcessors found = configured(
        {.do_sample = true, .num_beams = beams, .top_k = 1, .eos_token_id = std::move(eos)});
    return found.at(0)->process(texts({{1}}), scores).isfinite().sum().item<int>();
  };
  EXPECT_EQ(left(1, Ids{2, 3}), 1);
  EXPECT_EQ(left(4, Ids{2, 3}), 3);
  EXPECT_EQ(left(4, Ids{2}), 2);
  EXPECT_EQ(left(4, {}), 2);
}

TEST(ConfiguredProcessors, EmptyListsAskForNothing) {
  EXPECT_THAT(names({.bad_words_ids = Rows{},
                     .sequence_bias = std::vector<SequenceBias>{},
                     .forced_eos_token_id = Ids{},
                     .suppress_tokens = Ids{},
                     .begin_suppress_tokens = Ids{},
                     .eos_token_id = Ids{}}),
              ElementsAre());
}

TEST(ConfiguredProcessors, RefuseWhatCannotWork) {
  const auto refused = [](const GenerationConfig& config, const LogitsProcessors& given = {}) {
    return refusal<ValueError>([&] { configured(config, given); });
  };
  EXPECT_THAT(refused({.exponential_decay_length_penalty = ExponentialDecayLengthPenalty{2, 1.1}}),
              HasSubstr("there are none; set eos_token_id"));
  EXPECT_THAT(refused({.suppress_tokens = Ids{64}}), HasSubstr("suppress_tokens holds 64"));
  EXPECT_THAT(refused({.no_repeat_ngram_size = -1}), HasSubstr("no_repeat_ngram_size"));
  EXPECT_THAT(refused({.do_sample = true, .typical_p = 1.5}), HasSubstr("typical_p"));
  EXPECT_THAT(refused({.do_sample = true, .eta_cutoff = -0.5}), HasSubstr("eta_cutoff"));
  EXPECT_THAT(refused({}, {std::make_shared<Own>(), nullptr}),
              HasSubstr("logits_processors[1] is null"));
}

TEST(ConfiguredProcessors, AreCheckedBeforeAnythingRuns) {
  const CausalLM& model = checkpoint("llama");
  DynamicCache cache(model.config());
  const Inputs inputs{.input_ids = ids_tensor({{5, 6, 7}})};
  generate(model, inputs, {.max_new_tokens = 2}, &cache);
  EXPECT_THROW(
      generate(model, {.input_ids = ids_tensor({{9, 9}})}, {.bad_words_ids = Rows{{64}}}, &cache),
      ValueError);
  EXPECT_EQ(cache.get_seq_length(), 4);
}

TEST(ConfiguredProcessors, AContinuationReadsWhatItsCachesEncoderRead) {
  const LanguageModel& model = seq2seq_checkpoint("t5");
  GenerationConfig config{.max_new_tokens = 3, .encoder_no_repeat_ngram_size = 1};
  const at::Tensor encoder = ids_tensor({{5, 6, 7, 8, 9}, {12, 13, 14, 0, 0}});
  const Inputs inputs{.input_ids = encoder, .attention_mask = encoder.ne(0)};
  EncoderDecoderCache cache(model.config());
  const at::Tensor begun = generate(model, inputs, config, &cache).sequences;
  const Inputs rest{.decoder_input_ids = begun.narrow(1, 3, 1), .continuation = true};
  const at::Tensor more = generate(model, rest, config, &cache).sequences;
  const at::Tensor said_again = more.unsqueeze(2).eq(encoder.unsqueeze(1));
  EXPECT_FALSE(said_again.narrow(1, 1, 3).narrow(2, 0, 3).any().item<bool>()) << more;
  config.max_new_tokens = 6;
  const at::Tensor joined = at::cat({begun.narrow(1, 0, 3), more}, 1);
  EXPECT_TRUE(joined.equal(generate(model, inputs, config).sequences)) << joined;
}

TEST(ConfiguredProcessors, AContinuationOfUnknownEncoderInputIsRefused) {
  const detail::ProcessorStart start{
      .text = texts({{0}}), .read = std::nullopt, .max_length = 10, .vocab_size = 64};
  const auto refused = [&](const GenerationConfig& config) {
    return refusal<ValueError>([&] { detail::logits_processors(config, {}, start); });
  };
  EXPECT_THAT(refused({.encoder_repetition_penalty = 2}),
              HasSubstr("encoder_repetition_penalty needs the ids that the encoder reads"));
  EXPECT_THAT(refused({.encoder_no_repeat_ngram_size = 2}),
              HasSubstr("encoder_no_repeat_ngram_size needs the ids that the encoder reads"));
  EXPECT_EQ(detail::logits_processors({.repetition_penalty = 2}, {}, start).size(), 1U);
}

}  // namespace
}  // namespace kvcache::testing
