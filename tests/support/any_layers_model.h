// A small model over any list of layers, those among them that no family has: hybrid layers, layers
// that read another one's keys, layers that keep nothing.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/uncached.h"
#include "kvcache/models/causal_convolution.h"
#include "kvcache/models/causal_lm.h"
#include "kvcache/models/recurrence.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {

// Wide random weights: width 32, 4 heads of 8 over 2 of keys, vocabulary 64. What a token is and
// where it stands, at most at 63, are added up; every layer adds what it reads of the norm of that.
class AnyLayersModel final : public LanguageModel {
 public:
  explicit AnyLayersModel(std::vector<LayerSpec> layers)
      : LanguageModel({.model_type = "any_layers", .vocab_size = 64, .hidden_size = kWidth},
                      at::kFloat, at::kCPU),
        layers_(std::move(layers)) {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(5);
    const auto matrix = [&](std::int64_t in, std::int64_t out, double size) {
      return at::randn({in, out}, random).mul_(size);
    };
    embeddings_ = matrix(64, kWidth, 0.5);
    positions_ = matrix(64, kWidth, 0.5);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      weights_.push_back({.query = matrix(kWidth, kWidth, 0.3),
                          .key = matrix(kWidth, kKeys, 0.3),
                          .value = matrix(kWidth, kKeys, 0.3),
                          .output = matrix(kWidth, kWidth, 0.3),
                          .inputs = matrix(kWidth, kKeys, 0.3),
                          .taps = matrix(kKeys, kTaps, 0.5).unsqueeze(1),
                          .reads = matrix(kWidth, kKeys, 0.3),
                          .decays = matrix(kWidth, kKeys / kHead, 0.3),
                          .states_output = matrix(kKeys, kWidth, 0.1)});
    }
  }

  const std::vector<LayerSpec>& layers() const { return layers_; }

 protected:
  at::Tensor run(const ForwardInput& input, Cache* past_key_values) const override {
    const c10::InferenceMode inference;
    LayeredCache none = uncached(layers_);
    Cache& cache = past_key_values != nullptr ? *past_key_values : none;
    const at::Tensor& ids = input.input_ids;
    Step step = cache.begin_step(
        {.tokens = ids.size(1), .batch = ids.size(0), .ids = ids, .valid = input.attention_mask});
    ForwardContext context(step, layers_, device());
    at::Tensor hidden =
        at::embedding(embeddings_, ids) + at::embedding(positions_, context.positions());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      hidden = hidden + mixed(std::int64_t(i), normal(hidden), context);
    }
    const at::Tensor logits = last_logits(normal(hidden), input.logits_to_keep);
    if (past_key_values != nullptr) step.commit();
    return logits;
  }

  at::Tensor head(const at::Tensor& hidden) const override {
    return hidden.matmul(embeddings_.t());
  }

 private:
  static constexpr std::int64_t kWidth = 32, kKeys = 16, kHead = 8, kTaps = 3;

  struct Weights {
    at::Tensor query, key, value, output;                   // of attention
    at::Tensor inputs, taps, reads, decays, states_output;  // of a convolution and a recurrence
  };

  static at::Tensor normal(const at::Tensor& hidden) {
    return hidden * hidden.square().mean(-1, /*keepdim=*/true).add(1e-6).rsqrt();
  }

  // [batch, tokens, channels] -> [batch, heads, tokens, 8], and back.
  static at::Tensor heads(const at::Tensor& x) {
    return x.unflatten(-1, {-1, kHead}).transpose(1, 2);
  }
  static at::Tensor joined_heads(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

  // What a layer adds: [batch, tokens, 32] of x of that shape.
  at::Tensor mixed(std::int64_t layer, const at::Tensor& x, ForwardContext& context) const {
    const LayerSpec& spec = layers_[std::size_t(layer)];
    const Weights& weights = weights_[std::size_t(layer)];
    if (spec.type == kDummy) return x.matmul(weights.output).tanh();
    at::Tensor sum = has_states(spec) ? with_states(layer, x, context) : at::zeros_like(x);
    if (spec.type == kLinearAttention) return sum;
    const at::Tensor query = heads(x.matmul(weights.query));
    const at::Tensor read =
        spec.donor ? context.attend_shared(layer, query)
                   : context.attend(layer, query,
                                    {heads(x.matmul(weights.key)), heads(x.matmul(weights.value))});
    return sum.add_(joined_heads(read).matmul(weights.output));
  }

  // A convolution over the inputs, and linear attention over what it makes of them. Padding, which
  // comes before a text, counts as zeros.
  at::Tensor with_states(std::int64_t layer, const at::Tensor& x, ForwardContext& context) const {
    const Weights& weights = weights_[std::size_t(layer)];
    at::Tensor inputs = x.matmul(weights.inputs);
    if (const auto& real = context.real_tokens()) inputs = inputs * real->unsqueeze(2);
    const at::Tensor with_past = context.update_conv_state(
        layer, inputs.transpose(1, 2).contiguous(), {.kernel_size = kTaps});
    const at::Tensor states = heads(causal_convolution(with_past, weights.taps).transpose(1, 2));
    const ScanResult scan =
        linear_attention({.queries = heads(x.matmul(weights.reads)),
                          .keys = states,
                          .values = states,
                          .log_decay = at::softplus(x.matmul(weights.decays)).neg().transpose(1, 2),
                          .state = context.recurrent_state(layer),
                          .wanted = context.wanted_states(layer)});
    context.update_recurrent_state(layer, scan.states);
    return joined_heads(scan.output).matmul(weights.states_output);
  }

  std::vector<LayerSpec> layers_;
  at::Tensor embeddings_, positions_;
  std::vector<Weights> weights_;
};

// Layers that no config can say: a model of each kind.
inline std::map<std::string, std::vector<LayerSpec>> kinds_of_own_layers() {
  const LayerSpec full, nothing{.type = std::string(kDummy)};
  const LayerSpec sliding{.type = std::string(kSlidingAttention), .window = 4};
  const LayerSpec hybrid{.type = std::string(kHybrid)};
  const LayerSpec hybrid_sliding{.type = std::string(kHybridSliding), .window = 4};
  const auto shared = [](std::int64_t donor) {
    return LayerSpec{.type = std::string(kShared), .donor = donor};
  };
  return {{"hybrid", {hybrid, nothing, hybrid}},
          {"hybrid_sliding", {hybrid_sliding, hybrid, hybrid_sliding}},
          {"shared", {full, sliding, nothing, shared(0), shared(1)}}};
}

// A model of one of those kinds, or of one of tiny_model().
inline std::unique_ptr<LanguageModel> tiny_language_model(const std::string& kind) {
  const auto kinds = kinds_of_own_layers();
  const auto own = kinds.find(kind);
  if (own == kinds.end()) return tiny_model(kind);
  return std::make_unique<AnyLayersModel>(own->second);
}

// The layers of a cache for a model.
inline std::vector<LayerSpec> layers_of(const LanguageModel& model) {
  const auto* own = dynamic_cast<const AnyLayersModel*>(&model);
  return own != nullptr ? own->layers() : model.config().layer_specs();
}

}  // namespace kvcache::testing
