#include "generation/configured_processors.h"

#include <algorithm>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processors.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kDefaultTopK = 50;

// One group of processors after the other, in the order in which they run.
class ProcessorList {
 public:
  ProcessorList(const GenerationConfig& config, const ProcessorStart& start)
      : config_(config),
        start_(start),
        eos_(config.eos_token_id.value_or(std::vector<std::int64_t>{})) {}

  void add_biases() {
    if (config_.sequence_bias && !config_.sequence_bias->empty()) {
      add<SequenceBiasLogitsProcessor>(*config_.sequence_bias, start_.vocab_size);
    }
  }

  void add_repetition() {
    if (const double penalty = config_.encoder_repetition_penalty.value_or(1); penalty != 1) {
      add<EncoderRepetitionPenaltyLogitsProcessor>(penalty, read("encoder_repetition_penalty"));
    }
    if (const double penalty = config_.repetition_penalty.value_or(1); penalty != 1) {
      add<RepetitionPenaltyLogitsProcessor>(penalty);
    }
    if (const std::int64_t size = config_.no_repeat_ngram_size.value_or(0); size != 0) {
      add<NoRepeatNGramLogitsProcessor>(size);
    }
    if (const std::int64_t size = config_.encoder_no_repeat_ngram_size.value_or(0); size != 0) {
      add<EncoderNoRepeatNGramLogitsProcessor>(size, read("encoder_no_repeat_ngram_size"));
    }
    if (config_.bad_words_ids && !config_.bad_words_ids->empty()) {
      add<NoBadWordsLogitsProcessor>(*config_.bad_words_ids, eos_, start_.vocab_size);
    }
  }

  // Without end tokens there is no end to put off.
  void add_least_lengths() {
    if (eos_.empty()) return;
    if (const std::int64_t tokens = config_.min_new_tokens.value_or(0); config_.min_new_tokens) {
      if (tokens > 0) {
        add<MinNewTokensLengthLogitsProcessor>(start_.text.length(), tokens, eos_,
                                               start_.vocab_size);
      }
    } else if (const std::int64_t length = config_.min_length.value_or(0); length > 0) {
      add<MinLengthLogitsProcessor>(length, eos_, start_.vocab_size);
    }
  }

  void add_forced_tokens() {
    if (config_.forced_bos_token_id) {
      add<ForcedBOSTokenLogitsProcessor>(*config_.forced_bos_token_id, start_.vocab_size);
    }
    if (config_.forced_eos_token_id && !config_.forced_eos_token_id->empty()) {
      add<ForcedEOSTokenLogitsProcessor>(start_.max_length, *config_.forced_eos_token_id,
                                         start_.vocab_size);
    }
  }

  void add_repairs_and_decay() {
    if (config_.remove_invalid_values.value_or(false)) add<InfNanRemoveLogitsProcessor>();
    if (const auto& decay = config_.exponential_decay_length_penalty) {
      check_value(!eos_.empty(),
                  "exponential_decay_length_penalty makes end tokens likelier, but there are none; "
                  "set eos_token_id");
      add<ExponentialDecayLengthPenaltyLogitsProcessor>(*decay, eos_, start_.text.length(),
                                                        start_.vocab_size);
    }
  }

  void add_suppressed_tokens() {
    if (config_.suppress_tokens && !config_.suppress_tokens->empty()) {
      add<SuppressTokensLogitsProcessor>(*config_.suppress_tokens, start_.vocab_size);
    }
    if (config_.begin_suppress_tokens && !config_.begin_suppress_tokens->empty()) {
      add<SuppressTokensAtBeginLogitsProcessor>(*config_.begin_suppress_tokens,
                                                start_.text.length(), start_.vocab_size,
                                                config_.forced_bos_token_id.has_value());
    }
  }

  void add_given(const LogitsProcessors& given) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      check_value(given[i] != nullptr, "logits_processors[", i, "] is null");
    }
    for (auto& own : processors_) {
      const auto same = std::find_if(given.begin(), given.end(), [&](const auto& other) {
        return typeid(*other) == typeid(*own);
      });
      if (same != given.end()) own = *same;
    }
    for (const auto& other : given) {
      const bool there = std::count(processors_.begin(), processors_.end(), other) > 0;
      if (!there) processors_.push_back(other);
    }
  }

  void add_warpers() {
    const std::int64_t kept = least_kept();
    if (const double temperature = config_.temperature.value_or(1); temperature != 1) {
      add<TemperatureLogitsWarper>(temperature);
    }
    if (config_.top_h) add<TopHLogitsWarper>(*config_.top_h);
    if (const std::int64_t top_k = config_.top_k.value_or(kDefaultTopK); top_k != 0) {
      add<TopKLogitsWarper>(top_k, kept);
    }
    if (const double top_p = config_.top_p.value_or(1); top_p < 1) {
      add<TopPLogitsWarper>(top_p, kept);
    }
    if (config_.min_p) add<MinPLogitsWarper>(*config_.min_p, kept);
    if (const double typical_p = config_.typical_p.value_or(1); typical_p != 1) {
      add<TypicalLogitsWarper>(typical_p, kept);
    }
    if (const double cutoff = config_.epsilon_cutoff.value_or(0); cutoff != 0) {
      add<EpsilonLogitsWarper>(cutoff, kept);
    }
    if (const double cutoff = config_.eta_cutoff.value_or(0); cutoff != 0) {
      add<EtaLogitsWarper>(cutoff, kept);
    }
  }

  void add_normalization() {
    if (config_.renormalize_logits.value_or(false)) add<LogitNormalization>();
  }

  LogitsProcessors take() { return std::move(processors_); }

 private:
  template <typename Processor, typename... Arguments>
  void add(const Arguments&... arguments) {
    processors_.push_back(std::make_shared<Processor>(arguments...));
  }

  const TokenRows& read(const char* field) const {
    check_value(start_.read.has_value(), field,
                " needs the ids that the encoder reads, which the cache does not know; pass them "
                "as input_ids");
    return *start_.read;
  }

  // Beams need a token beside the end tokens to go on with.
  std::int64_t least_kept() const {
    if (config_.num_beams.value_or(1) == 1) return 1;
    return std::max<std::int64_t>(static_cast<std::int64_t>(eos_.size()) + 1, 2);
  }

  const GenerationConfig& config_;
  const ProcessorStart& start_;
  std::vector<std::int64_t> eos_;
  LogitsProcessors processors_;
};

}  // namespace

LogitsProcessors logits_processors(const GenerationConfig& config, const LogitsProcessors& given,
                                   const ProcessorStart& start) {
  ProcessorList list(config, start);
  list.add_biases();
  list.add_repetition();
  list.add_least_lengths();
  list.add_forced_tokens();
  list.add_repairs_and_decay();
  list.add_suppressed_tokens();
  list.add_given(given);
  if (config.do_sample.value_or(false)) list.add_warpers();
  list.add_normalization();
  return list.take();
}

}  // namespace kvcache::detail
