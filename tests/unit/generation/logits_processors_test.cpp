// Every processor alone, against what the oracle's makes of the same scores, and in the cases that
// all have in common.
#include "kvcache/generation/logits_processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/generation/sampler.h"
#include "tests/support/processors.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

at::Tensor input_scores(const json& item) {
  if (item.contains("scores")) return scores_tensor(item.at("scores"));
  const std::string dtype = item.value("dtype", "float32");
  return at::zeros({1, item.at("equal_scores").get<std::int64_t>()},
                   dtype == "bfloat16"  ? at::kBFloat16
                   : dtype == "float16" ? at::kHalf
                                        : at::kFloat);
}

TokenRows text_of(const json& item, const char* name, std::int64_t rows) {
  if (!item.contains(name)) return {at::zeros({rows, 1}, at::kLong)};
  return texts(item.at(name).get<Rows>());
}

class Processors : public ::testing::TestWithParam<const char*> {
 protected:
  json golden() const { return parity_golden(std::string("processors/") + GetParam()); }

  std::shared_ptr<LogitsProcessor> make(const json& item, std::int64_t vocab_size) const {
    return make_processor(
        {GetParam(), item.at("arguments"), vocab_size, text_of(item, "encoder_input_ids", 1)});
  }
};

TEST_P(Processors, MakeWhatTheOracleMakes) {
  const json file = golden();
  ASSERT_FALSE(file.at("cases").empty());
  for (const json& item : file.at("cases")) {
    SCOPED_TRACE(item.at("name").get<std::string>());
    const at::Tensor scores = input_scores(item);
    const at::Tensor before = scores.clone();
    const auto processor = make(item, scores.size(1));
    const TokenRows text = text_of(item, "input_ids", scores.size(0));
    const at::Tensor after = processor->process(text, scores);
    EXPECT_TRUE(at::allclose(scores, before, 0, 0, /*equal_nan=*/true)) << "was written to";
    EXPECT_EQ(after.scalar_type(), scores.scalar_type());
    if (item.contains("kept")) {
      const at::Tensor kept = after.isfinite().sum(1);
      EXPECT_TRUE(
          kept.equal(ids_tensor({item.at("kept").get<std::vector<std::int64_t>>()}).flatten()))
          << kept;
    } else {
      EXPECT_TRUE(at::allclose(after, scores_tensor(item.at("outputs")), 1e-6, 1e-6)) << after;
    }
    EXPECT_TRUE(at::allclose(processor->process(text, scores), after, 0, 0, true)) << "the next";
  }
}

TEST_P(Processors, RefuseWhatIsOutOfRange) {
  const json goldens = golden();  // outlives the loop
  for (const json& item : goldens.at("refused")) {
    const std::string message = refusal<ValueError>([&] { make(item, 16); });
    EXPECT_THAT(message, HasSubstr(GetParam())) << item;
    EXPECT_THAT(message, HasSubstr(" but is ")) << item;
  }
}

