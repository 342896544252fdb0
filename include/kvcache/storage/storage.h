// The bytes of an attention layer's history: one axis of three. A storage knows positions, not
// windows: its layer tells it which ones to keep.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/core/buffer_bytes.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/core/memory.h"
#include "kvcache/core/view.h"
#include "kvcache/core/visible.h"
#include "kvcache/core/visitor.h"

namespace kvcache {

// One layer's part of a step: keys and values that agree in batch, heads and tokens.
struct StageInput {
  const at::Tensor& keys;    // [batch, kv_heads, tokens, key_dim]
  const at::Tensor& values;  // [batch, kv_heads, tokens, value_dim]
  std::int64_t seen;         // position of the first new token
  Visible visible;           // what the step's queries are to be handed
  std::int64_t keep_from;    // first position that is kept once the step is published

  std::int64_t tokens() const { return keys.size(2); }
};

inline constexpr std::int64_t kUnboundedRecord = std::int64_t{1} << 48;  // tokens

// Between stage and publish nothing inside held() is written, so a discarded step leaves no trace.
class Storage {
 public:
  virtual ~Storage() = default;

  // Positions whose keys and values are promised.
  virtual Range held() const = 0;

  // Tokens it can hold in all; absent: it grows.
  virtual std::optional<std::int64_t> capacity() const = 0;

  // Tokens that joined() hands over at least: more than are held, where buffers are of a fixed
  // size.
  virtual std::int64_t least_columns() const { return 0; }

  // Makes room for `tokens` tokens, at once or with the first keys.
  virtual void reserve(std::int64_t tokens) = 0;

  // Tokens that its buffers have room for once so much was reserved, before the first keys.
  virtual std::int64_t planned_slots(std::int64_t tokens) const {
    return capacity().value_or(tokens);
  }

  // Bytes of its buffers for keys and values of this shape once so much was reserved.
  virtual std::int64_t planned_bytes(const KeyValueShape& shape, std::int64_t tokens) const {
    return detail::bytes_of(
        {shape.batch, shape.kv_heads, shape.key_dim + shape.value_dim, planned_slots(tokens)},
        shape.dtype);
  }

  // How many tokens older than a window it can keep, of `asked` ones; absent: as many as it can.
  // Throws RuntimeError if its size is fixed and less than what is asked.
  virtual std::int64_t record_room(std::optional<std::int64_t> asked) const {
    return std::min(asked.value_or(kUnboundedRecord), kUnboundedRecord);
  }

  // The most that record_room() grants.
  virtual std::int64_t most_record() const { return kUnboundedRecord; }

  // From now on as many may be asked of it. Requires tokens <= most_record().
  virtual void record(std::int64_t /*tokens*/) noexcept {}

  // The buffers of a storage of a fixed size, for keys of this shape; undefined for other storages
  // and where they are there. Changes nothing.
  virtual KeyValue make_buffers(const KeyValueShape&) const { return {}; }

  // Goes on with what make_buffers made. Other shapes of keys are refused from then on.
  virtual void take_buffers(KeyValue) noexcept {}

  // See KeyValuePort.
  virtual std::optional<FixedLayout> layout() const { return std::nullopt; }
  virtual void take_layout(const FixedLayout&) noexcept {}
  virtual std::vector<at::Tensor> buffers() const { return {}; }
  virtual void move_into(const std::vector<at::Tensor>&) noexcept {}

  // Takes the step's keys and values in and returns what its queries read; the view may alias the
  // given tensors, what is kept does not. Throws ValueError if shape, dtype or device do not fit
  // what is held; what it throws has changed nothing.
  virtual View stage(const StageInput& input) = 0;

  // What is held of `visible`, without a step; of batch 1 where all rows share it. Requires its
  // columns to lie within held().
  virtual View read(const Visible& visible) const = 0;

  // The view of a step that is staged as one pair of tensors, of at least least_columns() tokens:
  // what is too many comes last, and is zero. May alias what is held.
  virtual KeyValue joined(const View& view) { return dense(view); }

  // After the last reader of the step's view: copies what must outlive it, and may throw and
  // allocate. The view's content stays until the storage is next touched.
  virtual void seal() = 0;

  // Makes the step true: integers and handles only.
  virtual void publish() noexcept = 0;

  // Writes what a published step still owes to a fixed address, when the layer is next touched.
  virtual void settle() = 0;

  // Undoes an unpublished step; buffers that only it needed are let go.
  virtual void discard() noexcept = 0;

  // Whether trim(keep) would leave room for all that its size promises.
  virtual bool can_trim(Range /*keep*/) const { return true; }

  // Keeps positions `keep` only, which must lie within held() or be none, before its end: what
  // comes next follows keep.end. Buffers that grow give memory back that as many tokens as before
  // will not need.
  virtual void trim(Range keep) = 0;

  // Forgets all, also what was reserved, and lets the buffers go.
  virtual void reset() noexcept = 0;

  virtual void visit(Visitor& visitor) = 0;

  // Throws ValueError unless what a visitor filled in is what a storage of its kind holds for a
  // layer of `spec` that has seen `seen` tokens.
  virtual void check_filled(const LayerSpec& spec, std::int64_t seen) const = 0;

  // A deep copy. No step may be open.
  virtual std::unique_ptr<Storage> clone() const = 0;

  // Another storage of the same content. What both hold is shared until one of them writes: neither
  // does so in place. What is promised stays as it was, also here. One that cannot share, such as
  // one with fixed addresses, gives a copy. No step may be open.
  virtual std::unique_ptr<Storage> fork() { return clone(); }

  // Makes what is held of one row what any number of rows read, where it can: visit() then lists it
  // without a batch dimension. Requires a batch of one row, or nothing held.
  virtual void share_rows() {}
};

}  // namespace kvcache
