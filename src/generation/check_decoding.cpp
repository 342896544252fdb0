#include <cmath>
#include <string>

#include "generation/config_checks.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kMostSequences = 65'536;

// So that sums of lengths stay far from overflow.
constexpr std::int64_t kLongestText = std::int64_t{1} << 40;

void check_length(const char* name, const std::optional<std::int64_t>& value,
                  std::int64_t smallest) {
  check_at_least(name, value, smallest);
  check_at_most(name, value, kLongestText);
}

}  // namespace

void check_lengths(const GenerationConfig& config) {
  check_length("max_length", config.max_length, 1);
  check_length("max_new_tokens", config.max_new_tokens, 1);
  check_length("min_length", config.min_length, 0);
  check_length("min_new_tokens", config.min_new_tokens, 0);
  check_length("max_cache_len", config.max_cache_len, 1);
  check_length("prefill_chunk_size", config.prefill_chunk_size, 1);
  const double time = config.max_time.value_or(0);
  check_value(std::isfinite(time) && time >= 0, "max_time must be at least 0 seconds, but is ",
              time, "; leave it out for no limit");
  for (const std::string& end : config.stop_strings.value_or(std::vector<std::string>{})) {
    check_value(!end.empty(), "stop_strings holds an empty text, at which every text would end");
  }
}

void check_choice(const GenerationConfig& config) {
  const bool sample = config.do_sample.value_or(false);
  const double temperature = config.temperature.value_or(1);
  check_value(is_float_factor(temperature) || (temperature == 0 && !sample),
              "temperature must be above 0 when sampling and a normal float32, but is ",
              temperature, "; for the best token at each step set do_sample to false");
  check_at_least("top_k", config.top_k, 0);
  check_fraction("top_p", config.top_p);
  check_fraction("min_p", config.min_p);
  const auto check_share = [](const char* name, const std::optional<double>& value) {
    check_value(value.value_or(1) > 0 && value.value_or(1) <= 1, name,
                " must be above 0 and at most 1 (1: off), but is ", value.value_or(1));
  };
  check_share("top_h", config.top_h);
  check_share("typical_p", config.typical_p);
  const auto check_cutoff = [](const char* name, const std::optional<double>& value) {
    check_value(value.value_or(0) >= 0 && value.value_or(0) < 1, name,
                " must be at least 0 (0: off) and below 1, but is ", value.value_or(0));
  };
  check_cutoff("epsilon_cutoff", config.epsilon_cutoff);
  check_cutoff("eta_cutoff", config.eta_cutoff);
}

void check_beams(const GenerationConfig& config) {
  check_at_least("num_beams", config.num_beams, 1);
  check_at_most("num_beams", config.num_beams, kMostSequences);
  const double penalty = config.length_penalty.value_or(1);
  check_value(std::isfinite(penalty), "length_penalty must be a number, but is ", penalty);
  check_at_least("num_return_sequences", config.num_return_sequences, 1);
  check_at_most("num_return_sequences", config.num_return_sequences, kMostSequences);
  const std::int64_t beams = config.num_beams.value_or(1);
  const std::int64_t returned = config.num_return_sequences.value_or(1);
  check_value(beams == 1 || returned <= beams,
              "num_return_sequences must be at most num_beams = ", beams, ", but is ", returned);
  check_value(beams > 1 || config.do_sample.value_or(false) || returned == 1,
              "num_return_sequences = ", returned,
              " needs do_sample: greedy decoding would make the same text each time");
}

void check_drafts(const GenerationConfig& config) {
  check_length("prompt_lookup_num_tokens", config.prompt_lookup_num_tokens, 1);
  check_length("max_matching_ngram_size", config.max_matching_ngram_size, 1);
  check_length("num_assistant_tokens", config.num_assistant_tokens, 1);
  const std::string schedule = config.num_assistant_tokens_schedule.value_or("constant");
  check_value(
      schedule == "constant" || schedule == "heuristic" || schedule == "heuristic_transient",
      "there is no num_assistant_tokens_schedule \"", schedule,
      "\"; it can be \"constant\", \"heuristic\" or \"heuristic_transient\"");
  check_fraction("assistant_confidence_threshold", config.assistant_confidence_threshold);
}

void check_special_tokens(const GenerationConfig& config) {
  check_at_least("pad_token_id", config.pad_token_id, 0);
  check_at_least("bos_token_id", config.bos_token_id, 0);
  check_at_least("decoder_start_token_id", config.decoder_start_token_id, 0);
  check_ids("eos_token_id", config.eos_token_id);
}

}  // namespace kvcache::detail
