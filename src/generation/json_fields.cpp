#include "generation/json_fields.h"

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace kvcache::detail {
namespace {

using nlohmann::json;

template <typename T>
T read_value(const json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) throw std::string("true or false");
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargest)) {
      throw std::string("an integer");
    }
  } else if constexpr (std::is_same_v<T, double>) {
    if (!value.is_number()) throw std::string("a number");
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) throw std::string("a string");
  }
  return value.get<T>();
}

// One id, or a list of them; negative ones are none.
template <>
std::vector<std::int64_t> read_value(const json& value) {
  if (!value.is_array() && !value.is_number_integer()) {
    throw std::string("an integer or a list of integers");
  }
  std::vector<std::int64_t> ids;
  const auto add = [&](const json& item) {
    const auto id = read_value<std::int64_t>(item);
    if (id >= 0) ids.push_back(id);
  };
  if (value.is_array()) {
    for (const json& item : value) add(item);
  } else {
    add(value);
  }
  return ids;
}

template <typename T>
SupportedField field(std::string_view name, std::optional<T> GenerationConfig::*member) {
  return {name, [member](GenerationConfig& config, const json& value) {
            config.*member = read_value<T>(value);
          }};
}

// True or false makes no difference: what the field would switch is not there.
SupportedField without_effect(std::string_view name) {
  return {name, [](GenerationConfig&, const json& value) { (void)read_value<bool>(value); }};
}

// An id; a negative one, which old files use for none, leaves the field unset.
SupportedField id_field(std::string_view name,
                        std::optional<std::int64_t> GenerationConfig::*member) {
  return {name, [member](GenerationConfig& config, const json& value) {
            const auto id = read_value<std::int64_t>(value);
            if (id >= 0) config.*member = id;
          }};
}

SupportedField cache_config_field() {
  return {"cache_config", [](GenerationConfig& config, const json& value) {
            if (!value.is_object()) throw std::string("an object");
            config.cache_config = value.dump();
          }};
}

}  // namespace

const std::vector<SupportedField>& supported_fields() {
  using Config = GenerationConfig;
  static const std::vector<SupportedField> fields = {
      field("max_length", &Config::max_length),
      field("max_new_tokens", &Config::max_new_tokens),
      field("min_length", &Config::min_length),
      field("min_new_tokens", &Config::min_new_tokens),
      field("do_sample", &Config::do_sample),
      field("num_beams", &Config::num_beams),
      field("temperature", &Config::temperature),
      field("top_k", &Config::top_k),
      field("top_p", &Config::top_p),
      field("min_p", &Config::min_p),
      field("repetition_penalty", &Config::repetition_penalty),
      field("num_return_sequences", &Config::num_return_sequences),
      field("use_cache", &Config::use_cache),
      field("cache_implementation", &Config::cache_implementation),
      cache_config_field(),
      field("max_cache_len", &Config::max_cache_len),
      field("eos_token_id", &Config::eos_token_id),
      id_field("pad_token_id", &Config::pad_token_id),
      id_field("bos_token_id", &Config::bos_token_id),
      id_field("decoder_start_token_id", &Config::decoder_start_token_id),
      field("output_logits", &Config::output_logits),
      without_effect("return_dict_in_generate"),  // generate() always returns a struct
      without_effect("disable_compile"),          // decoding is eager
  };
  return fields;
}

const std::vector<UnsupportedField>& unsupported_fields() {
  static const std::vector<UnsupportedField> fields = {
      {"early_stopping", {false}},
      {"max_time", {}},
      {"stop_strings", {}},
      {"use_mtp", {false}},
      {"top_h", {}},
      {"typical_p", {1.0}},
      {"epsilon_cutoff", {0.0}},
      {"eta_cutoff", {0.0}},
      {"encoder_repetition_penalty", {1.0}},
      {"length_penalty", {1.0}},
      {"no_repeat_ngram_size", {0}},
      {"bad_words_ids", {}},
      {"renormalize_logits", {false}},
      {"forced_bos_token_id", {}},
      {"forced_eos_token_id", {}},
      {"remove_invalid_values", {false}},
      {"exponential_decay_length_penalty", {}},
      {"suppress_tokens", {}},
      {"begin_suppress_tokens", {}},
      {"sequence_bias", {}},
      {"token_healing", {false}},
      {"guidance_scale", {}},
      {"watermarking_config", {}},
      {"output_attentions", {false}},
      {"output_hidden_states", {false}},
      {"output_scores", {false}},
      {"encoder_no_repeat_ngram_size", {0}},
      {"is_assistant", {false}},
      {"num_assistant_tokens", {20}},
      {"num_assistant_tokens_schedule", {"constant"}},
      {"assistant_confidence_threshold", {0.4}},
      {"prompt_lookup_num_tokens", {}},
      {"max_matching_ngram_size", {}},
      {"assistant_early_exit", {}},
      {"assistant_lookbehind", {10}},
      {"target_lookbehind", {10}},
      {"assistant_ensemble_weight", {}},
      {"speculation_type", {}},
      {"compile_config", {}},
      {"continuous_batching_config", {}},
      {"low_memory", {false}},
      {"penalty_alpha", {}},
      {"dola_layers", {}},
      {"diversity_penalty", {0.0}},
      {"num_beam_groups", {1}},
      {"constraints", {}},
      {"force_words_ids", {}},
      {"prefill_chunk_size", {}},
  };
  return fields;
}

bool is_metadata(std::string_view name) {
  return name == "_from_model_config" || name == "transformers_version" || name == "_commit_hash";
}

}  // namespace kvcache::detail
