// The older tokens of a quantized storage: groups that are packed once, one after another, and
// never change. What is no longer wanted of them is a matter of integers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/codec/codec.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/memory.h"
#include "kvcache/core/packed.h"
#include "kvcache/core/view.h"
#include "kvcache/core/visitor.h"
#include "kvcache/storage/packed_side.h"
#include "kvcache/storage/token_groups.h"

namespace kvcache::detail {

// How keys and values are packed.
struct CodecPair {
  std::shared_ptr<const Codec> keys;
  std::shared_ptr<const Codec> values;
};

// Phases as those of Storage: begin and stage, then publish, and settle at the next touch; or
// discard at any time before publish.
class PackedHistory {
 public:
  PackedHistory(CodecPair codecs, std::shared_ptr<Memory> memory)
      : codecs_(std::move(codecs)),
        memory_(std::move(memory)),
        group_tokens_(formats_for(1, 1, at::kFloat).group_tokens()) {
    const PackedFormats formats = formats_for(1, 1, at::kFloat);
    for (const PackedFormat* each : {&formats.keys, &formats.values}) {
      check_value(each->group_tokens == 1 || each->group_tokens == group_tokens_,
                  "keys are packed in groups of ", formats.keys.group_tokens,
                  " tokens and values in groups of ", formats.values.group_tokens,
                  "; these must be equal, or one of them 1");
    }
  }
  virtual ~PackedHistory() = default;

  // Tokens are packed in multiples of so many.
  std::int64_t group_tokens() const { return group_tokens_; }

  // Bytes of what is allocated with the first tokens, once room for `tokens` was reserved.
  virtual std::int64_t planned_bytes(const KeyValueShape& shape, std::int64_t tokens) const = 0;

  // Room for so many tokens in all, with the next block; or, where room is fixed, no more than
  // that.
  virtual void reserve(std::int64_t tokens) = 0;

  // A step of keys and values of this shape begins, which settles how they are packed. Throws
  // c10::OutOfMemoryError.
  virtual void begin(const KeyValueShape& shape) {
    before_.emplace(formats_);
    settle_formats(shape);
  }

  // Settles how keys and values of this shape are packed, unless some are.
  void settle_formats(const KeyValueShape& shape) {
    if (!empty()) return;
    formats_ = formats_for(shape.key_dim, shape.value_dim, shape.dtype);
  }

  // Packs keys and values [batch, kv_heads, n * group_tokens(), head_dim] of positions from `first`
  // on, which come next; or, where they do not adjoin, are the first that will be kept. Throws
  // c10::OutOfMemoryError; until publish() nothing that is held has changed.
  virtual void stage(const KeyValue& states, std::int64_t first) = 0;

  virtual void publish() noexcept { before_.reset(); }
  virtual void settle() {}
  virtual void discard() noexcept {
    if (before_) formats_ = *before_;
    before_.reset();
  }

  virtual bool can_trim(Range /*keep*/) const { return true; }

  // Lets all tokens outside `keep` go; what comes next follows keep.end.
  virtual void trim(Range keep) noexcept = 0;

  virtual void reset() noexcept {
    formats_.reset();
    before_.reset();
  }

  // Appends the segments of those of positions `wanted` that are here.
  virtual void add_segments(View& view, Range wanted) const = 0;

  // Shows what tensors do not tell of how they were packed. Throws ValueError for a visitor that
  // fills in what was packed otherwise.
  void visit_formats(Visitor& visitor) const {
    const PackedFormats own = formats_for(1, 1, at::kFloat);
    const auto visit_one = [&](const char* name, std::int64_t value) {
      std::int64_t given = value;
      visitor.count(name, given);
      check_value(given == value, name, " is ", given, " of what is to be held, but ", value,
                  " in this layer; make the cache with the settings of the other one");
    };
    visit_one("key_bits", own.keys.bits);
    visit_one("value_bits", own.values.bits);
    visit_one("keys_rotated", own.keys.rotated ? 1 : 0);
  }

  // Walks over tokens `held`: those that are here, or that a visitor is to fill in.
  virtual void visit(Visitor& visitor, Range held) = 0;

  // Throws ValueError unless what a visitor filled in holds `held` for the rows and heads of
  // `shape`; absent: there are no keys.
  virtual void check_filled(const std::optional<KeyValueShape>& shape, Range held) const = 0;

  // See Storage.
  virtual std::vector<at::Tensor> buffers() const { return {}; }
  virtual void move_into(const std::vector<at::Tensor>&) noexcept {}

  virtual std::unique_ptr<PackedHistory> clone() const = 0;
  virtual std::unique_ptr<PackedHistory> fork() { return clone(); }
  virtual void share_rows() noexcept {}

 protected:
  PackedHistory(const PackedHistory&) = default;
  PackedHistory& operator=(const PackedHistory&) = delete;

  PackedFormats formats_for(std::int64_t key_dim, std::int64_t value_dim,
                            at::ScalarType dtype) const {
    return {codecs_.keys->format(key_dim, dtype), codecs_.values->format(value_dim, dtype), dtype};
  }

  // Whether no token is packed.
  virtual bool empty() const = 0;

  // Null before the first keys.
  const PackedFormats* formats() const { return formats_ ? &*formats_ : nullptr; }

  // `before`: the scales of the last group, undefined where there is none.
  PackedKeyValue encoded(const KeyValue& states, const at::Tensor& key_scales_before,
                         const at::Tensor& value_scales_before) const {
    return {.keys = codecs_.keys->encode(states.keys, formats_->keys, key_scales_before),
            .values = codecs_.values->encode(states.values, formats_->values, value_scales_before),
            .dtype = formats_->dtype};
  }

  std::int64_t whole_groups(std::int64_t tokens) const {
    return (tokens + group_tokens_ - 1) / group_tokens_ * group_tokens_;
  }

  // Shows a visitor the tokens of each group, and returns them or those that it fills in. Their
  // checksum stands among the integers, by which caches are compared before they join.
  static TokenGroups visit_groups(Visitor& visitor, const TokenGroups& groups) {
    std::int64_t checksum = groups.checksum();
    visitor.count("groups_checksum", checksum);
    at::Tensor tokens = groups.valid.empty() ? at::Tensor() : at::tensor(groups.valid, at::kLong);
    const at::Tensor shown = tokens;
    visitor.tensor({.name = "packed_groups", .role = Role::layout, .writable = false}, tokens);
    TokenGroups result = tokens.is_same(shown) ? groups : TokenGroups::from(tokens);
    check_value(result.checksum() == checksum, "packed_groups do not have the checksum ", checksum);
    return result;
  }

  const std::shared_ptr<Memory>& memory() const { return memory_; }

 private:
  CodecPair codecs_;
  std::shared_ptr<Memory> memory_;
  std::int64_t group_tokens_;
  std::optional<PackedFormats> formats_;
  std::optional<std::optional<PackedFormats>> before_;  // a step: discard goes back to them
};

}  // namespace kvcache::detail
