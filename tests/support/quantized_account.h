// A plain account of what each token of a quantized layer is worth: as it came while it is in the
// recent window, and what its codec makes of its group from then on.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "kvcache/codec/quantized_cache_config.h"
#include "kvcache/core/packing.h"
#include "kvcache/core/view.h"
#include "kvcache/retention/retention.h"

namespace kvcache::testing {

// Keys or values, as a cache with these codecs ought to hold them.
class Account {
 public:
  Account(const QuantizedCacheConfig& config, const LayerSpec& spec, std::int64_t record)
      : codecs_(make_codecs(config)), retention_(*Retention::of(spec)), record_(record) {
    unit_ = std::max(codecs_.keys->format(1, at::kFloat).group_tokens,
                     codecs_.values->format(1, at::kFloat).group_tokens);
  }

  // What a step is to be handed.
  KeyValue step(const KeyValue& added) {
    held_ = held_.keys.defined() ? KeyValue{at::cat({held_.keys, added.keys}, 2),
                                            at::cat({held_.values, added.values}, 2)}
                                 : added;
    const std::int64_t tokens = added.keys.size(2), end = held_.keys.size(2);
    const Visible visible = retention_.visible(end - tokens, tokens);
    const KeyValue result{held_.keys.narrow(2, visible.offset, visible.length).clone(),
                          held_.values.narrow(2, visible.offset, visible.length).clone()};
    pack(end);
    return result;
  }

  bool can_crop(std::int64_t tokens) const {
    return tokens == 0 ||
           (tokens <= length() && first_ <= retention_.first_needed(length() - tokens));
  }

  void crop(std::int64_t tokens) {
    const std::int64_t end = length() - tokens;
    held_ = {held_.keys.narrow(2, 0, end), held_.values.narrow(2, 0, end)};
    first_ = std::max(first_, retention_.first_needed(end));
    packed_end_ = std::max(std::min(packed_end_, end), first_);
    forget_pinned();
  }

  void select(const at::Tensor& rows) {
    held_ = {held_.keys.index_select(0, rows), held_.values.index_select(0, rows)};
    if (key_scales_.defined()) key_scales_ = key_scales_.index_select(0, rows);
    if (value_scales_.defined()) value_scales_ = value_scales_.index_select(0, rows);
  }

  std::int64_t length() const { return held_.keys.defined() ? held_.keys.size(2) : 0; }
  std::int64_t packed_end() const { return packed_end_; }

 private:
  void pack(std::int64_t end) {
    const std::int64_t keep = std::max(first_, retention_.first_needed(end - record_));
    std::int64_t count = std::max<std::int64_t>(end - codecs_.residual_length - packed_end_, 0);
    std::int64_t first = packed_end_, pack_end = packed_end_;
    const bool pins = keep == 0 && packed_end_ < codecs_.pinned_tokens;
    if (!pins || count >= codecs_.pinned_tokens - packed_end_) {
      if (pins) {
        count -= codecs_.pinned_tokens - packed_end_;
        first = pinned_end_ = codecs_.pinned_tokens;
      }
      pack_end = first + count / together() * together();
      pack_last({first, pack_end}, keep);
    }
    first_ = keep;
    packed_end_ = std::max(pack_end, keep);
    forget_pinned();
  }

  // Of what leaves the recent window, the groups of what is kept.
  void pack_last(Range leaving, std::int64_t keep) {
    const std::int64_t wanted =
        std::max<std::int64_t>(leaving.end - std::max(keep, leaving.first), 0);
    const std::int64_t packed = std::min((wanted + unit_ - 1) / unit_ * unit_, leaving.length());
    if (packed == 0) return;
    const std::int64_t first = leaving.end - packed;
    if (first != packed_end_ || packed_end_ <= std::max(first_, pinned_end_)) {
      key_scales_.reset();
      value_scales_.reset();
    }
    held_.keys = held_.keys.clone();
    held_.values = held_.values.clone();
    pack(held_.keys, *codecs_.keys, {first, leaving.end}, key_scales_);
    pack(held_.values, *codecs_.values, {first, leaving.end}, value_scales_);
  }

  std::int64_t together() const {
    return std::max<std::int64_t>(codecs_.residual_length / 4 / unit_, 1) * unit_;
  }

  void forget_pinned() {
    pinned_end_ = first_ >= pinned_end_ ? 0 : std::min(pinned_end_, packed_end_);
  }

  // `scales`: those of the group before, where the codec goes on with them.
  static void pack(const at::Tensor& all, const Codec& codec, Range tokens, at::Tensor& scales) {
    const at::Tensor part = all.narrow(2, tokens.first, tokens.length());
    const PackedFormat format = codec.format(part.size(3), part.scalar_type());
    const PackedStates packed = codec.encode(part, format, scales);
    part.copy_(unpack(packed, part.scalar_type()));
    scales = packed.scales.narrow(2, packed.scales.size(2) - 1, 1);
  }

  QuantizedCodecs codecs_;
  Retention retention_;
  std::int64_t record_;
  std::int64_t unit_ = 1;
  KeyValue held_;
  std::int64_t first_ = 0, packed_end_ = 0, pinned_end_ = 0;
  at::Tensor key_scales_, value_scales_;
};

}  // namespace kvcache::testing
