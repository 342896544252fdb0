// What a model and generate() need of a cache, under Transformers' names. Move-only; copies are
// named. A cache that was moved from throws RuntimeError when it is used.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/step.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/history.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/core/owned.h"
#include "kvcache/core/view.h"

namespace kvcache {

class Cache;

// What a cache held at some moment: a fork of it. See Cache::snapshot.
class Snapshot {
 public:
  // Throws ValueError for null.
  explicit Snapshot(std::unique_ptr<Cache> state) : state_(std::move(state), "a snapshot") {}

  // A cache of its own; working on it changes what restore() goes back to.
  Cache& state() const { return *state_; }

 private:
  detail::Owned<Cache> state_;
};

// Bytes that a cache is going to allocate. See Cache::plan.
struct CachePlan {
  std::vector<std::int64_t> layers;  // of each; a decoder's, then those of its cross-attention
  std::int64_t total = 0;
};

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
  // known; until every layer with keys has the tokens, whole-cache operations refuse. Throws
  // ValueError where a layer has convolution or recurrent states: feed it within a step.
  virtual KeyValue update(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) = 0;

  // The same, without joining segments.
  virtual View append(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) = 0;

  // Tokens seen by a layer; 0 for one that is not made yet.
  virtual std::int64_t get_seq_length(std::int64_t layer = 0) const = 0;

  // (number of key columns, position of the first) for a step of `tokens` new tokens; storage of a
  // fixed size counts columns that are not filled yet.
  virtual std::pair<std::int64_t, std::int64_t> get_mask_sizes(std::int64_t tokens,
                                                               std::int64_t layer) const = 0;

  // Tokens that a layer can hold (a window for sliding layers; -1: no bound), or the largest over
  // those that have a bound, as Transformers says it. How long a text may become: capacity().
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

  // How many leading columns of a text, int64 or int32 [batch, n], with padding `valid` (bool
  // [batch, n]; absent: none), equal what was seen in every row. 0 for another number of rows.
  // Throws ValueError for tensors of another shape, RuntimeError if the tokens are not known.
  std::int64_t common_prefix(const at::Tensor& ids,
                             const std::optional<at::Tensor>& valid = std::nullopt) const;

  // How many leading columns of a text crop() can make the cache hold, no more and no less: its
  // common prefix, or less where a layer cannot go back so far; the least over all layers. 0: the
  // cache must be reset. Arguments and errors as in common_prefix.
  std::int64_t can_reuse(const at::Tensor& ids,
                         const std::optional<at::Tensor>& valid = std::nullopt) const {
    return reusable_prefix(common_prefix(ids, valid));
  }

  // The longest prefix of at most `length` of its tokens that crop can go back to; 0: none.
  virtual std::int64_t reusable_prefix(std::int64_t length) const = 0;

  // Whether crop(-tokens) would be exact. What it says is what crop does.
  virtual bool can_crop(std::int64_t tokens) const = 0;

  // crop(-n) takes the last n tokens back, crop(0) none. Both free the recorded states that the
  // next step will not read, and their memory but for a growing buffer's usual spare room: what is
  // to go back n tokens does so in one call. Throws ValueError for n > 0, RuntimeError for more
  // tokens than were seen or where a window has moved on; nothing has changed then.
  virtual void crop(std::int64_t minus_tokens) = 0;

  // Keeps past states from now on, so that sliding and linear layers can be cropped: by up to
  // `max_tokens` tokens (at least 1; any number, memory is asked for as tokens come in, and where
  // it is fixed no more than max_cache_len can need); absent: without bound in sliding layers, by
  // 16 in linear ones. Older states go, and crop() frees what was recorded before it. Throws
  // RuntimeError, with nothing changed, where a layer's buffers cannot hold so much.
  virtual void activate_past_recording(std::optional<std::int64_t> max_tokens = std::nullopt) = 0;

  // Forgets all tokens. Growing layers let their buffers go, fixed ones keep them.
  virtual void reset() = 0;

  // Room for `tokens` tokens in all, so that growth up to there allocates nothing: in full and
  // recording layers from the next token on, in sliding ones for steps of one token. Throws
  // ValueError for more than the cache's capacity().
  virtual void reserve(std::int64_t tokens) = 0;

  // Row i becomes old row rows[i]; int64 [n], any n >= 1; in place where there are as many as
  // before. Throws ValueError for rows out of range.
  virtual void batch_select_indices(const at::Tensor& rows) = 0;

  // As batch_select_indices, for as many rows as before.
  virtual void reorder_cache(const at::Tensor& beam_idx) = 0;

  // Every row `repeats` times, next to each other. Throws ValueError for repeats < 1.
  virtual void batch_repeat_interleave(std::int64_t repeats) = 0;

  // Caches of the same kind and content with `split_size` rows each, in order; the last one has
  // what is left. Throws ValueError for split_size < 1.
  std::vector<std::unique_ptr<Cache>> batch_split(std::int64_t split_size);

