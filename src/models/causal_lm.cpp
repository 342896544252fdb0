#include "kvcache/models/causal_lm.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kvcache/cache/uncached.h"
#include "kvcache/core/errors.h"
#include "kvcache/models/rope.h"
#include "kvcache/retention/retention.h"

namespace kvcache {
namespace {

// Longer than any text: has a regime other than 0 where any length has.
constexpr std::int64_t kAnyLength = std::numeric_limits<std::int64_t>::max();

// The ids as int64 [batch, tokens] on the CPU, every one of them in the vocabulary.
at::Tensor checked_ids(const at::Tensor& ids, std::int64_t vocab_size) {
  check_value(ids.defined() && ids.dim() == 2 &&
                  (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              "input_ids must be an integer tensor [batch, tokens], but are ",
              ids.defined() ? c10::str(ids.dtype(), " ", ids.sizes()) : "undefined");
  check_value(ids.numel() > 0, "input_ids are empty, ", ids.sizes(),
              "; a forward pass needs at least one token a row (the beginning-of-text token, if "
              "there is no text)");
  at::Tensor host = ids.to(at::kCPU, at::kLong).contiguous();
  const auto* data = host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    check_value(data[i] >= 0 && data[i] < vocab_size, "token id ", data[i], " in row ",
                i / host.size(1), ", column ", i % host.size(1), " is outside the vocabulary of ",
                vocab_size);
  }
  return host;
}

// The mask as bool on the CPU; its shape is the step's concern.
std::optional<at::Tensor> checked_mask(const std::optional<at::Tensor>& mask) {
  if (!mask) return std::nullopt;
  check_value(mask->defined() && at::isIntegralType(mask->scalar_type(), /*includeBool=*/true),
              "the attention mask must hold integers or booleans [batch, tokens], but is ",
              mask->defined() ? c10::str(mask->dtype(), " ", mask->sizes()) : "undefined");
  const at::Tensor host = mask->to(at::kCPU);
  at::Tensor real = host.to(at::kBool);
  check_value(host.to(at::kLong).equal(real.to(at::kLong)),
              "the attention mask must hold 0 for padding and 1 for real tokens, nothing else");
  return real;
}

// A convolution would reach over padding between a row's tokens, and a state would fade under it.
// valid: bool [batch, seen + tokens] on the CPU.
void check_no_gaps(const at::Tensor& valid, std::int64_t seen) {
  const at::Tensor rows = valid.contiguous();
  const std::int64_t columns = rows.size(1);
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    const bool* row = rows.const_data_ptr<bool>() + i * columns;
    const bool* first = std::find(row, row + columns, true);
    const bool* pad = std::find(first, row + columns, false);
    const bool* next = std::find(std::max(pad, row + seen), row + columns, true);
    check_value(next == row + columns, "row ", i, " has padding at column ", pad - row,
                ", between its tokens, which layers with convolution or recurrent states cannot "
                "leave out; pass the whole text instead, padded on the left");
  }
}

}  // namespace

ForwardContext::ForwardContext(Step& step, const std::vector<LayerSpec>& layers, at::Device device,
                               std::vector<std::int64_t> regimes)
    : step_(step),
      positions_(step.positions().to(device)),
      regimes_(std::move(regimes)),
      valid_(step.valid()) {
  if (valid_) real_tokens_ = valid_->narrow(1, step.seen(), step.tokens()).to(device);
  if (valid_ && std::any_of(layers.begin(), layers.end(), has_states)) {
    check_no_gaps(*valid_, step.seen());
  }
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
  std::int64_t result = rope_regime(config_.rope, length);
  for (const auto& [type, rope] : config_.layer_ropes) {
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
  const at::Tensor ids = checked_ids(input.input_ids, config_.vocab_size);
  const Step step = past_key_values.begin_step(
      {.tokens = ids.size(1), .batch = ids.size(0), .valid = checked_mask(input.attention_mask)});
  return step.first_row_unlike(regimes_of(step)).has_value();
}

at::Tensor CausalLM::forward(const ForwardInput& input, Cache* past_key_values) const {
  if (past_key_values != nullptr) return run(input, *past_key_values, /*commit=*/true);
  LayeredCache none = uncached(layers_);
  return run(input, none, /*commit=*/false);
}

at::Tensor CausalLM::run(const ForwardInput& input, Cache& cache, bool commit) const {
  const c10::InferenceMode inference;
  check_value(input.logits_to_keep >= 0, "logits_to_keep is ", input.logits_to_keep,
              "; it must be a number of positions, or 0 for all");
  const at::Tensor ids = checked_ids(input.input_ids, config_.vocab_size);
  const std::int64_t tokens = ids.size(1);
  Step step = cache.begin_step({.tokens = tokens,
                                .batch = ids.size(0),
                                .ids = ids,
                                .valid = checked_mask(input.attention_mask)});
  const std::vector<std::int64_t> regimes = regimes_of(step);
  if (!regimes.empty()) {
    const std::optional<std::int64_t> row = step.first_row_unlike(regimes);
    check_state(!row, "row ", row.value_or(0), " has ",
                step.lengths()[static_cast<std::size_t>(row.value_or(0))],
                " tokens with this step, for which its rope has other frequencies than the keys in "
                "the cache; reset() the cache and pass the whole text at once, as generate() does");
    step.stamp(regimes);
  }
  ForwardContext context(step, layers_, device_, regimes);
  const at::Tensor hidden = hidden_states(ids.to(device_), context);
  const std::int64_t kept =
      input.logits_to_keep == 0 ? tokens : std::min(input.logits_to_keep, tokens);
  at::Tensor logits;
  {
    // Not in InferenceMode, so that the caller may write to the logits.
    const c10::InferenceMode normal_tensors(false);
    const c10::NoGradGuard no_grad;
    logits = head(hidden.narrow(1, tokens - kept, kept)).to(device_);
  }
  if (commit) step.commit();
  return logits;
}

}  // namespace kvcache
