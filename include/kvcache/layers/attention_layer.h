// A layer of keys and values: any retention over any storage. Transformers' layer names are thin
// classes over it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kvcache/core/layer.h"
#include "kvcache/layers/attention_half.h"

namespace kvcache {

class AttentionLayer : public Layer {
 public:
  AttentionLayer(LayerSpec spec, Retention retention, std::unique_ptr<Storage> storage)
      : Layer(spec), half_(std::move(spec), retention, std::move(storage)) {}

  KeyValuePort* key_values() noexcept override { return &half_; }
  StatePort* states() noexcept override { return nullptr; }

  std::int64_t get_max_length() const override {
    if (const auto capacity = half_.storage().capacity()) return *capacity;
    return half_.retention().bound().value_or(-1);
  }

  std::optional<std::int64_t> room() const override {
    const auto capacity = half_.storage().capacity();
    return capacity ? std::optional(*capacity - seen()) : std::nullopt;
  }

  void reserve(std::int64_t tokens) override { half_.reserve(tokens); }

  void seal() override { half_.storage().seal(); }
  void settle() override { half_.storage().settle(); }
  void discard() noexcept override { half_.storage().discard(); }
  bool can_crop(std::int64_t tokens) const override {
    return tokens == 0 || (tokens > 0 && half_.can_crop_to(seen() - tokens));
  }
  void check_past_recording(std::optional<std::int64_t> max_tokens) const override {
    half_.check_past_recording(max_tokens);
  }
  void activate_past_recording(std::optional<std::int64_t> max_tokens) override {
    half_.activate_past_recording(max_tokens);
  }
  std::optional<std::int64_t> planned_bytes(const PlanInput& input) const override {
    return half_.planned_bytes(input);
  }
  void share_rows() override { half_.storage().share_rows(); }
  void check_filled() const override { half_.check_filled(seen()); }

  // Classes derived from this one override it, so that a copy keeps its class; and fork(), where
  // their storage can share.
  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new AttentionLayer(*this));
  }

 protected:
  AttentionLayer(const AttentionLayer&) = default;
  AttentionLayer(AttentionLayer& other, Sharing sharing)
      : Layer(other), half_(other.half_, sharing) {}

  void publish_state(std::int64_t) noexcept override { half_.storage().publish(); }
  void crop_state(std::int64_t new_seen) override { half_.crop_to(new_seen); }
  void reset_state() noexcept override { half_.storage().reset(); }
  void visit_state(Visitor& visitor) override { half_.visit(visitor); }

 private:
  AttentionHalf half_;
};

}  // namespace kvcache
