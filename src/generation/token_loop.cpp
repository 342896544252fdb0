#include "generation/token_loop.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "generation/configured.h"
#include "generation/draft_recording.h"
#include "generation/loop_parts.h"
#include "kvcache/generation/sampler.h"

namespace kvcache::detail {

TokenLoop::TokenLoop(const LanguageModel& model, const Inputs& inputs,
                     const GenerationConfig& config, const Prompt& prompt, Cache* cache)
    : inputs_(inputs),
      config_(config),
      text_(whole_text(prompt, cache)),
      feed_(model, prompt, cache, config.prefill_chunk_size),
      given_(prompt.given),
      first_column_(text_.length()) {
  const TokenRows text = text_.text();
  max_length_ = prompt.longest + prompt.tokens() - prompt.given.size(1);
  if (cache != nullptr) check_capacity(*cache, max_length_);
  pad_token_id_ = pad_token_id(config, inputs, prompt.rows(), model.config().vocab_size);
  processors_ = logits_processors(config, inputs.logits_processors,
                                  processor_start(model, prompt, cache, max_length_));
  criteria_ = stopping_criteria(config, inputs, text);
  drafts_ = make_draft_source(config, inputs, model, prompt.rows());
  running_ = at::ones({prompt.rows()}, text.ids.options().dtype(at::kBool));
  if (config.do_sample.value_or(false)) check_generator(inputs, text.ids);
}

Output TokenLoop::run() {
  Output output;
  {
    const c10::InferenceMode no_gradients;
    Stopwatch watch;
    const std::int64_t most = max_length_ - first_column_ - 1;  // the last token is never drafted
    if (drafts_ && most > 0) {
      longest_draft_ = record_drafts(*feed_.cache(), std::min(drafts_->longest(), most));
    }
    bool more = take(choose(feed_.prefill(text_.text())));
    timings_.prefill_s = watch.lap_seconds();
    timings_.prefill_tokens = feed_.prefill_tokens();
    while (more) more = step(make_draft());
    feed_.rows().put_together();
    timings_.decode_s = watch.lap_seconds();
  }
  if (inputs_.streamer != nullptr) inputs_.streamer->end();
  const at::Tensor made = text_.text().ids.narrow(1, first_column_, text_.length() - first_column_);
  output.sequences = at::cat({given_, made}, 1);
  if (!logits_.empty()) output.logits = at::stack(logits_, 1);
  output.timings = timings_;
  return output;
}

at::Tensor TokenLoop::choose(const at::Tensor& logits) {
  if (config_.output_logits.value_or(false)) logits_.push_back(logits);
  const at::Tensor scores =
      feed_.rows().without_ended(processed(processors_, text_.text(), logits));
  return config_.do_sample.value_or(false) ? choose_at_random(scores, *inputs_.generator)
                                           : choose_best(scores);
}

std::vector<std::int64_t> TokenLoop::make_draft() {
  // The text's end is chosen, never drafted.
  const std::int64_t most = std::min(longest_draft_, max_length_ - text_.length() - 1);
  if (!drafts_ || most <= 0) return {};
  return drafts_->propose(text_.text(), most);
}

bool TokenLoop::step(const std::vector<std::int64_t>& draft) {
  const std::int64_t length = text_.length();
  if (pad_token_id_) feed_.rows().keep(running_, length);
  auto drafted = static_cast<std::int64_t>(draft.size());
  for (const std::int64_t id : draft) {
    text_.append(at::full({1}, id, text_.text().ids.options()), std::nullopt);
  }
  // A model whose keys depend on the text's length would see another one than without a draft.
  if (drafted > 0 && feed_.runs_whole_text(text_.text(), drafted + 1)) {
    drafted = 0;
    text_.shorten(length);
  }
  const at::Tensor logits = feed_.next(text_.text(), drafted + 1);
  text_.shorten(length);
  bool more = true;
  std::int64_t accepted = 0;
  try {
    for (;; ++accepted) {
      const at::Tensor chosen = choose(logits.select(1, accepted));
      more = take(chosen);
      timings_.decode_tokens += feed_.rows().running();
      if (!more || accepted == drafted) break;
      if (chosen.item<std::int64_t>() != draft[static_cast<std::size_t>(accepted)]) break;
    }
  } catch (...) {  // of a processor, a criterion or a streamer
    feed_.take_back(drafted - accepted);
    throw;
  }
  feed_.take_back(drafted - accepted);
  if (drafts_) drafts_->note_accepted(accepted);
  return more;
}

bool TokenLoop::take(const at::Tensor& chosen) {
  at::Tensor tokens = chosen;
  std::optional<at::Tensor> real;
  if (pad_token_id_ && !running_.all().item<bool>()) {
    real = running_;
    tokens = at::where(running_, chosen, *pad_token_id_);
  }
  text_.append(tokens, real);
  if (inputs_.streamer != nullptr) inputs_.streamer->put(tokens.to(at::kCPU));
  running_ = running_.logical_and(completed(criteria_, text_.text()).logical_not());
  return text_.length() < max_length_ && running_.any().item<bool>();
}

}  // namespace kvcache::detail
