// Retention + storage: the attention side of a layer. Stateless about length: the layer that has it
// passes its counter in, so that a layer with several halves keeps one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/core/layer.h"
#include "kvcache/retention/retention.h"
#include "kvcache/storage/check.h"
#include "kvcache/storage/storage.h"

namespace kvcache {

class AttentionHalf final : public KeyValuePort {
 public:
  AttentionHalf(LayerSpec spec, Retention retention, std::unique_ptr<Storage> storage)
      : spec_(std::move(spec)), retention_(retention), storage_(std::move(storage)) {}

  AttentionHalf(const AttentionHalf& other)
      : spec_(other.spec_),
        retention_(other.retention_),
        storage_(other.storage_->clone()),
        record_(other.record_) {}
  AttentionHalf(AttentionHalf& other, Sharing)
      : spec_(other.spec_),
        retention_(other.retention_),
        storage_(other.storage_->fork()),
        record_(other.record_) {}
  AttentionHalf& operator=(const AttentionHalf&) = delete;

  Visible visible(std::int64_t seen, std::int64_t tokens) const override {
    return retention_.visible(seen, tokens);
  }

  View append(const at::Tensor& keys, const at::Tensor& values, std::int64_t seen) override {
    detail::check_key_values(keys, values);
    detail::check_heads(spec_, keys, "keys", spec_.key_dim);
    detail::check_heads(spec_, values, "values", spec_.value_dim);
    const std::int64_t tokens = keys.size(2);
    return storage_->stage({.keys = keys,
                            .values = values,
                            .seen = seen,
                            .visible = retention_.visible(seen, tokens),
                            .keep_from = keep_from(seen + tokens)});
  }

  View read(std::int64_t seen) const override {
    Visible held = retention_.visible(seen, 1);
    --held.length;
    return storage_->read(held);
  }

  std::int64_t columns(const Visible& visible) const override {
    return std::max(visible.length, storage_->least_columns());
  }

  KeyValue joined(const View& view) override { return storage_->joined(view); }

  KeyValue make_buffers(const KeyValueShape& shape) const override {
    const auto fits = [](std::int64_t own, std::int64_t given) { return own == 0 || own == given; };
    check_value(fits(spec_.kv_heads, shape.kv_heads) && fits(spec_.key_dim, shape.key_dim) &&
                    fits(spec_.value_dim, shape.value_dim),
                "buffers for ", shape.kv_heads, " heads of sizes ", shape.key_dim, " and ",
                shape.value_dim, " were asked for, but the layer was made for ", spec_.kv_heads,
                " heads of sizes ", spec_.key_dim, " and ", spec_.value_dim, " (0: any)");
    return storage_->make_buffers(shape);
  }

  void take_buffers(KeyValue buffers) noexcept override {
    storage_->take_buffers(std::move(buffers));
  }

  std::optional<FixedLayout> layout() const override { return storage_->layout(); }
  void take_layout(const FixedLayout& layout) noexcept override { storage_->take_layout(layout); }
  std::vector<at::Tensor> buffers() const override { return storage_->buffers(); }
  void move_into(const std::vector<at::Tensor>& buffers) noexcept override {
    storage_->move_into(buffers);
  }

  // Makes room for `tokens` tokens in all; for a window, which moves along its buffer, twice its
  // size at most.
  void reserve(std::int64_t tokens) { storage_->reserve(room_for(tokens)); }

  // Bytes allocated once room for input.tokens was reserved; absent where the spec lacks sizes.
  std::optional<std::int64_t> planned_bytes(const PlanInput& input) const {
    if (spec_.kv_heads == 0 || spec_.key_dim == 0 || spec_.value_dim == 0) return std::nullopt;
    return storage_->planned_bytes({.batch = input.batch,
                                    .kv_heads = spec_.kv_heads,
                                    .key_dim = spec_.key_dim,
                                    .value_dim = spec_.value_dim,
                                    .dtype = input.dtype},
                                   room_for(input.tokens));
  }

  // Whether all that a query at `new_seen` needs is still held.
  bool can_crop_to(std::int64_t new_seen) const {
    return new_seen >= 0 && storage_->held().first <= retention_.first_needed(new_seen) &&
           storage_->can_trim(kept_at(new_seen));
  }

  // Requires can_crop_to(new_seen).
  void crop_to(std::int64_t new_seen) { storage_->trim(kept_at(new_seen)); }

  // Throws RuntimeError if activate_past_recording() would.
  void check_past_recording(std::optional<std::int64_t> max_tokens) const {
    if (retention_.bound()) storage_->record_room(max_tokens);
  }

  void activate_past_recording(std::optional<std::int64_t> max_tokens) {
    if (!retention_.bound()) return;
    record_ = storage_->record_room(max_tokens);
    storage_->record(record_);
  }

  // Throws ValueError for a visitor that sets more recording than there can be.
  void visit(Visitor& visitor) {
    std::int64_t record = record_;
    visitor.count("record", record);
    if (record != record_) set_record(record);
    storage_->visit(visitor);
  }

  // See Layer: of one that has seen `seen` tokens.
  void check_filled(std::int64_t seen) const { storage_->check_filled(spec_, seen); }

  const Retention& retention() const { return retention_; }
  Storage& storage() { return *storage_; }
  const Storage& storage() const { return *storage_; }

 private:
  // Of what is held, once cropped.
  Range kept_at(std::int64_t new_seen) const {
    return {std::max(storage_->held().first, retention_.first_needed(new_seen)), new_seen};
  }

  std::int64_t room_for(std::int64_t tokens) const {
    const std::optional<std::int64_t> bound = retention_.bound();
    const bool moves = bound && *bound < tokens && record_ < tokens;
    return moves ? std::min(tokens, 2 * (*bound + record_)) : tokens;
  }

  void set_record(std::int64_t tokens) {
    const std::int64_t most = retention_.bound() ? storage_->most_record() : 0;
    check_value(tokens <= most, "up to ", tokens,
                " past tokens are recorded, but the layer can record ", most,
                retention_.bound() ? "; make the cache with a larger record_slack or max_cache_len"
                                   : ", as it keeps every token");
    record_ = tokens;
    storage_->record(tokens);
  }

  std::int64_t keep_from(std::int64_t seen) const {
    return std::max(storage_->held().first, retention_.first_needed(seen - record_));
  }

  LayerSpec spec_;
  Retention retention_;
  std::unique_ptr<Storage> storage_;
  std::int64_t record_ = 0;  // tokens that can be taken back beyond the window; 0: not recording
};

}  // namespace kvcache