  // A new cache of the rows of this cache and then of `others`, of the same kind and layers.
  // Shorter rows are padded on the left; where they then hold padding their positions do not count
  // it. Throws ValueError, with nothing changed, for caches that differ in kind, layers, shapes,
  // dtype or settings, and for empty ones.
  virtual std::unique_ptr<Cache> concatenate(const std::vector<Cache*>& others) = 0;

  // A new cache of the same kind that holds copies of rows `rows`, int64 [n], n >= 1, in one piece;
  // but a prefix that all rows share stays shared. Throws ValueError for rows out of range.
  virtual std::unique_ptr<Cache> copy_rows(const at::Tensor& rows) = 0;

  // Moves what it holds to a new cache of the same kind, and holds no tokens then, but an encoder's
  // output still. Buffers of a fixed size stay, and what they hold is copied.
  virtual std::unique_ptr<Cache> move_out() = 0;

  // Goes on with the rows of caches that move_out() and copy_rows() made of it: row i becomes row
  // rows[i] of theirs, counted through. Shorter rows are padded on the left, as in concatenate();
  // what was recorded to take tokens back goes, and rows that shared a prefix get one each. Layer
  // by layer what the parts hold is let go, so that it takes the memory of one layer beyond what
  // it makes; an encoder's output stays as it is. Throws ValueError for caches of other layers or
  // rows out of range and RuntimeError if this cache holds tokens, with nothing changed; where
  // memory lacks midway all of them hold no tokens.
  virtual void put_together(const std::vector<Cache*>& parts, const at::Tensor& rows) = 0;

  // Whether its rows lie together for good: in buffers of a fixed size, whose addresses stay, or
  // over a prefix that is held once for all of them.
  virtual bool has_bound_rows() = 0;

  // Moves the last padding[i] tokens of row i, which must be padding, to its front, in place.
  // False, with nothing changed, where it cannot: in layers that keep less than all tokens, or
  // that share them with other rows or caches.
  virtual bool move_padding_to_front(const std::vector<std::int64_t>& padding) = 0;

  // Marks what the cache holds now. Costs what fork() costs.
  Snapshot snapshot() { return Snapshot(fork()); }

  // Goes back to what was held at a mark of this cache, or of one of the same kind and layers; a
  // mark can be gone back to many times. Buffers of a fixed size keep their size, and their
  // addresses where the rows are as many. Recording goes on as at the mark or as before,
  // whichever keeps more. Throws ValueError for other layers, for more tokens or recording than
  // there is room for, and for another shape than early_initialization() fixed; nothing has changed
  // then.
  virtual void restore(const Snapshot& mark) = 0;

  // Every row of a cache of one row `rows` times, like batch_repeat_interleave; but growing layers
  // keep what they hold once, and all rows read it. Throws ValueError for rows < 1 and RuntimeError
  // for a cache of several rows; nothing has changed then.
  virtual void expand(std::int64_t rows) = 0;

  // A deep copy: a cache of the same kind, layers and content.
  virtual std::unique_ptr<Cache> clone() = 0;

  // Another cache of the same kind, layers and content, which shares what is held until one of the
  // two writes to it: continuations of one prefix cost their own tokens only. Growing layers share;
  // layers with fixed addresses and recurrent states are copied. Both may go on, crop, reorder and
  // reset as they like, but not at the same time as the other is being forked.
  virtual std::unique_ptr<Cache> fork() = 0;

  // Bytes that the cache is going to allocate for so many rows and tokens in all: what
  // allocated_bytes() says once they were seen, where sizes are fixed or room was reserved, and
  // where states that are recorded came in one step. Allocates nothing. Throws ValueError for
  // numbers out of range, and for layers whose spec does not say how large what they hold is.
  virtual CachePlan plan(const PlanInput& input) const = 0;

  // Bytes of what is held. Rows that share a prefix count it once; so does each of several caches
  // that share it.
  virtual std::int64_t nbytes() = 0;

  // Bytes reserved for it, spare room included; shared ones counted likewise.
  virtual std::int64_t allocated_bytes() = 0;
};

inline std::int64_t Cache::common_prefix(const at::Tensor& ids,
                                         const std::optional<at::Tensor>& valid) const {
  check_value(ids.defined() && ids.dim() == 2 &&
                  (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              "a text must be int64 or int32 [batch, tokens]");
  check_value(!valid || (valid->sizes() == ids.sizes() && valid->scalar_type() == at::kBool),
              "a text's padding must be bool of its shape, ", ids.sizes());
  std::optional<at::Tensor> real = valid;
  if (real) real = real->to(at::kCPU).contiguous();
  return history().common_prefix(ids.to(at::kCPU, at::kLong).contiguous(), real);
}

inline std::vector<std::unique_ptr<Cache>> Cache::batch_split(std::int64_t split_size) {
  check_value(split_size >= 1, "rows cannot be split into parts of ", split_size);
  std::vector<std::unique_ptr<Cache>> parts;
  for (std::int64_t row = 0; row < batch_size(); row += split_size) {
    parts.push_back(fork());
    const std::int64_t end = std::min(row + split_size, batch_size());
    parts.back()->batch_select_indices(at::arange(row, end, at::kLong));
  }
  return parts;
}

}  // namespace kvcache
