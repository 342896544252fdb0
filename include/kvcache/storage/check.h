// What layers and storages ask of the keys and values they are handed.
#pragma once

#include <ATen/core/Tensor.h>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/storage/storage.h"

namespace kvcache::detail {

// Refuses sparse tensors and others that are no plain arrays. Throws ValueError.
inline void check_dense(const at::Tensor& tensor, const char* name) {
  check_value(tensor.layout() == at::kStrided, name, " have the layout ", tensor.layout(),
              ", but a cache takes dense tensors; call to_dense() first");
}

// Refuses tensors that are not a step's keys and values. Throws ValueError.
inline void check_key_values(const at::Tensor& keys, const at::Tensor& values) {
  for (const at::Tensor* t : {&keys, &values}) {
    const char* name = t == &keys ? "keys" : "values";
    if (t->defined()) check_dense(*t, name);
    check_value(t->defined() && t->dim() == 4, name,
                " must be [batch, kv_heads, tokens, head_dim], ",
                t->defined() ? c10::str("but their shape is ", t->sizes()) : "but are undefined");
    check_value(t->is_floating_point(), name, " must be floating point, but are ", dtype_name(*t));
    check_value(!t->requires_grad(), name,
                " require gradients, which a cache does not keep: run under at::NoGradGuard or "
                "c10::InferenceMode, or detach them");
  }
  for (const int dim : {0, 1, 2}) {
    check_value(keys.size(dim) == values.size(dim), "keys ", keys.sizes(), " and values ",
                values.sizes(), " must agree in batch, heads and tokens");
  }
  check_value(keys.numel() > 0 && values.numel() > 0,
              "a step must append at least one token of one "
              "row, head and channel, but keys are ",
              keys.sizes(), " and values ", values.sizes());
  check_value(keys.scalar_type() == values.scalar_type(), "keys are ", dtype_name(keys),
              " and values ", dtype_name(values), "; they must be of one dtype");
  check_value(keys.device() == values.device(), "keys are on ", keys.device(), " and values on ",
              values.device(), "; they must be on one device");
}

// Refuses heads that are not those of the layer's spec. Throws ValueError.
inline void check_heads(const LayerSpec& spec, const at::Tensor& states, const char* name,
                        std::int64_t head_dim) {
  check_value((spec.kv_heads == 0 || states.size(1) == spec.kv_heads) &&
                  (head_dim == 0 || states.size(3) == head_dim),
              name, " are ", states.sizes(), ", but the layer was made for ", spec.kv_heads,
              " heads of size ", head_dim, " (0: any)");
}

// Refuses what cannot be the buffers [batch, kv_heads, slots, head_dim] of a layer of `spec` that
// has seen `seen` tokens. Throws ValueError.
inline void check_filled(const KeyValue& buffers, const LayerSpec& spec, std::int64_t seen) {
  const at::Tensor &keys = buffers.keys, &values = buffers.values;
  check_value(keys.defined() || !values.defined(), "there are values without keys");
  check_value(values.defined() || !keys.defined(), "there are keys without values");
  check_value(keys.defined() || seen == 0, "there are no keys and values, but ", seen,
              " tokens were seen");
  if (!keys.defined()) return;
  check_value(keys.dim() == 4 && values.dim() == 4 && keys.is_floating_point() &&
                  keys.scalar_type() == values.scalar_type() &&
                  keys.sizes().slice(0, 3) == values.sizes().slice(0, 3) && keys.size(1) > 0 &&
                  keys.size(3) > 0 && values.size(3) > 0,
              "buffers of keys ", dtype_name(keys), " ", keys.sizes(), " and of values ",
              dtype_name(values), " ", values.sizes(),
              " do not go together: [batch, kv_heads, slots, head_dim] of one floating dtype");
  check_heads(spec, keys, "keys", spec.key_dim);
  check_heads(spec, values, "values", spec.value_dim);
}

// Refuses a tensor that does not continue `buffer`: no silent broadcast, promotion or transfer.
inline void check_continues(const at::Tensor& buffer, const at::Tensor& added, const char* name) {
  check_value(added.size(0) == buffer.size(0), name, " have batch ", added.size(0),
              ", but the cache holds batch ", buffer.size(0),
              "; select or repeat its rows first, or reset it");
  check_value(added.size(1) == buffer.size(1) && added.size(3) == buffer.size(3), name, " are ",
              added.sizes(), ", but the layer holds ", buffer.size(1), " heads of size ",
              buffer.size(3));
  check_value(added.scalar_type() == buffer.scalar_type(), name, " are ", dtype_name(added),
              ", but the layer holds ", dtype_name(buffer), "; convert them or reset the cache");
  check_value(added.device() == buffer.device(), name, " are on ", added.device(),
              ", but the layer lies on ", buffer.device());
}

}  // namespace kvcache::detail
