#include "generation/json_fields.h"

#include <cstdint>
#include <optional>
#include <string>

#include "generation/json_values.h"

namespace kvcache::detail {
namespace {

using nlohmann::json;

template <typename T>
using Member = std::optional<T> GenerationConfig::*;

template <typename T, typename Read>
SupportedField field_read_by(std::string_view name, Member<T> member, Read read) {
  return {
      name,
      [member, read](GenerationConfig& config, const json& value) { config.*member = read(value); },
      [member](GenerationConfig& config, const GenerationConfig& other) {
        if (other.*member) config.*member = other.*member;
      }};
}

template <typename T>
SupportedField field(std::string_view name, Member<T> member) {
  return field_read_by(name, member, read_value<T>);
}

// An id; a negative one, which old files use for none, leaves the field unset.
SupportedField id_field(std::string_view name, Member<std::int64_t> member) {
  return field_read_by(name, member, [](const json& value) -> std::optional<std::int64_t> {
    const auto id = read_value<std::int64_t>(value);
    if (id < 0) return std::nullopt;
    return id;
  });
}

// One id, or a list of them; negative ones are none.
SupportedField ids_field(std::string_view name, Member<std::vector<std::int64_t>> member) {
  return field_read_by(name, member, [](const json& value) {
    auto ids = read_value<std::vector<std::int64_t>>(value);
    std::erase_if(ids, [](std::int64_t id) { return id < 0; });
    return ids;
  });
}

// True or false makes no difference: what the field would switch is not there.
SupportedField without_effect(std::string_view name) {
  return {name, [](GenerationConfig&, const json& value) { (void)read_value<bool>(value); },
          [](GenerationConfig&, const GenerationConfig&) {}};
}

SupportedField cache_config_field() {
  return field_read_by("cache_config", &GenerationConfig::cache_config, [](const json& value) {
    if (!value.is_object()) throw std::string("an object");
    return value.dump();
  });
}

}  // namespace

const std::vector<SupportedField>& supported_fields() {
  using Config = GenerationConfig;
  static const std::vector<SupportedField> fields = {
      field("max_length", &Config::max_length),
      field("max_new_tokens", &Config::max_new_tokens),
      field("min_length", &Config::min_length),
      field("min_new_tokens", &Config::min_new_tokens),
      field("max_time", &Config::max_time),
      field("stop_strings", &Config::stop_strings),
      field("do_sample", &Config::do_sample),
      field("num_beams", &Config::num_beams),
      field("early_stopping", &Config::early_stopping),
      field("length_penalty", &Config::length_penalty),
      field("temperature", &Config::temperature),
      field("top_k", &Config::top_k),
      field("top_p", &Config::top_p),
      field("min_p", &Config::min_p),
      field("top_h", &Config::top_h),
      field("typical_p", &Config::typical_p),
      field("epsilon_cutoff", &Config::epsilon_cutoff),
      field("eta_cutoff", &Config::eta_cutoff),
      field("repetition_penalty", &Config::repetition_penalty),
      field("encoder_repetition_penalty", &Config::encoder_repetition_penalty),
      field("no_repeat_ngram_size", &Config::no_repeat_ngram_size),
      field("encoder_no_repeat_ngram_size", &Config::encoder_no_repeat_ngram_size),
      field("bad_words_ids", &Config::bad_words_ids),
      field("sequence_bias", &Config::sequence_bias),
      id_field("forced_bos_token_id", &Config::forced_bos_token_id),
      ids_field("forced_eos_token_id", &Config::forced_eos_token_id),
      field("suppress_tokens", &Config::suppress_tokens),
      field("begin_suppress_tokens", &Config::begin_suppress_tokens),
      field("exponential_decay_length_penalty", &Config::exponential_decay_length_penalty),
      field("remove_invalid_values", &Config::remove_invalid_values),
      field("renormalize_logits", &Config::renormalize_logits),
      field("num_return_sequences", &Config::num_return_sequences),
      field("use_cache", &Config::use_cache),
      field("cache_implementation", &Config::cache_implementation),
      cache_config_field(),
      field("max_cache_len", &Config::max_cache_len),
      field("prefill_chunk_size", &Config::prefill_chunk_size),
      ids_field("eos_token_id", &Config::eos_token_id),
      id_field("pad_token_id", &Config::pad_token_id),
      id_field("bos_token_id", &Config::bos_token_id),
      id_field("decoder_start_token_id", &Config::decoder_start_token_id),
      field("prompt_lookup_num_tokens", &Config::prompt_lookup_num_tokens),
      field("max_matching_ngram_size", &Config::max_matching_ngram_size),
      field("num_assistant_tokens", &Config::num_assistant_tokens),
      field("num_assistant_tokens_schedule", &Config::num_assistant_tokens_schedule),
      field("assistant_confidence_threshold", &Config::assistant_confidence_threshold),
      field("output_logits", &Config::output_logits),
      without_effect("return_dict_in_generate"),  // generate() always returns a struct
      without_effect("disable_compile"),          // decoding is eager
  };
  return fields;
}

const std::vector<UnsupportedField>& unsupported_fields() {
  static const std::vector<UnsupportedField> fields = {
      {"use_mtp", {false}},
      {"token_healing", {false}},
      {"guidance_scale", {1.0}},
      {"watermarking_config", {}},
      {"output_attentions", {false}},
      {"output_hidden_states", {false}},
      {"output_scores", {false}},
      {"is_assistant", {false}},
      {"assistant_early_exit", {}},
      {"assistant_lookbehind", {10}},
      {"target_lookbehind", {10}},
      {"assistant_ensemble_weight", {}},
      {"speculation_type", {}},
      {"compile_config", {}},
      {"continuous_batching_config", {}},
      {"low_memory", {false}},
      {"penalty_alpha", {0.0}},
      {"dola_layers", {}},
      {"diversity_penalty", {0.0}},
      {"num_beam_groups", {1}},
      {"constraints", {}},
      {"force_words_ids", {}},
  };
  return fields;
}

bool is_metadata(std::string_view name) {
  return name == "_from_model_config" || name == "transformers_version" || name == "_commit_hash";
}

}  // namespace kvcache::detail
