#include "generation/token_loop.h"

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
      first_column_(text_.length() - prompt.tokens()) {
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
  running_ = at::ones({prompt.rows()}, text.ids.options().dtype(at::kBool));
  if (config.do_sample.value_or(false)) check_generator(inputs, text.ids);
}

Output TokenLoop::run() {
  Output output;
  {
    const c10::InferenceMode no_gradients;
    auto start = Clock::now();
    bool more = take(choose(feed_.prefill(text_.text())));
    timings_.prefill_s = seconds_since(start);
    timings_.prefill_tokens = feed_.prefill_tokens();
    start = Clock::now();
    while (more) {
      more = take(choose(feed_.next(text_.text()).select(1, -1)));
      timings_.decode_tokens += running_.numel();
    }
    timings_.decode_s = seconds_since(start);
  }
  if (inputs_.streamer != nullptr) inputs_.streamer->end();
  output.sequences =
      text_.text().ids.narrow(1, first_column_, text_.length() - first_column_).clone();
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
  return config_.do_sample.value_or(false) ? choose_at_random(scores, *inputs_.generator)
                                           : choose_best(scores);
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
