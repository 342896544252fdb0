// A layer that has keys and values beside convolution and recurrent states: an attention half and a
// linear half under one length. Transformers' names for it are thin classes over it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kvcache/layers/attention_half.h"
#include "kvcache/layers/linear_attention_half.h"

namespace kvcache {

class HybridLayer : public Layer {
 public:
  // The linear half's buffers come from `memory`; spec.states of each kind, else ValueError.
  HybridLayer(LayerSpec spec, Retention retention, std::unique_ptr<Storage> storage,
              const std::shared_ptr<Memory>& memory)
      : Layer(spec), attention_(spec, retention, std::move(storage)), linear_(spec, memory) {}

  KeyValuePort* key_values() noexcept override { return &attention_; }
  StatePort* states() noexcept override { return &linear_; }

  // As its attention says; states have no bound.
  std::int64_t get_max_length() const override {
    if (const auto capacity = attention_.storage().capacity()) return *capacity;
    return attention_.retention().bound().value_or(-1);
  }

  std::optional<std::int64_t> room() const override {
    const auto capacity = attention_.storage().capacity();
    return capacity ? std::optional(*capacity - seen()) : std::nullopt;
  }

  void reserve(std::int64_t tokens) override { attention_.reserve(tokens); }

  void seal() override {
    linear_.seal();
    attention_.storage().seal();
  }
  void settle() override { attention_.storage().settle(); }
  void discard() noexcept override {
    attention_.storage().discard();
    linear_.discard();
  }

  // The least of what its halves can.
  bool can_crop(std::int64_t tokens) const override {
    return tokens == 0 ||
           (tokens > 0 && attention_.can_crop_to(seen() - tokens) && linear_.can_crop(tokens));
  }

  void check_past_recording(std::optional<std::int64_t> max_tokens) const override {
    attention_.check_past_recording(max_tokens);
  }
  // Attention first, which may refuse.
  void activate_past_recording(std::optional<std::int64_t> max_tokens) override {
    attention_.activate_past_recording(max_tokens);
    linear_.activate_past_recording(max_tokens);
  }

  std::optional<std::int64_t> planned_bytes(const PlanInput& input) const override {
    const auto attention = attention_.planned_bytes(input), states = linear_.planned_bytes(input);
    return attention && states ? std::optional(*attention + *states) : std::nullopt;
  }

  void share_rows() override { attention_.storage().share_rows(); }

  // Classes derived from this one override it, so that a copy keeps its class; and fork(), where
  // their storage can share.
  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new HybridLayer(*this));
  }

 protected:
  HybridLayer(const HybridLayer&) = default;
  HybridLayer(HybridLayer& other, Sharing sharing)
      : Layer(other), attention_(other.attention_, sharing), linear_(other.linear_) {}

  void publish_state(std::int64_t tokens) noexcept override {
    attention_.storage().publish();
    linear_.publish(tokens);
  }
  void crop_state(std::int64_t new_seen) override {
    attention_.crop_to(new_seen);
    linear_.crop(seen() - new_seen, seen());
  }
  void reset_state() noexcept override {
    attention_.storage().reset();
    linear_.reset();
  }
  void visit_state(Visitor& visitor) override {
    attention_.visit(visitor);
    linear_.visit(visitor, seen());
  }

 private:
  AttentionHalf attention_;
  LinearAttentionHalf linear_;
};

}  // namespace kvcache
