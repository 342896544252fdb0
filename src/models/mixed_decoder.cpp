#include "kvcache/models/mixed_decoder.h"

#include <utility>

namespace kvcache {

at::Tensor without_padding(const at::Tensor& x, const LayerContext& context) {
  const std::optional<at::Tensor>& real = context.step.real_tokens();
  return real ? x.mul(real->to(x.device()).unsqueeze(-1)) : x;
}

MixedDecoder::MixedDecoder(const ModelConfig& config, const LoadOptions& options, MixedParts parts)
    : CausalLM(config, options.dtype.value(), options.device), parts_(std::move(parts)) {}

at::Tensor MixedDecoder::hidden_states(const at::Tensor& ids, ForwardContext& context) const {
  at::Tensor hidden = parts_.vocabulary.embed(ids);  // [batch * tokens, hidden_size] throughout
  if (parts_.wide_residual) hidden = hidden.to(at::kFloat);
  Rotation rotation;
  if (parts_.rope) rotation = parts_.rope->at(context.positions(), dtype(), context.regimes());
  for (std::size_t i = 0; i < parts_.layers.size(); ++i) {
    const MixedLayer& layer = parts_.layers[i];
    hidden = hidden.to(layer.norm.device());
    if (parts_.rope) rotation = rotation.to(hidden.device());
    const LayerContext place{static_cast<std::int64_t>(i), rotation, context};
    hidden = hidden.add_(layer.mixer(layer.norm(hidden.to(dtype())), place));
    if (layer.mlp) hidden = hidden.add_(layer.mlp(layer.mlp_norm(hidden.to(dtype()))));
  }
  return parts_.norm(hidden.to(parts_.norm.device()))
      .to(dtype())
      .view({ids.size(0), ids.size(1), -1});
}

at::Tensor MixedDecoder::head(const at::Tensor& hidden) const {
  return parts_.vocabulary.logits(hidden);
}

}  // namespace kvcache
