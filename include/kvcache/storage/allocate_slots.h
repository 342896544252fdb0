// Buffers like those that are there, with another number of slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/core/memory.h"
#include "kvcache/core/view.h"

namespace kvcache::detail {

// Of `like`'s shape, dtype and device but for its dimension `slot_dim`.
inline at::Tensor allocate_slots(Memory& memory, const at::Tensor& like, std::int64_t slot_dim,
                                 std::int64_t slots) {
  std::vector<std::int64_t> shape = like.sizes().vec();
  shape[static_cast<std::size_t>(slot_dim)] = slots;
  return memory.allocate(shape, {.dtype = like.scalar_type(), .device = like.device()});
}

// Keys and values [batch, kv_heads, slots, head_dim].
inline KeyValue allocate_slots(Memory& memory, const KeyValue& like, std::int64_t slots) {
  return {allocate_slots(memory, like.keys, 2, slots),
          allocate_slots(memory, like.values, 2, slots)};
}

}  // namespace kvcache::detail
