#include "kvcache/models/activations.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <array>
#include <string>
#include <utility>

#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

constexpr std::array<std::pair<std::string_view, Activation>, 6> kActivations{{
    {"gelu", [](at::Tensor x) { return at::gelu_(x, "none"); }},
    {"gelu_new", [](at::Tensor x) { return at::gelu_(x, "tanh"); }},
    {"gelu_pytorch_tanh", [](at::Tensor x) { return at::gelu_(x, "tanh"); }},
    {"relu", [](at::Tensor x) { return at::relu_(x); }},
    {"silu", [](at::Tensor x) { return at::silu_(x); }},
    {"swish", [](at::Tensor x) { return at::silu_(x); }},
}};

}  // namespace

Activation find_activation(std::string_view name) {
  std::string known;
  for (const auto& [known_name, activation] : kActivations) {
    if (known_name == name) return activation;
    known.append(known.empty() ? "" : ", ").append(known_name);
  }
  throw ValueError(c10::str("unknown activation '", name, "'; known are ", known));
}

}  // namespace kvcache
