// Rotary position embeddings (https://arxiv.org/abs/2104.09864), in Transformers' layouts: halves
// of a head are turned against each other, or, in few families, neighbouring dimensions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/models/config.h"

namespace kvcache {

// The rotation of some positions. Computed once a step for all layers.
struct Rotation {
  at::Tensor cos;  // [batch, tokens, 1, rotary_dim]
  at::Tensor sin;  // [batch, tokens, 1, rotary_dim], the first half negated

  Rotation to(at::Device device) const { return {cos.to(device), sin.to(device)}; }
};

// The frequencies of some types depend on a text's length. A regime stands for all lengths with the
// same ones: 0 for short texts, else the least of these lengths. Keys that were turned in one
// regime do not fit queries of another. Throws ValueError for an unknown type.
std::int64_t rope_regime(const RopeConfig& config, std::int64_t length);

class Rope {
 public:
  Rope() = default;
  // Throws ValueError for an unknown type, listing the known ones, and for factors or a rotary_dim
  // that do not fit the type.
  Rope(const RopeConfig& config, std::int64_t head_dim, at::Device device);

  std::int64_t regime(std::int64_t length) const { return rope_regime(config_, length); }

  // positions int64 [batch, tokens] on the rope's device; `regimes`: of each row, or empty: all 0.
  // Angles are float32 whatever the dtype.
  Rotation at(const at::Tensor& positions, at::ScalarType dtype,
              const std::vector<std::int64_t>& regimes = {}) const;

  // float32 [rotary_dim / 2], radians a token.
  at::Tensor inverse_frequencies(std::int64_t regime = 0) const;

 private:
  at::Tensor frequencies_of_rows(const std::vector<std::int64_t>& regimes) const;

  RopeConfig config_;
  std::int64_t rotary_dim_ = 0;
  at::Tensor short_frequencies_;  // those of regime 0, on the rope's device
};

// Names of the known rope types.
std::vector<std::string> rope_types();

// heads [batch, tokens, n, head_dim], of which the first rotary_dim dimensions are turned, half
// against half; a new tensor.
at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation);

// The same for whole heads whose neighbouring dimensions (2 i, 2 i + 1) are turned. `rotation` is
// float32, and so is the arithmetic; the result has the heads' dtype.
at::Tensor rotate_interleaved(const at::Tensor& heads, const Rotation& rotation);

}  // namespace kvcache
