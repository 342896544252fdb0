// What a list of layers does about buffers of a fixed size: addresses stay when layers are
// replaced, and so does a shape that was fixed for good.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/core/layer.h"

namespace kvcache::detail {

using Layers = std::vector<std::unique_ptr<Layer>>;

// Absent: the layer's buffers are not of a fixed size.
inline std::optional<FixedLayout> layout_of(Layer& layer) {
  const KeyValuePort* port = layer.key_values();
  return port != nullptr ? port->layout() : std::nullopt;
}

// Rows of buffers whose shape was fixed for good; absent: there are none.
inline std::optional<std::int64_t> fixed_rows(const Layers& layers) {
  for (const auto& layer : layers) {
    const auto layout = layout_of(*layer);
    if (layout && layout->pinned) return layout->pinned->batch;
  }
  return std::nullopt;
}

// Refuses another number of rows than that. Throws RuntimeError.
inline void check_can_have(const Layers& layers, std::int64_t rows) {
  const std::int64_t fixed = fixed_rows(layers).value_or(rows);
  check_state(rows == fixed, "the cache cannot have ", rows,
              " rows: early_initialization() made its buffers for ", fixed,
              "; clone() it and change the copy");
}

// Layers go on in the buffers of those whose places they have taken, where their shape stays.
inline void keep_addresses(const Layers& layers, const Layers& former) noexcept {
  for (std::size_t i = 0; i < std::min(layers.size(), former.size()); ++i) {
    KeyValuePort *own = layers[i]->key_values(), *other = former[i]->key_values();
    if (own != nullptr && other != nullptr) own->move_into(other->buffers());
  }
}

}  // namespace kvcache::detail
