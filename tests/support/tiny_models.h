// Tiny models with wide random weights: 3 layers, width 32, 4 heads on 2 KV heads of 8, vocabulary
// 64. The kinds of layers are free, so that those without a family yet, such as chunked ones, can
// be run end to end.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/io/state_dict.h"
#include "kvcache/models/decoder.h"

namespace kvcache::testing {

// Layers of kinds "full", "sliding" (window 4), "chunked" (4) and "mixed" (one of each).
inline ModelConfig tiny_config(const std::string& kind, std::int64_t window = 4) {
  std::vector<std::string> types(3, kind + "_attention");
  if (kind == "mixed") types = {"full_attention", "sliding_attention", "chunked_attention"};
  return {.model_type = "llama",
          .vocab_size = 64,
          .hidden_size = 32,
          .intermediate_size = 48,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 8,
          .max_position_embeddings = 128,
          .layer_types = types,
          .sliding_window = window,
          .attention_chunk_size = window};
}

// The weights that a DecoderModel of this config without biases takes: standard deviation 0.4.
inline std::map<std::string, at::Tensor> tiny_weights(const ModelConfig& config,
                                                      std::uint64_t seed = 1) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::map<std::string, at::Tensor> weights;
  const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    weights[name + ".weight"] = at::randn({out, in}, random).mul_(0.4);
  };
  const auto norm = [&](const std::string& name) {
    weights[name + ".weight"] = at::rand({config.hidden_size}, random).add_(0.5);
  };
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const std::int64_t queries = config.num_attention_heads * config.head_dim;
  const std::int64_t keys = config.num_key_value_heads * config.head_dim;
  matrix("model.embed_tokens", config.vocab_size, hidden);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    norm(layer + ".input_layernorm");
    matrix(layer + ".self_attn.q_proj", queries, hidden);
    matrix(layer + ".self_attn.k_proj", keys, hidden);
    matrix(layer + ".self_attn.v_proj", keys, hidden);
    matrix(layer + ".self_attn.o_proj", hidden, queries);
    norm(layer + ".post_attention_layernorm");
    matrix(layer + ".mlp.gate_proj", inner, hidden);
    matrix(layer + ".mlp.up_proj", inner, hidden);
    matrix(layer + ".mlp.down_proj", hidden, inner);
  }
  norm("model.norm");
  matrix("lm_head", config.vocab_size, hidden);
  return weights;
}

inline std::unique_ptr<CausalLM> tiny_model_of(const ModelConfig& config,
                                               const std::map<std::string, at::Tensor>& weights) {
  const LoadOptions options{.dtype = at::kFloat};
  return std::make_unique<DecoderModel>(config, StateDict(weights, options), options,
                                        DecoderStyle{});
}

inline std::unique_ptr<CausalLM> tiny_model(const std::string& kind, std::int64_t window = 4) {
  const ModelConfig config = tiny_config(kind, window);
  return tiny_model_of(config, tiny_weights(config));
}

}  // namespace kvcache::testing
