#include "kvcache/models/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

// What a type makes of the frequencies of one regime.
struct Request {
  const RopeConfig& config;
  std::int64_t rotary_dim;
  std::int64_t regime;
};

using Frequencies = at::Tensor;  // float32 [rotary_dim / 2], radians a token

Frequencies plain(double theta, std::int64_t rotary_dim) {
  const at::Tensor exponents =
      at::arange(0, rotary_dim, 2, at::kFloat).div(static_cast<double>(rotary_dim));
  return at::pow(theta, exponents).reciprocal();
}

Frequencies unscaled(const Request& request) {
  return plain(request.config.theta, request.rotary_dim);
}

Frequencies linear(const Request& request) { return unscaled(request).div(request.config.factor); }

// NTK-aware scaling that grows with the text: theta is raised until the slowest frequency turns no
// further at the text's end than it did at the original length.
Frequencies dynamic(const Request& request) {
  const RopeConfig& config = request.config;
  if (request.regime == 0) return unscaled(request);
  const double stretch = config.factor * static_cast<double>(request.regime) /
                             static_cast<double>(config.original_max_position_embeddings) -
                         (config.factor - 1);
  const auto dim = static_cast<double>(request.rotary_dim);
  return plain(config.theta * std::pow(stretch, dim / (dim - 2)), request.rotary_dim);
}

// YaRN (https://arxiv.org/abs/2309.00071): frequencies that turn often within the original length
// stay, those that turn rarely are slowed by the factor, a ramp over the dimensions blends.
Frequencies yarn(const Request& request) {
  const RopeConfig& config = request.config;
  const auto dim = static_cast<double>(request.rotary_dim);
  const auto dimension_that_turns = [&](double turns) {
    const auto length = static_cast<double>(config.original_max_position_embeddings);
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(config.theta));
  };
  double first = dimension_that_turns(config.beta_fast);
  double last = dimension_that_turns(config.beta_slow);
  if (config.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dim - 1);
  if (first == last) last += 0.001;  // a step rather than a ramp
  const at::Tensor slowed =
      at::arange(request.rotary_dim / 2, at::kFloat).sub(first).div(last - first).clamp(0, 1);
  const at::Tensor fast = unscaled(request);
  return fast.div(config.factor).mul(slowed).add(fast.mul(slowed.neg().add(1)));
}

// LongRoPE (https://arxiv.org/abs/2402.13753): a factor for each frequency, of two lists.
Frequencies longrope(const Request& request) {
  const std::vector<double>& factors =
      request.regime == 0 ? request.config.short_factor : request.config.long_factor;
  return unscaled(request).div(at::tensor(factors, at::kFloat));
}

// Llama 3.1: long wavelengths are slowed by the factor, short ones stay, those between are blended.
Frequencies llama3(const Request& request) {
  const RopeConfig& config = request.config;
  const at::Tensor fast = unscaled(request);
  const auto context = static_cast<double>(config.original_max_position_embeddings);
  const double longest_kept = context / config.high_freq_factor;  // wavelengths, in tokens
  const double shortest_slowed = context / config.low_freq_factor;
  const at::Tensor wavelength = fast.reciprocal().mul(2 * std::numbers::pi);
  const at::Tensor slowed = fast.div(config.factor);
  const at::Tensor share = wavelength.reciprocal()
                               .mul(context)
                               .sub(config.low_freq_factor)
                               .div(config.high_freq_factor - config.low_freq_factor);
  const at::Tensor blended = share.neg().add(1).mul(fast).div(config.factor).add(share.mul(fast));
  return at::where(wavelength.gt(shortest_slowed), slowed,
                   at::where(wavelength.lt(longest_kept), fast, blended));
}

enum class Regimes { one, two, many };  // many: every length beyond the original one has its own

struct RopeType {
  std::string_view name;
  Frequencies (*frequencies)(const Request&);
  Regimes regimes = Regimes::one;
};

constexpr std::array<RopeType, 6> kTypes{{
    {"default", unscaled},
    {"linear", linear},
    {"dynamic", dynamic, Regimes::many},
    {"yarn", yarn},
    {"longrope", longrope, Regimes::two},
    {"llama3", llama3},
}};

const RopeType& find_type(std::string_view name) {
  for (const RopeType& type : kTypes) {
    if (type.name == name) return type;
  }
  throw ValueError(
      c10::str("unknown rope type '", name, "'; known are ", c10::Join(", ", rope_types())));
}

void check_factors(const std::vector<double>& factors, const char* name, std::int64_t needed) {
  check_value(static_cast<std::int64_t>(factors.size()) == needed, "rope longrope has ",
              factors.size(), " numbers in ", name, ", but heads with ", needed, " frequencies");
}

}  // namespace

