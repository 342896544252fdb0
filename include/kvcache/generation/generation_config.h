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

// An unset field takes the value of the config it is merged over, and in the end the default given
// in brackets.
struct GenerationConfig {
  // Length, in tokens a row, padding included.
  std::optional<std::int64_t> max_length = {};  // prompt and new tokens [see below]
  std::optional<std::int64_t> max_new_tokens =
      {};                                       // goes before max_length [20, where both are unset]
  std::optional<std::int64_t> min_length = {};  // prompt and new tokens [0]
  std::optional<std::int64_t> min_new_tokens = {};  // goes before min_length [0]

  // Choice of the next token.
  std::optional<bool> do_sample = {};                     // [false: greedy]
  std::optional<std::int64_t> num_beams = {};             // [1], the only value so far
  std::optional<double> temperature = {};                 // > 0 [1]
  std::optional<std::int64_t> top_k = {};                 // 0: off [50]
  std::optional<double> top_p = {};                       // in [0, 1]; 1: off [1]
  std::optional<double> min_p = {};                       // in [0, 1] [off]
  std::optional<double> repetition_penalty = {};          // > 0; 1: off [1]
  std::optional<std::int64_t> num_return_sequences = {};  // rows made of each input row [1]

  // Cache.
  std::optional<bool> use_cache = {};                    // [true]
  std::optional<std::string> cache_implementation = {};  // "static" or ["dynamic"]
  std::optional<std::string> cache_config = {};          // a JSON object; these take no entry
  // Tokens that a static cache has room for, at least [the prompt and the new tokens].
  std::optional<std::int64_t> max_cache_len = {};

  // Special tokens.
  std::optional<std::vector<std::int64_t>> eos_token_id =
      {};                                         // a row ends at any of them; {}: at none
  std::optional<std::int64_t> pad_token_id = {};  // fills ended rows [the first eos]
  std::optional<std::int64_t> bos_token_id = {};  // the prompt where none is given
  // The first token of a decoder with an encoder [the model's, else bos_token_id].
  std::optional<std::int64_t> decoder_start_token_id = {};

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

  // Throws ValueError naming the field, its value and what would be right.
  void validate() const;
};

}  // namespace kvcache
