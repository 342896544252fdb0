// Builds the models of mamba and mamba2, which differ in their mixers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/models/mixed_decoder.h"

namespace kvcache::detail {

// Takes the weights below "backbone" and verifies them. Throws ValueError for those that do not
// fit.
template <typename Mixer>
std::unique_ptr<CausalLM> build_mamba(const ModelConfig& config, const StateDict& weights,
                                      const LoadOptions& options) {
  MixedParts parts{.vocabulary = Vocabulary::read(weights, config, "backbone.embeddings.weight"),
                   .wide_residual = config.recurrent.wide_residual};
  const auto norm = [&](const StateDict& from, const char* name) {
    return RmsNorm(from.take(name, {config.hidden_size}), config.rms_norm_eps);
  };
  std::vector<Mixer> mixers;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const StateDict layer = weights.select("backbone.layers." + std::to_string(i));
    parts.layers.push_back({.norm = norm(layer, "norm.weight")});
    mixers.push_back(Mixer::read(layer.select("mixer"), config));
  }
  parts.norm = norm(weights, "backbone.norm_f.weight");
  weights.verify();
  for (std::size_t i = 0; i < mixers.size(); ++i) {
    mixers[i].prepare();
    parts.layers[i].mixer = std::move(mixers[i]);
  }
  return std::make_unique<MixedDecoder>(config, options, std::move(parts));
}

}  // namespace kvcache::detail