// Two rows that the oracle saw with a row of their own each, behind padding in one batch.
TEST_P(Processors, SeeRowsWithoutTheirPadding) {
  const std::string field = GetParam();
  const json goldens = golden();  // outlives the loop
  for (const json& item : goldens.at("cases")) {
    if (!item.contains("input_ids")) continue;
    SCOPED_TRACE(item.at("name").get<std::string>());
    const at::Tensor scores = input_scores(item);
    const TokenRows solo = text_of(item, "input_ids", scores.size(0));
    const at::Tensor expected = make(item, scores.size(1))->process(solo, scores);
    const std::int64_t rows = scores.size(0), pads = 3;
    const auto padded = [&](const TokenRows& text) {
      const at::Tensor filler = at::full({rows, pads}, 1, at::kLong);
      const at::Tensor real = at::ones_like(text.ids, at::kBool);
      return TokenRows{at::cat({filler, text.ids}, 1), at::cat({filler.ne(1), real}, 1)};
    };
    json moved = item;  // what counts columns starts later
    for (const char* name : {"prompt_length", "max_length"}) {
      auto& arguments = moved.at("arguments");
      if (arguments.contains(name)) arguments[name] = arguments[name].get<std::int64_t>() + pads;
    }
    const at::Tensor got = make(moved, scores.size(1))->process(padded(solo), scores);
    EXPECT_TRUE(at::allclose(got, expected, 0, 0, /*equal_nan=*/true)) << got << expected;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, Processors,
    ::testing::Values("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size",
                      "encoder_no_repeat_ngram_size", "sequence_bias", "bad_words_ids",
                      "min_length", "min_new_tokens", "forced_bos_token_id", "forced_eos_token_id",
                      "suppress_tokens", "begin_suppress_tokens",
                      "exponential_decay_length_penalty", "remove_invalid_values",
                      "renormalize_logits", "temperature", "top_k", "top_p", "min_p", "top_h",
                      "typical_p", "epsilon_cutoff", "eta_cutoff"),
    [](const auto& suite) { return suite.param; });

LogitsProcessors all_but_those_that_repair() {
  const ExponentialDecayLengthPenalty decay{0, 1.5};
  const TokenRows encoder = texts({{1, 2, 3}});
  return {std::make_shared<SequenceBiasLogitsProcessor>(std::vector<SequenceBias>{{{1}, 2}}, 4),
          std::make_shared<EncoderRepetitionPenaltyLogitsProcessor>(1.5, encoder),
          std::make_shared<RepetitionPenaltyLogitsProcessor>(1.5),
          std::make_shared<NoRepeatNGramLogitsProcessor>(2),
          std::make_shared<EncoderNoRepeatNGramLogitsProcessor>(2, encoder),
          std::make_shared<NoBadWordsLogitsProcessor>(Rows{{1}}, std::vector<std::int64_t>{}, 4),
          std::make_shared<MinLengthLogitsProcessor>(9, std::vector<std::int64_t>{0}, 4),
          std::make_shared<ExponentialDecayLengthPenaltyLogitsProcessor>(
              decay, std::vector<std::int64_t>{0}, 1, 4),
          std::make_shared<SuppressTokensLogitsProcessor>(std::vector<std::int64_t>{3}, 4),
          std::make_shared<TemperatureLogitsWarper>(0.5),
          std::make_shared<TopHLogitsWarper>(0.5),
          std::make_shared<TopKLogitsWarper>(2),
          std::make_shared<TopPLogitsWarper>(0.5),
          std::make_shared<MinPLogitsWarper>(0.5),
          std::make_shared<TypicalLogitsWarper>(0.5),
          std::make_shared<EpsilonLogitsWarper>(0.5),
          std::make_shared<EtaLogitsWarper>(0.5),
          std::make_shared<LogitNormalization>()};
}

// A row that leaves nothing to choose is named when a token is chosen, whatever ran before.
TEST(LogitsProcessors, RowsOfNothingAreNamedInTheEnd) {
  const TokenRows text = texts({{1, 2}, {2, 1}, {3, 1}});
  for (const float bad : {NAN, -INFINITY}) {
    at::Tensor scores = at::linspace(-1, 1, 12).reshape({3, 4});
    scores[1].fill_(bad);
    for (const auto& processor : all_but_those_that_repair()) {
      const at::Tensor after = processor->process(text, scores);
      for (const bool sample : {false, true}) {
        const std::string message = refusal<RuntimeError>(
            [&] { sample ? choose_at_random(after, make_generator(1)) : choose_best(after); });
        EXPECT_THAT(message, HasSubstr("the scores of row 1 leave no token to choose"))
            << typeid(*processor).name() << " " << bad;
      }
    }
  }
}

TEST(LogitsProcessors, OneTokenIsLeftWhateverIsAskedOfTheWarpers) {
  const TokenRows text = texts({{1}});
  const at::Tensor scores = at::tensor({0.5F, 3.F, 0.F}).unsqueeze(0);
  const LogitsProcessors strictest{
      std::make_shared<TopKLogitsWarper>(1),    std::make_shared<TopPLogitsWarper>(0),
      std::make_shared<TopPLogitsWarper>(1e-9), std::make_shared<MinPLogitsWarper>(1),
      std::make_shared<TopHLogitsWarper>(1e-9), std::make_shared<EpsilonLogitsWarper>(0.999),
      std::make_shared<EtaLogitsWarper>(0.999)};
  for (const auto& warper : strictest) {
    const at::Tensor after = warper->process(text, scores);
    EXPECT_TRUE(after.isfinite().equal(at::tensor({0, 1, 0}).to(at::kBool).unsqueeze(0))) << after;
  }
  const at::Tensor typical = TypicalLogitsWarper(1e-9).process(text, scores);
  EXPECT_EQ(typical.isfinite().sum().item<int>(), 1);
}

TEST(LogitsProcessors, RefuseNumbersThatAreNone) {
  EXPECT_THROW(RepetitionPenaltyLogitsProcessor{NAN}, ValueError);
  EXPECT_THROW(RepetitionPenaltyLogitsProcessor{INFINITY}, ValueError);
  EXPECT_THROW(RepetitionPenaltyLogitsProcessor{1e-300}, ValueError);
  EXPECT_THROW(EncoderRepetitionPenaltyLogitsProcessor(NAN, texts({{1}})), ValueError);
  EXPECT_THROW(TemperatureLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(TopPLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(MinPLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(TopHLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(TypicalLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(EpsilonLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(EtaLogitsWarper{NAN}, ValueError);
}

}  // namespace
}  // namespace kvcache::testing
