// A language model with an encoder over a cache. forward() opens the step, runs the encoder where
// the cache does not hold its output's keys, then the decoder, and commits both sides together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/models/causal_lm.h"
#include "kvcache/models/language_model.h"

namespace kvcache {

// What a decoder's layers see of the encoder.
class CrossContext {
 public:
  // `states`: the encoder's output [encoder rows, tokens, hidden_size]; absent where the cache
  // holds its keys.
  CrossContext(Step& step, std::optional<at::Tensor> states)
      : step_(step), states_(std::move(states)), valid_(step.cross_valid()) {}

  // Makes a layer's keys [rows, kv_heads, tokens, key_dim] and values of the encoder's output.
  using Projection = std::function<KeyValue(const at::Tensor& states)>;

  // Attends to the encoder's output: queries [batch, heads, tokens, key_dim] -> [batch, heads,
  // tokens, value_dim]. Calls `project` only where the cache does not hold the layer's keys.
  at::Tensor attend(std::int64_t layer, const at::Tensor& query, const Projection& project,
                    const AttentionOptions& options = {});

 private:
  AttentionMask mask(std::int64_t tokens, at::Device device) const;

  Step& step_;
  std::optional<at::Tensor> states_;
  std::optional<at::Tensor> valid_;  // bool [encoder rows, encoder tokens] on the CPU
};

class Seq2SeqLM : public LanguageModel {
 protected:
  Seq2SeqLM(ModelConfig model_config, at::ScalarType dtype, at::Device device)
      : LanguageModel(std::move(model_config), dtype, device), layers_(config().layer_specs()) {}

  // The encoder's output [rows, tokens, hidden_size] for ids, int64 [rows, tokens], of which `real`
  // (bool, likewise; absent: all) are no padding.
  virtual at::Tensor encode(const at::Tensor& ids, const std::optional<at::Tensor>& real) const = 0;

  // The decoder's hidden states after its last norm, [batch, tokens, hidden_size], for ids, int64
  // [batch, tokens].
  virtual at::Tensor decode(const at::Tensor& ids, ForwardContext& context,
                            CrossContext& cross) const = 0;

  at::Tensor run(const ForwardInput& input, Cache* past_key_values) const final;

 private:
  at::Tensor run_step(const ForwardInput& input, Cache& cache, bool commit) const;

  std::vector<LayerSpec> layers_;  // of the decoder
};

}  // namespace kvcache
