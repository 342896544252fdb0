// The blocks that llama-like families share, and the model made of them. Which keys a layer sees is
// the cache's and the mask's concern: sliding and chunked layers are the same code.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
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
  bool qkv_bias = false;        // of the query, key and value projections
  bool output_bias = false;     // of the attention's output projection
  bool mlp_bias = false;        // of the three projections of the MLP
  bool query_key_norm = false;  // RMS norms over each head of queries and keys
};

struct AttentionBlock {
  Linear query, key, value, output;
  std::optional<RmsNorm> query_norm, key_norm;
  std::int64_t head_dim;

  // hidden [batch * tokens, hidden_size] -> the same shape.
  at::Tensor operator()(const at::Tensor& hidden, std::int64_t layer, const Rotation& rotation,
                        ForwardContext& context) const;
};

struct DecoderLayer {
  RmsNorm attention_norm;
  AttentionBlock attention;
  RmsNorm mlp_norm;
  GatedMlp mlp;
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
  at::Tensor embedding_;  // [vocab_size, hidden_size]
  std::vector<DecoderLayer> layers_;
  RmsNorm norm_;
  Rope rope_;
  Linear head_;
};

}  // namespace kvcache
