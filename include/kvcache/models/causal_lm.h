// A causal language model over a cache. forward() opens the step, runs the family's layers within
// it and commits it, so that a pass either happened for every layer or for none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/attention/mask.h"
#include "kvcache/cache/cache.h"
#include "kvcache/models/config.h"
#include "kvcache/models/language_model.h"

namespace kvcache {

// What a family's layers see of a step.
class ForwardContext {
 public:
  // `layers`: what the model says of its layers. Throws ValueError where the step's cache hands a
  // layer fewer past tokens than its queries see.
  // `regimes`: see regimes().
  ForwardContext(Step& step, const std::vector<LayerSpec>& layers, at::Device device,
                 std::vector<std::int64_t> regimes = {});

  // Positions of the new tokens, int64 [batch, tokens], on the model's device.
  const at::Tensor& positions() const { return positions_; }

  // Positions of the keys that this layer's queries are handed, int64 [batch or 1, columns], on the
  // CPU: real tokens before each in its row, padding included.
  at::Tensor key_positions(std::int64_t layer) const;

  // Which of the new tokens are real, bool [batch, tokens], on the model's device; absent: all.
  // Layers whose states would take padding in zero its inputs.
  const std::optional<at::Tensor>& real_tokens() const { return real_tokens_; }

  // Which rope frequencies each row's text has by its length, for Rope::at; empty where they do not
  // depend on it.
  const std::vector<std::int64_t>& regimes() const { return regimes_; }

  // Takes the layer's keys [batch, kv_heads, tokens, key_dim] and values into the cache and attends
  // to all that the queries [batch, heads, tokens, key_dim] may see: [batch, heads, tokens,
  // value_dim].
  at::Tensor attend(std::int64_t layer, const at::Tensor& query, const KeyValue& states,
                    const AttentionOptions& options = {});

  // The same of a layer that reads its donor's keys and values.
  at::Tensor attend_shared(std::int64_t layer, const at::Tensor& query,
                           const AttentionOptions& options = {});

  // Convolution and recurrent states of linear layers: Step's calls.
  at::Tensor update_conv_state(std::int64_t layer, const at::Tensor& inputs,
                               const ConvState& state) {
    return step_.update_conv_state(layer, inputs, state);
  }
  std::optional<at::Tensor> recurrent_state(std::int64_t layer, std::int64_t index = 0) {
    return step_.recurrent_state(layer, index);
  }
  std::int64_t wanted_states(std::int64_t layer) const { return step_.wanted_states(layer); }
  at::Tensor update_recurrent_state(std::int64_t layer, const at::Tensor& states,
                                    std::int64_t index = 0) {
    return step_.update_recurrent_state(layer, states, index);
  }

 private:
  static Visible pattern(const Step& step, std::int64_t layer, const LayerSpec& spec);
  const AttentionMask& mask(std::int64_t layer, at::Device device);

  Step& step_;
  at::Tensor positions_;
  std::vector<std::int64_t> regimes_;
  std::optional<at::Tensor> valid_;  // bool [batch, seen + tokens] on the CPU
  std::optional<at::Tensor> real_tokens_;
  std::vector<Visible> visible_;  // by layer: the cache's columns, the model's pattern
  // One per distinct Visible and device.
  std::vector<std::pair<std::pair<Visible, at::Device>, AttentionMask>> masks_;
};

class CausalLM : public LanguageModel {
 public:
  bool needs_whole_text(const ForwardInput& input, Cache& past_key_values) const final;

 protected:
  CausalLM(ModelConfig model_config, at::ScalarType dtype, at::Device device)
      : LanguageModel(std::move(model_config), dtype, device), layers_(config().layer_specs()) {}

  // Hidden states after the last norm, [batch, tokens, hidden_size]. ids: int64 [batch, tokens].
  virtual at::Tensor hidden_states(const at::Tensor& ids, ForwardContext& context) const = 0;

  at::Tensor run(const ForwardInput& input, Cache* past_key_values) const final;

 private:
  at::Tensor run_step(const ForwardInput& input, Cache& cache, bool commit) const;
  std::int64_t regime(std::int64_t length) const;
  std::vector<std::int64_t> regimes_of(const Step& step) const;

  std::vector<LayerSpec> layers_;
};

}  // namespace kvcache
