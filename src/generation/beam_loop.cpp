#include "generation/beam_loop.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

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

std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

TokenRows selected(const TokenRows& text, const std::vector<std::int64_t>& rows) {
  const at::Tensor chosen = at::tensor(rows, text.ids.options());
  TokenRows result{text.ids.index_select(0, chosen)};
  if (text.valid) result.valid = text.valid->index_select(0, chosen);
  return result;
}

// Each beam goes on from another one. `cache` null: nothing is held.
void follow(const at::Tensor& beams, Cache* cache) {
  if (cache == nullptr || beams.equal(at::arange(beams.numel(), at::kLong))) return;
  cache->reorder_cache(beams);
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
    cache_.undo(feed_.rows().take_parts(), beams_);
    throw;
  }
  output.timings = timings_;
  return output;
}

void BeamLoop::expand() {
  cache_.expand(beams_);
  feed_.rows().repeat(beams_);
  const std::int64_t rows = prompt_.ids.size(0);
  text_.select(at::arange(rows, prompt_.ids.options()).repeat_interleave(beams_));
}

bool BeamLoop::step() {
  keep_running();
  if (scorer_.steps() > 1) {  // before, the beams of a row hold the same
    const at::Tensor beams = scorer_.last_beams();
    follow(feed_.rows().fed(beams), feed_.cache());
    text_.select(beams.to(prompt_.ids.device()));
  }
  text_.append(scorer_.last_tokens(), std::nullopt);
  timings_.decode_tokens += feed_.rows().running();
  return take(feed_.next(text_.text()).select(1, -1));
}

void BeamLoop::keep_running() {
  const std::int64_t rows = scorer_.rows();
  at::Tensor running = at::ones({rows, beams_}, at::kBool);
  bool all = true;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (scorer_.done(row)) running.select(0, row).fill_(false);
    all = all && !scorer_.done(row);
  }
  if (!all && cache_.may_leave()) feed_.rows().keep(running.flatten(), text_.length() + 1);
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
  std::vector<CachePart> parts = feed_.rows().take_parts();
  if (parts.empty()) return hold(best, texts, all_of(scorer_.rows()), *feed_.cache());
  for (CachePart& part : parts) {
    const std::vector<std::int64_t> prompts = prompts_of(part, beams_);
    std::vector<std::int64_t> rows;
    std::vector<BeamText> of_part;
    for (const std::int64_t prompt : prompts) {
      for (std::int64_t text = 0; text < returned_; ++text) {
        rows.push_back(prompt * returned_ + text);
        of_part.push_back(best[static_cast<std::size_t>(rows.back())]);
      }
    }
    hold(of_part, selected(texts, rows), prompts, *part.cache);
    part.rows = std::move(rows);
  }
  put_together(parts, *feed_.cache());
}

void BeamLoop::hold(const std::vector<BeamText>& best, const TokenRows& texts,
                    const std::vector<std::int64_t>& prompts, Cache& cache) {
  const std::int64_t steps = cache_.new_tokens(cache), held = texts.length() - 1;
  const NearestBeams near = nearest(best, prompts, scorer_, steps);
  cache_.end(near.beams, steps - near.common, prompts, cache);
  TokenRows fed{texts.ids.narrow(1, 0, held)};
  if (texts.valid) fed.valid = texts.valid->narrow(1, 0, held);
  feed_.fill(fed, prompts, cache);
}

}  // namespace kvcache::detail
