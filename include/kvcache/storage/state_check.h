// What linear layers and their storages ask of the states they are handed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/storage/check.h"

namespace kvcache::detail {

// Refuses a tensor that no state can be made of. Throws ValueError.
inline void check_state_tensor(const at::Tensor& given, std::int64_t least_dims, const char* name) {
  check_value(given.defined(), name, " are undefined");
  check_dense(given, name);
  check_value(given.dim() >= least_dims && given.numel() > 0, name, " of shape ", given.sizes(),
              " have no token, row or channel; they need ", least_dims, " dimensions or more");
  check_value(given.is_floating_point(), name, " must be floating point, but are ",
              dtype_name(given));
  check_value(!given.requires_grad(), name,
              " require gradients, which a cache does not keep: run under at::NoGradGuard or "
              "c10::InferenceMode, or detach them");
}

// Refuses a tensor that differs from what is held in more than the number of slots. Throws
// ValueError.
inline void check_state_continues(const at::Tensor& buffer, const at::Tensor& given,
                                  std::int64_t slot_dim, const char* name) {
  const auto shape = [&](const at::Tensor& tensor) {
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    sizes.erase(sizes.begin() + slot_dim);
    return sizes;
  };
  check_value(shape(given) == shape(buffer), name, " have shape ", given.sizes(),
              ", but the layer's are ", at::IntArrayRef(shape(buffer)), " at each token");
  check_value(given.scalar_type() == buffer.scalar_type(), name, " are ", dtype_name(given),
              ", but the layer holds ", dtype_name(buffer), "; convert them or reset the cache");
  check_value(given.device() == buffer.device(), name, " are on ", given.device(),
              ", but the layer lies on ", buffer.device());
}

// Refuses a convolution of another size than the layer was made for. Throws ValueError.
inline void check_size(const std::optional<ConvolutionSize>& own, const ConvolutionSize& given) {
  if (!own) return;
  check_value(given == *own, "a convolution has ", given, ", but the layer was made for one of ",
              *own, own->is_none() ? ": for none" : "");
}

// The same of recurrent states [slots, batch, ...].
inline void check_size(const std::optional<RecurrentSize>& own, const at::Tensor& states) {
  if (!own) return;
  const RecurrentSize given{states.sizes().slice(2).vec(),
                            own->dtype ? std::optional(states.scalar_type()) : std::nullopt};
  check_value(given == *own, "recurrent states have ", given, ", but the layer was made for ", *own,
              own->is_none() ? ": for none" : "");
}

// Refuses what cannot be the buffer [batch, channels, slots] of a convolution of `taps` taps after
// some tokens; undefined: the layer does not use it. Throws ValueError.
inline void check_filled(const at::Tensor& buffer, const std::string& name,
                         const std::optional<ConvolutionSize>& own, std::int64_t taps) {
  check_value(buffer.defined() || !own || own->channels == 0, "there is no ", name,
              ", but the layer was made for one of ", own.value_or(ConvolutionSize{}));
  if (!buffer.defined()) return;
  check_value(buffer.dim() == 3 && buffer.size(1) > 0 && buffer.is_floating_point(), name, " is ",
              dtype_name(buffer), " ", buffer.sizes(),
              "; it must be floating point [batch, channels, tokens]");
  check_size(own, {buffer.size(1), taps});
}

// The same of the buffer [slots, batch, ...] of a recurrence.
inline void check_filled(const at::Tensor& buffer, const std::string& name,
                         const std::optional<RecurrentSize>& own) {
  check_value(buffer.defined() || !own || own->shape == RecurrentSize{}.shape, "there is no ", name,
              ", but the layer was made for one of ", own.value_or(RecurrentSize{}));
  if (!buffer.defined()) return;
  check_value(buffer.dim() >= 2 && buffer.numel() > 0 && buffer.is_floating_point(), name, " is ",
              dtype_name(buffer), " ", buffer.sizes(),
              "; it must be floating point [states, batch, ...] and not be empty");
  check_size(own, buffer);
}

}  // namespace kvcache::detail
