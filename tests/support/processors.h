// Logits processors made of the settings that the goldens of tests/parity give, and their scores.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/generation/logits_processors.h"

namespace kvcache::testing {

// A JSON file below tests/parity/goldens.
inline nlohmann::json parity_golden(const std::string& name) {
  const std::string path = KVCACHE_TEST_DATA_DIR "/parity/goldens/" + name + ".json";
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

// float32 [rows, vocab]; infinities and NaN are strings.
inline at::Tensor scores_tensor(const nlohmann::json& rows) {
  const std::map<std::string, float> special{{"-inf", -INFINITY}, {"inf", INFINITY}, {"nan", NAN}};
  std::vector<float> values;
  for (const auto& row : rows) {
    for (const auto& score : row) {
      values.push_back(score.is_string() ? special.at(score.get<std::string>())
                                         : score.get<float>());
    }
  }
  return at::tensor(values, at::kFloat).reshape({static_cast<std::int64_t>(rows.size()), -1});
}

// Texts without padding.
inline TokenRows texts(const std::vector<std::vector<std::int64_t>>& rows) {
  std::vector<at::Tensor> parts;
  for (const auto& row : rows) parts.push_back(at::tensor(row, at::kLong));
  return {at::stack(parts)};
}

// The settings of one processor, a field of GenerationConfig and what goes with it.
struct ProcessorSettings {
  using Ids = std::vector<std::int64_t>;

  std::string field;
  nlohmann::json arguments;
  std::int64_t vocab_size;
  TokenRows encoder;

  double number() const { return arguments.at(field); }
  std::int64_t integer(const std::string& name) const { return arguments.at(name); }
  std::int64_t kept() const { return arguments.value("min_tokens_to_keep", std::int64_t{1}); }
  Ids ids(const std::string& name) const {
    if (!arguments.contains(name)) return {};
    const auto& value = arguments.at(name);
    return value.is_array() ? value.get<Ids>() : Ids{value.get<std::int64_t>()};
  }
  std::vector<SequenceBias> biases() const {
    std::vector<SequenceBias> sequences;
    for (const auto& item : arguments.at(field)) sequences.push_back({item.at(0), item.at(1)});
    return sequences;
  }
  ExponentialDecayLengthPenalty decay() const {
    return {arguments.at(field).at(0), arguments.at(field).at(1)};
  }

  template <typename Processor, typename... Arguments>
  std::shared_ptr<LogitsProcessor> make(const Arguments&... of) const {
    return std::make_shared<Processor>(of...);
  }
};

inline std::shared_ptr<LogitsProcessor> make_warper(const ProcessorSettings& s) {
  if (s.field == "temperature") return s.make<TemperatureLogitsWarper>(s.number());
  if (s.field == "top_k") return s.make<TopKLogitsWarper>(s.integer(s.field), s.kept());
  if (s.field == "top_p") return s.make<TopPLogitsWarper>(s.number(), s.kept());
  if (s.field == "min_p") return s.make<MinPLogitsWarper>(s.number(), s.kept());
  if (s.field == "top_h") return s.make<TopHLogitsWarper>(s.number());
  if (s.field == "typical_p") return s.make<TypicalLogitsWarper>(s.number(), s.kept());
  if (s.field == "epsilon_cutoff") return s.make<EpsilonLogitsWarper>(s.number(), s.kept());
  if (s.field == "eta_cutoff") return s.make<EtaLogitsWarper>(s.number(), s.kept());
  return nullptr;
}

inline std::shared_ptr<LogitsProcessor> make_repetition(const ProcessorSettings& s) {
  if (s.field == "repetition_penalty") return s.make<RepetitionPenaltyLogitsProcessor>(s.number());
  if (s.field == "encoder_repetition_penalty") {
    return s.make<EncoderRepetitionPenaltyLogitsProcessor>(s.number(), s.encoder);
  }
  if (s.field == "no_repeat_ngram_size") {
    return s.make<NoRepeatNGramLogitsProcessor>(s.integer(s.field));
  }
  if (s.field == "encoder_no_repeat_ngram_size") {
    return s.make<EncoderNoRepeatNGramLogitsProcessor>(s.integer(s.field), s.encoder);
  }
  return nullptr;
}

inline std::shared_ptr<LogitsProcessor> make_sequence_or_token(const ProcessorSettings& s) {
  if (s.field == "sequence_bias") {
    return s.make<SequenceBiasLogitsProcessor>(s.biases(), s.vocab_size);
  }
  if (s.field == "bad_words_ids") {
    return s.make<NoBadWordsLogitsProcessor>(
        s.arguments.at(s.field).get<std::vector<ProcessorSettings::Ids>>(), s.ids("eos_token_id"),
        s.vocab_size);
  }
  if (s.field == "forced_bos_token_id") {
    return s.make<ForcedBOSTokenLogitsProcessor>(s.integer(s.field), s.vocab_size);
  }
  if (s.field == "forced_eos_token_id") {
    return s.make<ForcedEOSTokenLogitsProcessor>(s.integer("max_length"), s.ids(s.field),
                                                 s.vocab_size);
  }
  if (s.field == "suppress_tokens") {
    return s.make<SuppressTokensLogitsProcessor>(s.ids(s.field), s.vocab_size);
  }
  if (s.field == "begin_suppress_tokens") {
    return s.make<SuppressTokensAtBeginLogitsProcessor>(s.ids(s.field), s.integer("prompt_length"),
                                                        s.vocab_size);
  }
  return nullptr;
}

inline std::shared_ptr<LogitsProcessor> make_length_or_scale(const ProcessorSettings& s) {
  if (s.field == "min_length") {
    return s.make<MinLengthLogitsProcessor>(s.integer(s.field), s.ids("eos_token_id"),
                                            s.vocab_size);
  }
  if (s.field == "min_new_tokens") {
    return s.make<MinNewTokensLengthLogitsProcessor>(s.integer("prompt_length"), s.integer(s.field),
                                                     s.ids("eos_token_id"), s.vocab_size);
  }
  if (s.field == "exponential_decay_length_penalty") {
    return s.make<ExponentialDecayLengthPenaltyLogitsProcessor>(
        s.decay(), s.ids("eos_token_id"), s.integer("prompt_length"), s.vocab_size);
  }
  if (s.field == "remove_invalid_values") return s.make<InfNanRemoveLogitsProcessor>();
  if (s.field == "renormalize_logits") return s.make<LogitNormalization>();
  return nullptr;
}

inline std::shared_ptr<LogitsProcessor> make_processor(const ProcessorSettings& settings) {
  for (const auto& make :
       {make_warper, make_repetition, make_sequence_or_token, make_length_or_scale}) {
    if (auto made = make(settings)) return made;
  }
  ADD_FAILURE() << "there is no processor for " << settings.field;
  return nullptr;
}

}  // namespace kvcache::testing
