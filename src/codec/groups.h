// States by the groups of values that share scale and offset.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kvcache/core/packed.h"

namespace kvcache::detail {

// Groups of one size. A group is dimensions 3 and 5, which are 1 in scales and offsets.
struct Groups {
  at::Tensor values;       // float32 [batch, heads, token groups, tokens, channel groups, channels]
  at::Tensor codes = {};   // float32, whole numbers, of the same shape
  at::Tensor scales = {};  // float32
  at::Tensor offsets = {};  // float32
};

// Throws ValueError for states that the format is not of, or that are not whole groups of tokens.
void check_states(const at::Tensor& states, const PackedFormat& format);

// The groups of states [batch, heads, tokens, head_dim]: those of full size, then those that are
// what is left of a head. Throws ValueError as check_states().
std::vector<Groups> grouped(const at::Tensor& states, const PackedFormat& format);

// Sets codes to those of the values nearest to `scales` and `offsets`, from 0 to `most`.
void set_nearest_codes(Groups& groups, std::int64_t most);

// What grouped() made, with its codes, packed. Rounds scales and offsets to the format's dtype, and
// lets codes follow them.
PackedStates packed(std::vector<Groups> groups, const PackedFormat& format);

}  // namespace kvcache::detail