std::vector<std::string> rope_types() {
  std::vector<std::string> names;
  names.reserve(kTypes.size());
  for (const RopeType& type : kTypes) names.emplace_back(type.name);
  return names;
}

Rope::Rope(const RopeConfig& config, std::int64_t head_dim, at::Device device)
    : config_(config),
      rotary_dim_(
          static_cast<std::int64_t>(static_cast<double>(head_dim) * config.partial_rotary_factor)) {
  find_type(config.type);  // throws for an unknown one
  check_value(rotary_dim_ > 0 && rotary_dim_ % 2 == 0 && rotary_dim_ <= head_dim, "rope turns ",
              rotary_dim_, " of a head's ", head_dim, " dimensions (partial_rotary_factor is ",
              config.partial_rotary_factor, "); it must be an even number of them");
  check_value(config.type != "dynamic" || rotary_dim_ > 2,
              "rope dynamic needs more than one frequency, but turns only ", rotary_dim_,
              " dimensions");
  if (config.type == "longrope") {
    check_factors(config.short_factor, "short_factor", rotary_dim_ / 2);
    check_factors(config.long_factor, "long_factor", rotary_dim_ / 2);
  }
  short_frequencies_ = find_type(config.type).frequencies({config_, rotary_dim_, 0}).to(device);
}

std::int64_t rope_regime(const RopeConfig& config, std::int64_t length) {
  const Regimes regimes = find_type(config.type).regimes;
  const std::int64_t original = config.original_max_position_embeddings;
  if (regimes == Regimes::one || length <= original) return 0;
  return regimes == Regimes::two ? original + 1 : length;
}

at::Tensor Rope::inverse_frequencies(std::int64_t regime) const {
  if (regime == 0) return short_frequencies_;
  return find_type(config_.type)
      .frequencies({config_, rotary_dim_, regime})
      .to(short_frequencies_.device());
}

// [rotary_dim / 2], or [batch, 1, 1, rotary_dim / 2] where rows differ.
at::Tensor Rope::frequencies_of_rows(const std::vector<std::int64_t>& regimes) const {
  if (regimes.empty()) return short_frequencies_;
  // What another rope of the same model tells apart may be the same here.
  const auto own = [&](std::int64_t length) { return inverse_frequencies(regime(length)); };
  const auto same = [&](std::int64_t length) { return length == regimes.front(); };
  if (std::all_of(regimes.begin(), regimes.end(), same)) return own(regimes.front());
  std::vector<at::Tensor> rows;
  rows.reserve(regimes.size());
  for (const std::int64_t length : regimes) rows.push_back(own(length));
  return at::stack(rows).unsqueeze(1).unsqueeze(1);
}

Rotation Rope::at(const at::Tensor& positions, at::ScalarType dtype,
                  const std::vector<std::int64_t>& regimes) const {
  const at::Tensor angles = positions.to(at::kFloat)
                                .unsqueeze(-1)
                                .unsqueeze(-1)
                                .mul(frequencies_of_rows(regimes));  // [batch, tokens, 1, half]
  at::Tensor cos = angles.cos();
  at::Tensor sin = angles.sin();
  if (config_.attention_factor != 1) {
    cos.mul_(config_.attention_factor);
    sin.mul_(config_.attention_factor);
  }
  return {at::cat({cos, cos}, -1).to(dtype), at::cat({sin.neg(), sin}, -1).to(dtype)};
}

at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation) {
  const std::int64_t turned = rotation.cos.size(-1), half = turned / 2;
  if (turned < heads.size(-1)) {
    return at::cat({rotate(heads.narrow(-1, 0, turned), rotation),
                    heads.narrow(-1, turned, heads.size(-1) - turned)},
                   -1);
  }
  const at::Tensor swapped = at::cat({heads.narrow(-1, half, half), heads.narrow(-1, 0, half)}, -1);
  return swapped.mul_(rotation.sin).addcmul_(heads, rotation.cos);
}

at::Tensor rotate_interleaved(const at::Tensor& heads, const Rotation& rotation) {
  const std::int64_t half = heads.size(-1) / 2;
  const at::Tensor cos = rotation.cos.narrow(-1, 0, half),
                   sin = rotation.sin.narrow(-1, half, half);
  const at::Tensor pairs = heads.to(at::kFloat).unflatten(-1, {half, 2});
  const at::Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  return at::stack({even.mul(cos).sub_(odd.mul(sin)), even.mul(sin).add_(odd.mul(cos))}, -1)
      .flatten(-2)
      .to(heads.scalar_type());
}

}  // namespace kvcache
