#include "generation/feed.h"

#include <algorithm>
#include <utility>

namespace kvcache::detail {

at::Tensor Feed::prefill(const TokenRows& text) {
  const std::int64_t kept = cache() == nullptr ? 0 : keep_common_prefix(prompt_, *cache());
  const std::int64_t tokens = prompt_.tokens() - kept;
  prefill_tokens_ = prompt_.rows() * tokens;
  if (prompt_.encoder && (cache() == nullptr || !holds_encoder(prompt_, *cache()))) {
    prefill_tokens_ += prompt_.encoder->input_ids.numel();
  }
  at::Tensor logits;
  for (std::int64_t left = tokens; left > 0;) {
    const std::int64_t first = prompt_.tokens() - left;
    const std::int64_t count = std::min(left, most_at_once_.value_or(left));
    ForwardInput input{.input_ids = prompt_.ids.narrow(1, first, count),
                       .attention_mask = prompt_.valid_of(first, count),
                       .logits_to_keep = 1};
    if (first == kept) input.encoder = prompt_.encoder;
    logits = forward(std::move(input), text);
    left = cache() == nullptr ? 0 : text.length() - cache()->history().seen();
  }
  return logits.select(1, -1);
}

ForwardInput Feed::last_tokens(const TokenRows& text, std::int64_t tokens) const {
  ForwardInput input = rows_.fed(text, text.length() - tokens, tokens);
  input.logits_to_keep = tokens;
  return input;
}

ForwardInput Feed::whole_text(const TokenRows& text, std::int64_t tokens) const {
  ForwardInput input = rows_.fed(text, 0, text.length());
  input.logits_to_keep = tokens;
  input.encoder = rows_.fed(prompt_.encoder);
  return input;
}

at::Tensor Feed::next(const TokenRows& text, std::int64_t tokens) {
  ForwardInput input = cache() != nullptr ? last_tokens(text, tokens) : whole_text(text, tokens);
  return rows_.spread(forward(std::move(input), text));
}

void Feed::fill(const TokenRows& text, const std::vector<std::int64_t>& prompts, Cache& cache) {
  for (std::int64_t held = cache.history().seen(); held < text.length();) {
    const std::int64_t left = text.length() - held;
    ForwardInput input = columns_of(text, held, std::min(left, most_at_once_.value_or(left)));
    if (needs_whole_text(input, &cache)) {
      cache.reset();
      input = columns_of(text, 0, text.length());
      if (prompt_.encoder) input.encoder = rows_of(*prompt_.encoder, prompts);
    }
    input.logits_to_keep = 1;
    model_.forward(input, &cache);
    held = cache.history().seen();
  }
}

bool Feed::runs_whole_text(const TokenRows& text, std::int64_t tokens) const {
  return cache() == nullptr || needs_whole_text(last_tokens(text, tokens), cache());
}

bool Feed::needs_whole_text(const ForwardInput& input, Cache* cache) const {
  return cache != nullptr && cache->history().known() && model_.needs_whole_text(input, *cache);
}

at::Tensor Feed::forward(ForwardInput input, const TokenRows& text) {
  const at::Device device = text.ids.device();
  if (needs_whole_text(input, cache())) {
    cache()->reset();
    input = whole_text(text, input.logits_to_keep);
  }
  return model_.forward(input, cache()).to(device, at::kFloat);
}

}  // namespace kvcache::detail
