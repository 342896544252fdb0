#include "kvcache/models/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <array>
#include <numbers>
#include <string_view>
#include <utility>

#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

using Frequencies = at::Tensor;  // float32 [head_dim / 2], radians a token
using Scaling = Frequencies (*)(const RopeConfig&, Frequencies);

Frequencies scale_linear(const RopeConfig& config, Frequencies plain) {
  return plain.div(config.factor);
}

// Llama 3.1: long wavelengths are slowed by the factor, short ones stay, those between are blended.
Frequencies scale_llama3(const RopeConfig& config, Frequencies plain) {
  const auto context = static_cast<double>(config.original_max_position_embeddings);
  const double longest_kept = context / config.high_freq_factor;  // wavelengths, in tokens
  const double shortest_slowed = context / config.low_freq_factor;
  const at::Tensor wavelength = plain.reciprocal().mul(2 * std::numbers::pi);
  const at::Tensor slowed = plain.div(config.factor);
  const at::Tensor share = wavelength.reciprocal()
                               .mul(context)
                               .sub(config.low_freq_factor)
                               .div(config.high_freq_factor - config.low_freq_factor);
  const at::Tensor blended = share.neg().add(1).mul(plain).div(config.factor).add(share.mul(plain));
  return at::where(wavelength.gt(shortest_slowed), slowed,
                   at::where(wavelength.lt(longest_kept), plain, blended));
}

constexpr std::array<std::pair<std::string_view, Scaling>, 3> kTypes{{
    {"default", [](const RopeConfig&, Frequencies plain) { return plain; }},
    {"linear", scale_linear},
    {"llama3", scale_llama3},
}};

Scaling find_scaling(std::string_view type) {
  for (const auto& [name, scaling] : kTypes) {
    if (name == type) return scaling;
  }
  throw ValueError(
      c10::str("unknown rope type '", type, "'; known are ", c10::Join(", ", rope_types())));
}

}  // namespace

std::vector<std::string> rope_types() {
  std::vector<std::string> names;
  names.reserve(kTypes.size());
  for (const auto& [name, scaling] : kTypes) names.emplace_back(name);
  return names;
}

Rope::Rope(const RopeConfig& config, std::int64_t head_dim, at::Device device) {
  const Scaling scale = find_scaling(config.type);
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kFloat).div(static_cast<double>(head_dim));
  inverse_frequencies_ = scale(config, at::pow(config.theta, exponents).reciprocal()).to(device);
}

Rotation Rope::at(const at::Tensor& positions, at::ScalarType dtype) const {
  const at::Tensor angles = positions.to(at::kFloat)
                                .unsqueeze(-1)
                                .unsqueeze(-1)
                                .mul(inverse_frequencies_);  // [batch, tokens, 1, head_dim / 2]
  const at::Tensor cos = angles.cos();
  const at::Tensor sin = angles.sin();
  return {at::cat({cos, cos}, -1).to(dtype), at::cat({sin.neg(), sin}, -1).to(dtype)};
}

at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation) {
  const std::int64_t half = heads.size(-1) / 2;
  const at::Tensor swapped = at::cat({heads.narrow(-1, half, half), heads.narrow(-1, 0, half)}, -1);
  return swapped.mul_(rotation.sin).addcmul_(heads, rotation.cos);
}

}  // namespace kvcache
