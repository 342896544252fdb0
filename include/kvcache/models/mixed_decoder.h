// A decoder whose layers mix tokens each in a way of its own: by attention, state spaces,
// convolutions. Families with recurrent states put their layers together here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kvcache/models/causal_lm.h"
#include "kvcache/models/decoder.h"
#include "kvcache/models/rms_norm.h"
#include "kvcache/models/rope.h"

namespace kvcache {

// A layer's place in a step.
struct LayerContext {
  std::int64_t layer;
  const Rotation& rotation;  // of the step's positions; undefined in a model without rope
  ForwardContext& step;

  std::int64_t batch() const { return step.positions().size(0); }
  std::int64_t tokens() const { return step.positions().size(1); }
};

// x [batch, tokens, channels] with zeros where a row holds padding, so that states take none in.
at::Tensor without_padding(const at::Tensor& x, const LayerContext& context);

struct MixedLayer {
  RmsNorm norm = {};
  // hidden [batch * tokens, hidden_size] -> the same shape, a new tensor.
  std::function<at::Tensor(const at::Tensor&, const LayerContext&)> mixer = {};
  // Absent in layers that are a mixer alone.
  RmsNorm mlp_norm = {};
  std::function<at::Tensor(const at::Tensor&)> mlp = {};
};

// Attention with rope as a mixer.
struct RotaryAttention {
  AttentionBlock attention;

  at::Tensor operator()(const at::Tensor& hidden, const LayerContext& context) const {
    return attention(hidden, context.layer, context.rotation, context.step);
  }
};

struct MixedParts {
  Vocabulary vocabulary = {};
  std::vector<MixedLayer> layers = {};
  RmsNorm norm = {};
  std::optional<Rope> rope = {};
  bool wide_residual = false;  // the sums between layers are float32 whatever the dtype
};

class MixedDecoder final : public CausalLM {
 public:
  MixedDecoder(const ModelConfig& config, const LoadOptions& options, MixedParts parts);

 protected:
  at::Tensor hidden_states(const at::Tensor& ids, ForwardContext& context) const override;
  at::Tensor head(const at::Tensor& hidden) const override;

 private:
  MixedParts parts_;
};

}  // namespace kvcache
