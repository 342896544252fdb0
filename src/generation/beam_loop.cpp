#include "generation/beam_loop.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "generation/configured.h"
#include "generation/configured_processors.h"
#include "generation/loop_parts.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

void check_alone(const Inputs& inputs, const GenerationConfig& config) {
  check_value(inputs.streamer == nullptr,
              "a streamer cannot follow beam search, whose texts are known at its end; leave out "
              "the streamer, or num_beams = ",
              config.num_beams.value_or(1));
  check_value(inputs.assistant_model == nullptr && !config.prompt_lookup_num_tokens,
              "drafts are for one text, but num_beams = ", config.num_beams.value_or(1),
              "; leave out num_beams, or assistant_model and prompt_lookup_num_tokens");
}

}  // namespace

BeamLoop::BeamLoop(const LanguageModel& model, const Inputs& inputs, const GenerationConfig& config,
                   const Prompt& prompt, Cache* cache)
    : inputs_(inputs),
      config_(config),
      prompt_(whole_text(prompt, cache)),
      text_(prompt_),
      feed_(model, prompt, cache, config.prefill_chunk_size),
      cache_(cache, !any_forgets(model.config().layer_specs())),
      given_(prompt.given),
      first_column_(text_.length()),
      max_length_(prompt.longest + prompt.tokens() - prompt.given.size(1)),
      beams_(*config.num_beams),
      returned_(config.num_return_sequences.value_or(1)),
      pad_token_id_(
          pad_token_id(config, inputs, prompt.rows() * returned_, model.config().vocab_size)),
      scorer_({.rows = prompt.rows(),
               .beams = beams_,
               .new_tokens = max_length_ - text_.length(),
               .length_penalty = config.length_penalty.value_or(1),
               .early_stopping = config.early_stopping.value_or(EarlyStopping::no)}) {
  check_alone(inputs, config);
  if (cache != nullptr) check_capacity(*cache, max_length_);
  processors_ = logits_processors(config, inputs.logits_processors,
                                  processor_start(model, prompt, cache, max_length_));
  criteria_ = stopping_criteria(config, inputs, prompt_);
  if (config.do_sample.value_or(false)) check_generator(inputs, prompt_.ids);
}

Output BeamLoop::run() {
  const c10::InferenceMode no_gradients;
  Stopwatch watch;
  Output output;
  try {
    bool more = take(feed_.prefill(prompt_));
    timings_.prefill_s = watch.lap_seconds();
    timings_.prefill_tokens = feed_.prefill_tokens();
    if (more) expand();
    while (more) more = step();
    const std::vector<BeamText> best = best_texts(scorer_, returned_);
    const TokenRows texts = token_rows(best, prompt_, pad_token_id_.value_or(0));
    if (feed_.cache() != nullptr) hold(best, texts);
    timings_.decode_s = watch.lap_seconds();
    const at::Tensor made = texts.ids.narrow(1, first_column_, texts.length() - first_column_);
    output.sequences = at::cat({given_.repeat_interleave(returned_, 0), made}, 1);
    output.sequences_scores = scores_of(best, texts.ids.device());
    if (!logits_.empty()) output.logits = logits_of(best, logits_, beams_);
  } catch (...) {
    cache_.undo();
    throw;
  }
  output.timings = timings_;
  return output;
}

void BeamLoop::expand() {
  cache_.expand(beams_);
  const std::int64_t rows = prompt_.ids.size(0);
  text_.select(at::arange(rows, prompt_.ids.options()).repeat_interleave(beams_));
}

bool BeamLoop::step() {
  if (scorer_.steps() > 1) {  // before, the beams of a row hold the same
    const at::Tensor beams = scorer_.last_beams();
    cache_.follow(beams);
    text_.select(beams.to(prompt_.ids.device()));
  }
  text_.append(scorer_.last_tokens(), std::nullopt);
  timings_.decode_tokens += prompt_.ids.size(0) * beams_;
  return take(feed_.next(text_.text()).select(1, -1));
}

bool BeamLoop::take(const at::Tensor& logits) {
  if (config_.output_logits.value_or(false)) logits_.push_back(logits);
  const Candidates candidates = propose(logits);
  return scorer_.take(candidates, complete(candidates));
}

Candidates BeamLoop::propose(const at::Tensor& logits) const {
  const std::int64_t rows = prompt_.ids.size(0), vocab = logits.size(1);
  const at::Tensor log_probs =
      processed(processors_, text_.text(), logits.log_softmax(-1)).reshape({rows, -1, vocab});
  const at::Tensor scores = log_probs.add(scorer_.scores().to(log_probs.device()));
  for (std::int64_t row = 0; row < rows; ++row) {
    if (scorer_.done(row)) scores.select(0, row).zero_();  // whatever they are, they have no say
  }
  // So many that end tokens, where there are others, never take the place of a beam that goes on.
  const auto ends =
      static_cast<std::int64_t>(config_.eos_token_id.value_or(std::vector<std::int64_t>{}).size());
  const std::int64_t each = std::min(std::max<std::int64_t>(2, 1 + ends), vocab) * beams_;
  if (config_.do_sample.value_or(false)) return drawn_candidates(scores, each, *inputs_.generator);
  return best_candidates(scores, each);
}

std::vector<bool> BeamLoop::complete(const Candidates& candidates) const {
  const TokenRows text = text_.text();
  const at::Device device = text.ids.device();
  // In the first step there is one row for all beams of a row.
  const at::Tensor rows =
      candidates.beams().div(scorer_.steps() == 0 ? beams_ : 1, "floor").to(device);
  TokenRows texts{
      at::cat({text.ids.index_select(0, rows), candidates.tokens().to(device).unsqueeze(1)}, 1)};
  if (text.valid) {
    const at::Tensor one = at::ones({rows.numel(), 1}, text.valid->options());
    texts.valid = at::cat({text.valid->index_select(0, rows), one}, 1);
  }
  const at::Tensor said = completed(criteria_, texts).to(at::kCPU);
  const bool* flags = said.const_data_ptr<bool>();
  if (texts.length() == max_length_) return std::vector<bool>(candidates.list.size(), true);
  return std::vector<bool>(flags, flags + said.numel());
}

void BeamLoop::hold(const std::vector<BeamText>& best, const TokenRows& texts) {
  const NearestBeams near = nearest(best, scorer_);
  cache_.end(near.beams, scorer_.steps() - 1 - near.common, returned_);
  const std::int64_t held = texts.length() - 1;
  TokenRows fed{texts.ids.narrow(1, 0, held)};
  if (texts.valid) fed.valid = texts.valid->narrow(1, 0, held);
  feed_.fill(fed);
}

}  // namespace kvcache::detail
