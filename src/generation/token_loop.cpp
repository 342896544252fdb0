#include "generation/token_loop.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <chrono>

#include "generation/configured.h"
#include "generation/configured_processors.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/sampler.h"

namespace kvcache::detail {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_generator(const Inputs& inputs, const at::Tensor& ids) {
  check_value(inputs.generator && inputs.generator->defined(),
              "do_sample needs a generator to draw from, such as make_generator(seed)");
  check_value(inputs.generator->device() == ids.device(), "the generator is on ",
              inputs.generator->device(), ", but the inputs are on ", ids.device(),
              "; put both on one device");
}

// Refuses a cache that the text may outgrow, before anything is fed to it.
void check_capacity(const Cache& cache, std::int64_t max_length) {
  const std::int64_t fed = max_length - 1;
  check_value(fed <= cache.capacity().value_or(fed), "the text may become ", max_length,
              " tokens long, of which the cache is to hold ", fed, ", but it has room for ",
              cache.capacity().value_or(0),
              "; lower max_new_tokens or make the cache with a larger max_cache_len");
}

}  // namespace

TokenLoop::TokenLoop(const LanguageModel& model, const Inputs& inputs,
                     const GenerationConfig& config, const Prompt& prompt, Cache* cache)
    : inputs_(inputs),
      config_(config),
      text_(whole_text(prompt, cache)),
      feed_(model, prompt, cache, config.prefill_chunk_size),
      given_(prompt.given),
      first_column_(text_.length()) {
  const TokenRows text = text_.text();
  max_length_ = max_length(config, text.length(), model.config().max_position_embeddings);
  if (cache != nullptr) check_capacity(*cache, max_length_);
  pad_token_id_ = pad_token_id(config, inputs, prompt.rows(), model.config().vocab_size);
  processors_ =
      logits_processors(config, inputs.logits_processors,
                        {.text = text,
                         .read = model.is_encoder_decoder() ? encoder_rows(prompt, cache) : text,
                         .max_length = max_length_,
                         .vocab_size = model.config().vocab_size});
  criteria_ = stopping_criteria(config, inputs, text);
  drafts_ = make_draft_source(config, inputs, model, prompt.rows());
  running_ = at::ones({prompt.rows()}, text.ids.options().dtype(at::kBool));
  if (config.do_sample.value_or(false)) check_generator(inputs, text.ids);
}

Output TokenLoop::run() {
  Output output;
  {
    const c10::InferenceMode no_gradients;
    auto start = Clock::now();
    if (drafts_) feed_.cache()->activate_past_recording(drafts_->longest());
    bool more = take(choose(feed_.prefill(text_.text())));
    timings_.prefill_s = seconds_since(start);
    timings_.prefill_tokens = feed_.prefill_tokens();
    start = Clock::now();
    while (more) more = step(make_draft());
    feed_.rows().put_together();
    timings_.decode_s = seconds_since(start);
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
  const TokenRows text = text_.text();
  at::Tensor scores = logits;
  for (const auto& processor : processors_) scores = processor->process(text, scores);
  check_state(scores.sizes() == logits.sizes(), "a logits processor made scores of shape ",
              scores.sizes(), " out of ", logits.sizes(), "; it must keep the shape");
  scores = feed_.rows().without_ended(scores);
  return config_.do_sample.value_or(false) ? choose_at_random(scores, *inputs_.generator)
                                           : choose_best(scores);
}

std::vector<std::int64_t> TokenLoop::make_draft() {
  // The text's end is chosen, never drafted.
  const std::int64_t most = max_length_ - text_.length() - 1;
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
  for (;; ++accepted) {
    const at::Tensor chosen = choose(logits.select(1, accepted));
    more = take(chosen);
    timings_.decode_tokens += feed_.rows().running();
    if (!more || accepted == drafted) break;
    if (chosen.item<std::int64_t>() != draft[static_cast<std::size_t>(accepted)]) break;
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
  const TokenRows text = text_.text();
  for (const auto& criterion : criteria_) {
    const at::Tensor complete = criterion->complete(text);
    check_state(complete.sizes() == running_.sizes() && complete.scalar_type() == at::kBool,
                "a stopping criterion gave ", complete.dtype(), " ", complete.sizes(),
                "; it must give bool ", running_.sizes(), ", one a row");
    running_ = running_.logical_and(complete.logical_not());
  }
  return text.length() < max_length_ && running_.any().item<bool>();
}

}  // namespace kvcache::detail
