// A causal language model over a cache. forward() opens the step, runs the family's layers within
// it and commits it, so that a pass either happened for every layer or for none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/attention/mask.h"
#include "kvcache/cache/cache.h"
#include "kvcache/models/config.h"

namespace kvcache {

struct ForwardInput {
  at::Tensor input_ids;  // int64 or int32 [batch, tokens], on any device
  // Integer or bool [batch, tokens] or [batch, seen + tokens], 1 = real token; absent: all real.
  std::optional<at::Tensor> attention_mask = {};
  // Logits of the last `logits_to_keep` positions are computed (of all, if there are fewer); 0:
  // all.
  std::int64_t logits_to_keep = 0;
};

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

class CausalLM {
 public:
  virtual ~CausalLM() = default;

  const ModelConfig& config() const { return config_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }  // of logits; layers may lie elsewhere

  // Tells models apart in files of caches: model_type and a hash of config.json and of the weights'
  // names and shapes. Empty for a model that load_model() did not make, unless it is given one.
  const std::string& fingerprint() const { return fingerprint_; }
  void set_fingerprint(std::string fingerprint) { fingerprint_ = std::move(fingerprint); }

  // Logits [batch, tokens or logits_to_keep, vocab_size] in the model's dtype, on its device.
  // Without a cache the input is the whole text. Throws ValueError for ids outside the vocabulary,
  // an empty input or shapes that do not fit the cache, and RuntimeError where needs_whole_text();
  // the cache is then as it was. Safe to call from several threads, each with a cache of its own.
  at::Tensor forward(const ForwardInput& input, Cache* past_key_values = nullptr) const;

  // Whether a row grows past a length at which its rope (dynamic, longrope) changes its
  // frequencies, or was cropped back behind one: its cached keys no longer fit. The whole text must
  // then go through an empty cache at once; generate() sees to it. Throws as forward() does for bad
  // input.
  bool needs_whole_text(const ForwardInput& input, Cache& past_key_values) const;

 protected:
  CausalLM(ModelConfig config, at::ScalarType dtype, at::Device device)
      : config_(std::move(config)),
        layers_(config_.layer_specs()),
        dtype_(dtype),
        device_(device) {}

  // Hidden states after the last norm, [batch, tokens, hidden_size]. ids: int64 [batch, tokens].
  virtual at::Tensor hidden_states(const at::Tensor& ids, ForwardContext& context) const = 0;

  // Logits of hidden states [batch, n, hidden_size] -> [batch, n, vocab_size].
  virtual at::Tensor head(const at::Tensor& hidden) const = 0;

 private:
  at::Tensor run(const ForwardInput& input, Cache& cache, bool commit) const;
  std::int64_t regime(std::int64_t length) const;
  std::vector<std::int64_t> regimes_of(const Step& step) const;

  ModelConfig config_;
  std::vector<LayerSpec> layers_;
  at::ScalarType dtype_;
  at::Device device_;
  std::string fingerprint_;
};

}  // namespace kvcache
