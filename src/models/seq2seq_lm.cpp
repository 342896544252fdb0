#include "kvcache/models/seq2seq_lm.h"

#include <c10/core/InferenceMode.h>

#include "kvcache/cache/uncached.h"
#include "models/checked_input.h"

namespace kvcache {
namespace {

std::optional<CrossInput> cross_input(const ForwardInput& input, std::int64_t vocab_size) {
  if (!input.encoder) return std::nullopt;
  const at::Tensor ids =
      detail::checked_ids(input.encoder->input_ids, vocab_size, "the encoder's input_ids");
  return CrossInput{.tokens = ids.size(1),
                    .batch = ids.size(0),
                    .ids = ids,
                    .valid = detail::checked_mask(input.encoder->attention_mask)};
}

}  // namespace

// Every query sees every real token.
AttentionMask CrossContext::mask(std::int64_t tokens, at::Device device) const {
  if (!valid_) return {AttentionMask::Kind::none};
  const at::Tensor allowed = valid_->unsqueeze(1).unsqueeze(1).expand({-1, 1, tokens, -1});
  return {AttentionMask::Kind::dense, allowed.to(device)};
}

at::Tensor CrossContext::attend(std::int64_t layer, const at::Tensor& query,
                                const Projection& project, const AttentionOptions& options) {
  if (Step* encoder = step_.cross()) {
    const KeyValue states = project(*states_);
    encoder->append(layer, states.keys, states.values);
  }
  const View view = step_.cross_view(layer);
  // Rows that share an encoder row become tokens of one, so that its keys are read once for all.
  const std::int64_t share = query.size(0) / view.batch, heads = query.size(1);
  const std::int64_t tokens = query.size(2);
  const auto regroup = [&](const at::Tensor& t, std::int64_t outer, std::int64_t inner) {
    return t.view({view.batch, outer, inner, tokens, -1}).transpose(1, 2);
  };
  const at::Tensor folded =
      regroup(query.contiguous(), share, heads).reshape({view.batch, heads, share * tokens, -1});
  const at::Tensor attended =
      attention(folded, view, mask(share * tokens, query.device()), options);
  return regroup(attended.contiguous(), heads, share)
      .reshape({query.size(0), heads, tokens, attended.size(3)});
}

at::Tensor Seq2SeqLM::run(const ForwardInput& input, Cache* past_key_values) const {
  if (past_key_values != nullptr) return run_step(input, *past_key_values, /*commit=*/true);
  EncoderDecoderCache none(uncached(layers_), uncached(cross_attention_layers(layers_)));
  return run_step(input, none, /*commit=*/false);
}

at::Tensor Seq2SeqLM::run_step(const ForwardInput& input, Cache& cache, bool commit) const {
  const c10::InferenceMode inference;
  detail::check_logits_to_keep(input);
  const at::Tensor ids = detail::checked_ids(input.input_ids, config().vocab_size);
  const std::optional<CrossInput> encoder = cross_input(input, config().vocab_size);
  Step step = cache.begin_step({.tokens = ids.size(1),
                                .batch = ids.size(0),
                                .ids = ids,
                                .valid = detail::checked_mask(input.attention_mask),
                                .cross = encoder});
  ForwardContext context(step, layers_, device());
  std::optional<at::Tensor> states;
  if (step.cross() != nullptr) {
    std::optional<at::Tensor> real = step.cross_valid();
    if (real) real = real->to(device());
    states = encode(encoder->ids->to(device()), real);
  }
  CrossContext cross(step, std::move(states));
  const at::Tensor hidden = decode(ids.to(device()), context, cross);
  at::Tensor logits = last_logits(hidden, input.logits_to_keep);
  if (commit) step.commit();
  return logits;
}

}  // namespace kvcache
