// Rotary position embeddings (https://arxiv.org/abs/2104.09864), in Transformers' layout: the first
// half of a head is rotated against the second.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/models/config.h"

namespace kvcache {

// The rotation of some positions. Computed once a step for all layers.
struct Rotation {
  at::Tensor cos;  // [batch, tokens, 1, head_dim]
  at::Tensor sin;  // [batch, tokens, 1, head_dim], the first half negated

  Rotation to(at::Device device) const { return {cos.to(device), sin.to(device)}; }
};

class Rope {
 public:
  Rope() = default;
  // Throws ValueError for an unknown type, listing the known ones.
  Rope(const RopeConfig& config, std::int64_t head_dim, at::Device device);

  // positions int64 [batch, tokens] on the rope's device. Angles are float32 whatever the dtype.
  Rotation at(const at::Tensor& positions, at::ScalarType dtype) const;

  // float32 [head_dim / 2], radians a token.
  const at::Tensor& inverse_frequencies() const { return inverse_frequencies_; }

 private:
  at::Tensor inverse_frequencies_;
};

// Names of the rope types there are.
std::vector<std::string> rope_types();

// heads [batch, tokens, n, head_dim], rotated; a new tensor.
at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation);

}  // namespace kvcache
