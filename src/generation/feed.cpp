#include "generation/feed.h"

#include <algorithm>
#include <utility>

namespace kvcache::detail {

at::Tensor Feed::prefill(const TokenRows& text) {
  const std::int64_t kept = cache_ == nullptr ? 0 : keep_common_prefix(prompt_, *cache_);
  const std::int64_t tokens = prompt_.tokens() - kept;
  prefill_tokens_ = prompt_.rows() * tokens;
  if (prompt_.encoder && (cache_ == nullptr || !holds_encoder(prompt_, *cache_))) {
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
    left = cache_ == nullptr ? 0 : text.length() - cache_->history().seen();
  }
  return logits.select(1, -1);
}

ForwardInput Feed::last_tokens(const TokenRows& text, std::int64_t tokens) const {
  const std::int64_t first = text.length() - tokens;
  ForwardInput input{.input_ids = text.ids.narrow(1, first, tokens), .logits_to_keep = tokens};
  if (text.valid) input.attention_mask = text.valid->narrow(1, first, tokens);
  return input;
}

at::Tensor Feed::next(const TokenRows& text, std::int64_t tokens) {
  if (cache_ != nullptr) return forward(last_tokens(text, tokens), text);
  return forward({.input_ids = text.ids,
                  .attention_mask = text.valid,
                  .logits_to_keep = tokens,
                  .encoder = prompt_.encoder},
                 text);
}

bool Feed::runs_whole_text(const TokenRows& text, std::int64_t tokens) const {
  return cache_ == nullptr || needs_whole_text(last_tokens(text, tokens));
}

bool Feed::needs_whole_text(const ForwardInput& input) const {
  return cache_ != nullptr && cache_->history().known() && model_.needs_whole_text(input, *cache_);
}

at::Tensor Feed::forward(ForwardInput input, const TokenRows& text) {
  const at::Device device = input.input_ids.device();
  if (needs_whole_text(input)) {
    cache_->reset();
    input.input_ids = text.ids;
    input.attention_mask = text.valid;
    input.encoder = prompt_.encoder;
  }
  return model_.forward(input, cache_).to(device, at::kFloat);
}

}  // namespace kvcache::detail
