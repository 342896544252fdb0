// What a forward pass is given, checked before anything is opened.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kvcache/cache/step.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/models/language_model.h"

namespace kvcache::detail {

// The ids as int64 [batch, tokens] on the CPU, every one of them in the vocabulary. Throws
// ValueError, beginning with `name`.
at::Tensor checked_ids(const at::Tensor& ids, std::int64_t vocab_size,
                       std::string_view name = "input_ids");

// The mask as bool on the CPU; its shape is the step's concern. Throws ValueError.
std::optional<at::Tensor> checked_mask(const std::optional<at::Tensor>& mask);

// Throws ValueError for a negative number.
void check_logits_to_keep(const ForwardInput& input);

// Throws ValueError for padding that would not be left out of what the new tokens see, naming the
// row and column: padding between a row's tokens under layers with windows or states, and padding
// of the past that is not as it was when the past was computed. What may change is that a row's
// last tokens become padding, as nothing has seen them, under layers without windows and states.
// valid: step.valid().
void check_padding(const Step& step, const std::optional<at::Tensor>& valid,
                   const std::vector<LayerSpec>& layers);

}  // namespace kvcache::detail
