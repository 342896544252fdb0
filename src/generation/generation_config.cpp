#include "kvcache/generation/generation_config.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "generation/json_fields.h"
#include "generation/not_built.h"
#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

void check_at_least(const char* name, const std::optional<std::int64_t>& value,
                    std::int64_t smallest) {
  check_value(!value || *value >= smallest, name, " must be at least ", smallest, ", but is ",
              value.value_or(0));
}

void check_at_most(const char* name, const std::optional<std::int64_t>& value,
                   std::int64_t largest) {
  check_value(value.value_or(largest) <= largest, name, " must be at most ", largest, ", but is ",
              value.value_or(0));
}

void check_fraction(const char* name, const std::optional<double>& value) {
  check_value(!value || (*value >= 0 && *value <= 1), name, " must be in [0, 1], but is ",
              value.value_or(0));
}

// What scores, float32, can be divided by.
bool is_float_factor(double value) {
  return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
}

constexpr std::int64_t kMostSequences = 65'536;

// So that sums of lengths stay far from overflow.
constexpr std::int64_t kLongestText = std::int64_t{1} << 40;

void check_length(const char* name, const std::optional<std::int64_t>& value,
                  std::int64_t smallest) {
  check_at_least(name, value, smallest);
  check_at_most(name, value, kLongestText);
}

void check_lengths(const GenerationConfig& config) {
  check_length("max_length", config.max_length, 1);
  check_length("max_new_tokens", config.max_new_tokens, 1);
  check_length("min_length", config.min_length, 0);
  check_length("min_new_tokens", config.min_new_tokens, 0);
  check_length("max_cache_len", config.max_cache_len, 1);
}

void check_choice(const GenerationConfig& config) {
  const bool sample = config.do_sample.value_or(false);
  check_at_least("num_beams", config.num_beams, 1);
  const double temperature = config.temperature.value_or(1);
  check_value(is_float_factor(temperature) || (temperature == 0 && !sample),
              "temperature must be above 0 when sampling and a normal float32, but is ",
              temperature, "; for the best token at each step set do_sample to false");
  check_at_least("top_k", config.top_k, 0);
  check_fraction("top_p", config.top_p);
  check_fraction("min_p", config.min_p);
  const double penalty = config.repetition_penalty.value_or(1);
  check_value(is_float_factor(penalty),
              "repetition_penalty must be above 0 (1: off) and a normal float32, but is ", penalty);
  check_at_least("num_return_sequences", config.num_return_sequences, 1);
  check_at_most("num_return_sequences", config.num_return_sequences, kMostSequences);
  check_value(sample || config.num_return_sequences.value_or(1) == 1,
              "num_return_sequences = ", config.num_return_sequences.value_or(1),
              " needs do_sample: greedy decoding would make the same text each time");
}

void check_cache(const GenerationConfig& config) {
  const std::string kind = config.cache_implementation.value_or("dynamic");
  constexpr const char* kKinds[] = {"dynamic", "static", "offloaded", "offloaded_static",
                                    "quantized"};
  check_value(std::find(std::begin(kKinds), std::end(kKinds), kind) != std::end(kKinds),
              "there is no cache_implementation \"", kind,
              "\"; it can be \"dynamic\", \"static\", \"offloaded\", \"offloaded_static\" or "
              "\"quantized\"");
  check_value(config.cache_config.value_or("{}") == "{}",
              "cache_config = ", config.cache_config.value_or(""), " has no use: the ", kind,
              " cache has no settings; leave it out");
}

void check_special_tokens(const GenerationConfig& config) {
  check_at_least("pad_token_id", config.pad_token_id, 0);
  check_at_least("bos_token_id", config.bos_token_id, 0);
  check_at_least("decoder_start_token_id", config.decoder_start_token_id, 0);
  for (const std::int64_t id : config.eos_token_id.value_or(std::vector<std::int64_t>{})) {
    check_at_least("eos_token_id", id, 0);
  }
}

}  // namespace

GenerationConfig GenerationConfig::over(const GenerationConfig& base) const {
  GenerationConfig merged = base;
  for (const auto& field : detail::supported_fields()) field.take(merged, *this);
  return merged;
}

void GenerationConfig::validate() const {
  check_lengths(*this);
  check_choice(*this);
  check_cache(*this);
  check_special_tokens(*this);
  detail::check_built(*this);
}

}  // namespace kvcache
