// What a model and generate() need of a cache, under Transformers' names. Move-only; copies are
// named.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/step.h"
#include "kvcache/core/history.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/core/view.h"

namespace kvcache {

class Cache {
 public:
  Cache() = default;
  Cache(Cache&&) noexcept = default;
  Cache& operator=(Cache&&) noexcept = default;
  virtual ~Cache() = default;

  // The kind, as in `cache_implementation`: "dynamic", "static".
  virtual std::string_view kind() const = 0;

  // Opens a forward pass of some tokens for all layers. See Step.
  virtual Step begin_step(const StepInput& input) = 0;

  // Transformers' update: takes keys and values [batch, kv_heads, tokens, head_dim] into one layer
  // at once, and returns all that the new tokens may see, get_mask_sizes() tokens, of which those
  // that storage of a fixed size has not filled come last and are zeros; as a View, what it returns
  // may alias the cache and holds until the layer's next change. The cache's history is then not
  // known.
  virtual KeyValue update(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) = 0;

  // The same, without joining segments.
  virtual View append(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) = 0;

  // Tokens seen by a layer; 0 for one that is not made yet.
  virtual std::int64_t get_seq_length(std::int64_t layer = 0) const = 0;

  // (number of key columns, position of the first) for a step of `tokens` new tokens; storage of a
  // fixed size counts columns that are not filled yet.
  virtual std::pair<std::int64_t, std::int64_t> get_mask_sizes(std::int64_t tokens,
                                                               std::int64_t layer) const = 0;

  // Tokens that a layer can hold (a window for sliding layers), or the largest over all; -1: no
  // bound.
  virtual std::int64_t get_max_length(std::optional<std::int64_t> layer = std::nullopt) const = 0;

  // Tokens that all its layers have room for, those seen included; absent: no bound.
  virtual std::optional<std::int64_t> capacity() const = 0;

  // Rows; 0 until the first keys came in.
  virtual std::int64_t batch_size() const = 0;

  // Whether a linear layer (absent: the last one) holds convolution or recurrent state `index` of
  // committed steps. Throws ValueError where there is none such.
  virtual bool has_previous_state(std::optional<std::int64_t> layer = std::nullopt,
                                  std::int64_t index = 0) const = 0;

  // The tokens seen.
  virtual const History& history() const = 0;

  // Refuses what a model with these layers and this dtype could not go on with. Throws ValueError
  // naming both sides; changes nothing.
  virtual void check_fits(const std::vector<LayerSpec>& layers, at::ScalarType dtype) = 0;

  // Whether crop(-tokens) would be exact. What it says is what crop does.
  virtual bool can_crop(std::int64_t tokens) const = 0;

  // crop(-n) takes the last n tokens back; crop(0) frees recorded states that the next step will
  // not read. Throws ValueError for n > 0, RuntimeError for more tokens than were seen or where a
  // window has moved on; nothing has changed then.
  virtual void crop(std::int64_t minus_tokens) = 0;

  // Keeps past states from now on, so that sliding and linear layers can be cropped: by up to
  // `max_tokens` tokens (at least 1); absent: without bound in sliding layers, by 16 in linear
  // ones. Older states go. crop(0) frees what was recorded. Throws RuntimeError, with nothing
  // changed, where a layer's buffers cannot hold so much.
  virtual void activate_past_recording(std::optional<std::int64_t> max_tokens = std::nullopt) = 0;

  // Forgets all tokens. Growing layers let their buffers go, fixed ones keep them.
  virtual void reset() = 0;

  // Room for `tokens` tokens in all, so that growth up to there allocates nothing: in full and
  // recording layers from the next token on, in sliding ones for steps of one token. Throws
  // ValueError for more than the cache's capacity().
  virtual void reserve(std::int64_t tokens) = 0;

  // Row i becomes old row rows[i]; int64 [n], any n >= 1. Throws ValueError for rows out of range.
  virtual void batch_select_indices(const at::Tensor& rows) = 0;

  // As batch_select_indices with as many rows as before, in place.
  virtual void reorder_cache(const at::Tensor& beam_idx) = 0;

  // Every row `repeats` times, next to each other. Throws ValueError for repeats < 1.
  virtual void batch_repeat_interleave(std::int64_t repeats) = 0;

  // A deep copy: a cache of the same kind, layers and content.
  virtual std::unique_ptr<Cache> clone() = 0;

  // Bytes of the keys and values held.
  virtual std::int64_t nbytes() = 0;

  // Bytes reserved for them, spare room included.
  virtual std::int64_t allocated_bytes() = 0;
};

}  // namespace kvcache
