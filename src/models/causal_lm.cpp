#include "kvcache/models/causal_lm.h"

#include <ATen/ops/arange.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kvcache/cache/uncached.h"
#include "kvcache/core/errors.h"
#include "kvcache/models/rope.h"
#include "kvcache/retention/retention.h"
#include "models/checked_input.h"

namespace kvcache {
namespace {

// Longer than any text: has a regime other than 0 where any length has.
constexpr std::int64_t kAnyLength = std::numeric_limits<std::int64_t>::max();

}  // namespace

ForwardContext::ForwardContext(Step& step, const std::vector<LayerSpec>& layers, at::Device device,
                               std::vector<std::int64_t> regimes)
    : step_(step),
      positions_(step.positions().to(device)),
      regimes_(std::move(regimes)),
      valid_(step.valid()) {
  if (valid_) real_tokens_ = valid_->narrow(1, step.seen(), step.tokens()).to(device);
  detail::check_padding(step, valid_, layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& spec = layers[i];
    visible_.push_back(spec.donor ? visible_.at(static_cast<std::size_t>(*spec.donor))
                                  : pattern(step, static_cast<std::int64_t>(i), spec));
  }
}

// The columns that the cache hands over, under the model's pattern: a cache may keep more than the
// model sees.
Visible ForwardContext::pattern(const Step& step, std::int64_t layer, const LayerSpec& spec) {
  const Visible held = step.visible(layer);
  const auto retention = Retention::of(spec);
  if (!retention) return held;
  Visible wanted = retention->visible(step.query_offset(layer), step.tokens());
  check_value(held.offset <= wanted.offset, "layer ", layer,
              " of the cache hands over tokens from ", held.offset, " on, but the model's ",
              spec.type, " layer sees tokens from ", wanted.offset,
              " on; make the cache from the model's config");
  wanted.length = held.length;
  wanted.offset = held.offset;
  return wanted;
}

const AttentionMask& ForwardContext::mask(std::int64_t layer, at::Device device) {
  const std::pair wanted(visible_.at(static_cast<std::size_t>(layer)), device);
  const auto found = std::find_if(masks_.begin(), masks_.end(),
                                  [&](const auto& made) { return made.first == wanted; });
  if (found != masks_.end()) return found->second;
  masks_.emplace_back(wanted, make_mask({.visible = wanted.first,
                                         .seen = step_.seen(),
                                         .tokens = step_.tokens(),
                                         .device = device,
                                         .valid = valid_}));
  return masks_.back().second;
}

at::Tensor ForwardContext::key_positions(std::int64_t layer) const {
  const Visible& visible = visible_.at(static_cast<std::size_t>(layer));
  if (!valid_) {
    return at::arange(visible.offset, visible.offset + visible.length, at::kLong).unsqueeze(0);
  }
  return valid_->cumsum(1).sub_(valid_->to(at::kLong)).narrow(1, visible.offset, visible.length);
}

at::Tensor ForwardContext::attend(std::int64_t layer, const at::Tensor& query,
                                  const KeyValue& states, const AttentionOptions& options) {
  const View view = step_.append(layer, states.keys, states.values);
  return attention(query, view, mask(layer, query.device()), options);
}

at::Tensor ForwardContext::attend_shared(std::int64_t layer, const at::Tensor& query,
                                         const AttentionOptions& options) {
  const View view = step_.view(layer);
  return attention(query, view, mask(layer, query.device()), options);
}

// The regime of all of the model's ropes together: the least length with the frequencies of
// `length`, or 0.
std::int64_t CausalLM::regime(std::int64_t length) const {
  std::int64_t result = rope_regime(config().rope, length);
  for (const auto& [type, rope] : config().layer_ropes) {
    result = std::max(result, rope_regime(rope, length));
  }
  return result;
}

// Of each row with the step's tokens; empty if this model has but one regime.
std::vector<std::int64_t> CausalLM::regimes_of(const Step& step) const {
  if (regime(kAnyLength) == 0) return {};
  std::vector<std::int64_t> regimes = step.lengths();
  for (std::int64_t& length : regimes) length = regime(length);
  return regimes;
}

bool CausalLM::needs_whole_text(const ForwardInput& input, Cache& past_key_values) const {
  if (regime(kAnyLength) == 0) return false;
  const at::Tensor ids = detail::checked_ids(input.input_ids, config().vocab_size);
  const Step step =
      past_key_values.begin_step({.tokens = ids.size(1),
                                  .batch = ids.size(0),
                                  .valid = detail::checked_mask(input.attention_mask)});
  return step.first_row_unlike(regimes_of(step)).has_value();
}

at::Tensor CausalLM::run(const ForwardInput& input, Cache* past_key_values) const {
  check_value(!input.encoder, "this model, a ", config().model_type,
              ", has no encoder; leave the encoder's input out");
  if (past_key_values != nullptr) return run_step(input, *past_key_values, /*commit=*/true);
  LayeredCache none = uncached(layers_);
  return run_step(input, none, /*commit=*/false);
}

at::Tensor CausalLM::run_step(const ForwardInput& input, Cache& cache, bool commit) const {
  const c10::InferenceMode inference;
  detail::check_logits_to_keep(input);
  const at::Tensor ids = detail::checked_ids(input.input_ids, config().vocab_size);
  Step step = cache.begin_step({.tokens = ids.size(1),
                                .batch = ids.size(0),
                                .ids = ids,
                                .valid = detail::checked_mask(input.attention_mask)});
  const std::vector<std::int64_t> regimes = regimes_of(step);
  if (!regimes.empty()) {
    const std::optional<std::int64_t> row = step.first_row_unlike(regimes);
    check_state(!row, "row ", row.value_or(0), " has ",
                step.lengths()[static_cast<std::size_t>(row.value_or(0))],
                " tokens with this step, for which its rope has other frequencies than the keys in "
                "the cache; reset() the cache and pass the whole text at once, as generate() does");
    step.stamp(regimes);
  }
  ForwardContext context(step, layers_, device(), regimes);
  const at::Tensor hidden = hidden_states(ids.to(device()), context);
  at::Tensor logits = last_logits(hidden, input.logits_to_keep);
  if (commit) step.commit();
  return logits;
}

}  // namespace kvcache
