// Activation functions by the names that config.json's hidden_act uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace kvcache {

// Works in place and returns its argument.
using Activation = at::Tensor (*)(at::Tensor);

// Throws ValueError for an unknown name, listing the known ones.
Activation find_activation(std::string_view name);

}  // namespace kvcache
