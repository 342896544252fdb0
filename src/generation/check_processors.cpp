#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cmath>

#include "generation/config_checks.h"

namespace kvcache::detail {
namespace {

using Ids = std::vector<std::int64_t>;

void check_sequence(const char* name, const Ids& ids) {
  check_value(!ids.empty(), name, " holds an empty sequence; each needs at least one id");
  check_ids(name, ids);
}

void check_biases(const std::vector<SequenceBias>& biases) {
  for (const SequenceBias& sequence : biases) {
    check_sequence("sequence_bias", sequence.ids);
    check_value(std::abs(sequence.bias) <= std::numeric_limits<float>::max(),
                "sequence_bias must hold biases within float32, but holds ", sequence.bias,
                "; to forbid a sequence use bad_words_ids");
  }
}

void check_decay(const ExponentialDecayLengthPenalty& decay) {
  check_at_least("exponential_decay_length_penalty's start_index", decay.start_index, 0);
  check_factor("exponential_decay_length_penalty's decay_factor", decay.decay_factor);
}

// One that is forced and never to be chosen would leave nothing to choose.
void check_not_suppressed(const char* name, const Ids& forced, const Ids& suppressed) {
  const auto is_suppressed = [&](std::int64_t id) {
    return std::find(suppressed.begin(), suppressed.end(), id) != suppressed.end();
  };
  check_value(forced.empty() || !std::all_of(forced.begin(), forced.end(), is_suppressed), name,
              " = ", c10::IntArrayRef(forced),
              ": suppress_tokens holds all of it, which would leave no token to ",
              "choose; take some out of one of them");
}

}  // namespace

void check_processors(const GenerationConfig& config) {
  check_factor("repetition_penalty", config.repetition_penalty);
  check_factor("encoder_repetition_penalty", config.encoder_repetition_penalty);
  check_at_least("no_repeat_ngram_size", config.no_repeat_ngram_size, 0);
  check_at_least("encoder_no_repeat_ngram_size", config.encoder_no_repeat_ngram_size, 0);
  for (const Ids& word : config.bad_words_ids.value_or(std::vector<Ids>{})) {
    check_sequence("bad_words_ids", word);
  }
  check_biases(config.sequence_bias.value_or(std::vector<SequenceBias>{}));
  check_at_least("forced_bos_token_id", config.forced_bos_token_id, 0);
  check_ids("forced_eos_token_id", config.forced_eos_token_id);
  check_ids("suppress_tokens", config.suppress_tokens);
  check_ids("begin_suppress_tokens", config.begin_suppress_tokens);
  if (const auto& decay = config.exponential_decay_length_penalty) check_decay(*decay);
  const Ids suppressed = config.suppress_tokens.value_or(Ids{});
  if (const auto& forced = config.forced_bos_token_id) {
    check_not_suppressed("forced_bos_token_id", {*forced}, suppressed);
  }
  check_not_suppressed("forced_eos_token_id", config.forced_eos_token_id.value_or(Ids{}),
                       suppressed);
}

}  // namespace kvcache::detail
