// A walk over all state of a cache. Copying, reordering, counting bytes and saving are loops over
// it, so that a new storage or layer gets them by listing its state once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "kvcache/core/visible.h"

namespace kvcache {

enum class Role {
  attention,      // keys and values, in the model's dtype
  convolution,    // last inputs of a convolution, in the model's dtype
  recurrent,      // states of a recurrence, often wider than the model's dtype
  packed,         // codes of some tokens' keys and values, and what belongs to them, in any dtype
  beside_packed,  // keys and values of the tokens that are not packed, in the model's dtype
  layout,         // int64 on the CPU: how tokens fall into groups; made for the walk
};

// Whether it is of a layer that packs some of its tokens, and holds but some of them.
inline bool is_of_some_tokens(Role role) {
  return role == Role::packed || role == Role::beside_packed;
}

struct TensorInfo {
  // Unique within its layer, such as "keys"; where several tensors have one name they are parts of
  // one, which adjoin along token_dim, oldest first.
  std::string_view name;
  Role role = Role::attention;
  std::optional<std::int64_t> batch_dim = {};  // dimension of the rows; absent: shared by all rows
  std::optional<std::int64_t> token_dim = {};  // dimension of the slots; absent: not per token
  // Slots whose content is promised, oldest first. Beyond the last slot they go on at the first.
  Range live = {};
  std::optional<std::int64_t> slots = {};  // of token_dim, where their number is fixed
  bool writable = true;                    // false: shared with another cache, never write in place
};

class Visitor {
 public:
  virtual ~Visitor() = default;

  // Called for every tensor slot, also an empty (undefined) one. The handle may be replaced by a
  // tensor of the same layout but another number of rows; in place it may be written only if
  // `info.writable`. In a layer that was reset, a visitor may also set every integer, and fill
  // tensors whose live slots, from those integers, then hold what is promised.
  virtual void tensor(const TensorInfo& info, at::Tensor& tensor) = 0;

  // Called for every integer, before tensors that depend on it; a recording bound may be raised.
  virtual void count(std::string_view name, std::int64_t& value) = 0;
};

}  // namespace kvcache
