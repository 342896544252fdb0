// How to generate: Transformers' GenerationConfig, field by field under its names, and its JSON
// form. Nothing here changes while generate() runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

// When beam search stops: see GenerationConfig::early_stopping.
enum class EarlyStopping { no, yes, never };

// A sequence of ids and what is added to the score of its last one where the others precede it.
struct SequenceBias {
  std::vector<std::int64_t> ids;
  double bias = 0;

  bool operator==(const SequenceBias&) const = default;
};

struct ExponentialDecayLengthPenalty {
  std::int64_t start_index = 0;  // new tokens a row before it sets in
  double decay_factor = 1;       // its growth a token

  bool operator==(const ExponentialDecayLengthPenalty&) const = default;
};

// An unset field takes the value of the config it is merged over, and in the end the default given
// in brackets. Values of a way of decoding that is not asked for have no effect.
struct GenerationConfig {
  // Length, in tokens a row, padding included but in min_length.
  std::optional<std::int64_t> max_length = {};  // prompt and new tokens [see below]
  std::optional<std::int64_t> max_new_tokens =
      {};                                       // goes before max_length [20, where both are unset]
  std::optional<std::int64_t> min_length = {};  // prompt and new tokens [0]
  std::optional<std::int64_t> min_new_tokens = {};  // goes before min_length [0]

  // Other ends.
  std::optional<double> max_time = {};                        // seconds [no limit]
  std::optional<std::vector<std::string>> stop_strings = {};  // a text ends at any of them [none]

  // Choice of the next token.
  std::optional<bool> do_sample = {};          // [false: greedy]
  std::optional<std::int64_t> num_beams = {};  // [1: no beam search]
  // Beam search ends, no: when better texts are unlikely; yes: with num_beams complete ones; never:
  // when there can be no better one. In JSON false, true and "never" [no]
  std::optional<EarlyStopping> early_stopping = {};
  std::optional<double> length_penalty = {};  // exponent of the length that divides a score [1]

  // Of sampling.
  std::optional<double> temperature = {};     // > 0 [1]
  std::optional<std::int64_t> top_k = {};     // 0: off [50]
  std::optional<double> top_p = {};           // in [0, 1]; 1: off [1]
  std::optional<double> min_p = {};           // in [0, 1] [off]
  std::optional<double> top_h = {};           // in (0, 1] [off]
  std::optional<double> typical_p = {};       // in (0, 1]; 1: off [1]
  std::optional<double> epsilon_cutoff = {};  // in [0, 1); 0: off [0]
  std::optional<double> eta_cutoff = {};      // in [0, 1); 0: off [0]

  // Of every way of decoding.
  std::optional<double> repetition_penalty = {};                             // > 0; 1: off [1]
  std::optional<double> encoder_repetition_penalty = {};                     // > 0; 1: off [1]
  std::optional<std::int64_t> no_repeat_ngram_size = {};                     // tokens; 0: off [0]
  std::optional<std::int64_t> encoder_no_repeat_ngram_size = {};             // tokens; 0: off [0]
  std::optional<std::vector<std::vector<std::int64_t>>> bad_words_ids = {};  // [none]
  std::optional<std::vector<SequenceBias>> sequence_bias = {};               // [none]
  std::optional<std::int64_t> forced_bos_token_id = {};                 // first new token [any]
  std::optional<std::vector<std::int64_t>> forced_eos_token_id = {};    // one at max_length [any]
  std::optional<std::vector<std::int64_t>> suppress_tokens = {};        // never chosen [none]
  std::optional<std::vector<std::int64_t>> begin_suppress_tokens = {};  // not chosen first [none]
  std::optional<ExponentialDecayLengthPenalty> exponential_decay_length_penalty = {};  // [off]
  std::optional<bool> remove_invalid_values = {};  // NaN and infinities become numbers [false]
  std::optional<bool> renormalize_logits = {};     // log softmax behind all others [false]

  std::optional<std::int64_t> num_return_sequences = {};  // rows made of each input row [1]

  // Cache.
  std::optional<bool> use_cache = {};                    // [true]
  std::optional<std::string> cache_implementation = {};  // its kind ["dynamic"]
  std::optional<std::string> cache_config = {};          // a JSON object, its settings [{}]
  // Tokens that a static cache has room for, at least; others ignore it [prompt and new tokens].
  std::optional<std::int64_t> max_cache_len = {};
  // Tokens a row of the prompt in one forward pass, at most; bounds a prefill's memory [all].
  std::optional<std::int64_t> prefill_chunk_size = {};

  // Special tokens.
  std::optional<std::vector<std::int64_t>> eos_token_id =
      {};                                         // a row ends at any of them; {}: at none
  std::optional<std::int64_t> pad_token_id = {};  // fills ended rows [the first eos]
  std::optional<std::int64_t> bos_token_id = {};  // the prompt where none is given
  // The first token of a decoder with an encoder [the model's, else bos_token_id].
  std::optional<std::int64_t> decoder_start_token_id = {};

  // Drafts that the model checks.
  std::optional<std::int64_t> prompt_lookup_num_tokens = {};  // tokens drafted from the text [off]
  std::optional<std::int64_t> max_matching_ngram_size = {};   // tokens that find a draft [2]
  std::optional<std::int64_t> num_assistant_tokens = {};      // tokens drafted by a model [20]
  // "constant", "heuristic" or "heuristic_transient" ["constant"]
  std::optional<std::string> num_assistant_tokens_schedule = {};
  std::optional<double> assistant_confidence_threshold =
      {};  // in [0, 1]; below it drafts end [0.4]

  // Output.
  std::optional<bool> output_logits = {};  // [false]

  // The config that `json` describes, an object of Transformers' fields; null leaves a field unset.
  // Metadata is ignored. Throws ValueError, naming the field, for a wrong type, for a field that
  // Transformers 5.24 does not have, and for one that is not supported here unless it has its
  // default value. `source` names the text in messages.
  static GenerationConfig from_json(std::string_view json, std::string_view source = "the text");

  // A checkpoint's generation_config.json; where there is none, the special tokens of its
  // config.json, if there is one. Throws as from_json.
  static GenerationConfig from_pretrained(const std::filesystem::path& folder);

  // This config, with `base`'s values where this one's are unset.
  GenerationConfig over(const GenerationConfig& base) const;

  // Whether a row ends at this token: one of eos_token_id.
  bool ends_at(std::int64_t token) const;

  // Throws ValueError naming the field, its value and what would be right.
  void validate() const;
};

}  // namespace kvcache
