// The blocks that llama-like families share, and the model made of them. Which keys a layer sees is
// the cache's and the mask's concern: sliding and chunked layers are the same code.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kvcache/io/state_dict.h"
#include "kvcache/models/causal_lm.h"
#include "kvcache/models/config.h"
#include "kvcache/models/gated_mlp.h"
#include "kvcache/models/linear.h"
#include "kvcache/models/rms_norm.h"
#include "kvcache/models/rope.h"

namespace kvcache {

// In what families differ, apart from their config.
struct DecoderStyle {
  bool qkv_bias = false;             // of the query, key and value projections
  bool output_bias = false;          // of the attention's output projection
  bool mlp_bias = false;             // of the three projections of the MLP
  bool query_key_norm = false;       // RMS norms over each head of queries and keys
  bool zero_centered_norms = false;  // norms weigh by 1 + w
  bool sandwich_norms = false;       // norms behind attention and MLP, too
  double embedding_scale = 1;        // on what goes into the first layer
};

// Queries, keys and values [batch, tokens, heads, head_dim], before the cache.
struct Heads {
  at::Tensor queries, keys, values;
};

struct AttentionBlock {
  Linear query = {}, key = {}, value = {}, output = {};
  std::optional<RmsNorm> query_norm = {}, key_norm = {};
  std::int64_t head_dim;
  AttentionOptions options = {};

  // The three projections of hidden [batch * tokens, hidden_size].
  Heads project(const at::Tensor& hidden, const ForwardContext& context) const;

  // Takes keys and values into the cache's layer and attends: [batch * tokens, hidden_size].
  at::Tensor attend(std::int64_t layer, const Heads& heads, ForwardContext& context) const;

  // All of it: hidden [batch * tokens, hidden_size] -> the same shape.
  at::Tensor operator()(const at::Tensor& hidden, std::int64_t layer, const Rotation& rotation,
                        ForwardContext& context) const;
};

struct DecoderLayer {
  RmsNorm attention_norm;
  AttentionBlock attention;
  std::optional<RmsNorm> after_attention = {};
  RmsNorm mlp_norm;
  GatedMlp mlp;
  std::optional<RmsNorm> after_mlp = {};
  std::size_t rope = 0;  // index of the layer's rope among the model's
};

// Token embeddings at one end and, maybe tied to them, the head at the other.
struct Vocabulary {
  at::Tensor embedding;  // [vocab_size, hidden_size]
  Linear output = {};
  double scale = 1;                    // on embeddings
  std::optional<double> softcap = {};  // logits become softcap * tanh(logits / softcap)

  // Takes the embeddings and, unless tied, "lm_head.weight".
  static Vocabulary read(const StateDict& weights, const ModelConfig& config,
                         std::string_view embeddings = "model.embed_tokens.weight");

  // ids int64 [batch, tokens] -> hidden states [batch * tokens, hidden_size].
  at::Tensor embed(const at::Tensor& ids) const;

  // hidden [batch, n, hidden_size] -> logits [batch, n, vocab_size].
  at::Tensor logits(const at::Tensor& hidden) const;
};

class DecoderModel final : public CausalLM {
 public:
  // Takes every weight it needs from `weights`, whose LoadOptions were `options` with a dtype, and
  // verifies them. Throws ValueError listing each missing, mis-shaped and unused one.
  DecoderModel(const ModelConfig& config, const StateDict& weights, const LoadOptions& options,
               const DecoderStyle& style);

 protected:
  at::Tensor hidden_states(const at::Tensor& ids, ForwardContext& context) const override;
  at::Tensor head(const at::Tensor& hidden) const override;

 private:
  Vocabulary vocabulary_;
  std::vector<DecoderLayer> layers_;
  RmsNorm norm_;
  std::vector<Rope> ropes_;
};

}  // namespace kvcache
