// Transformers' LinearAttentionLayer: the states of convolutions, recurrences or both, and no keys.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kvcache/core/layer.h"
#include "kvcache/core/memory.h"
#include "kvcache/layers/linear_attention_half.h"

namespace kvcache {

class LinearAttentionLayer final : public Layer {
 public:
  // spec.states of each kind, at least 1, else ValueError; which of them are used spec.state_sizes
  // says, or is seen in the layer's first step.
  explicit LinearAttentionLayer(
      LayerSpec spec, const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : Layer(spec), half_(spec, memory) {}

  KeyValuePort* key_values() noexcept override { return nullptr; }
  StatePort* states() noexcept override { return &half_; }
  std::int64_t get_max_length() const override { return -1; }
  std::optional<std::int64_t> room() const override { return std::nullopt; }
  void reserve(std::int64_t) override {}  // a state's size does not depend on the text's length
  void seal() override { half_.seal(); }
  void settle() override {}
  void discard() noexcept override { half_.discard(); }
  bool can_crop(std::int64_t tokens) const override { return half_.can_crop(tokens); }
  void activate_past_recording(std::optional<std::int64_t> max_tokens) override {
    half_.activate_past_recording(max_tokens);
  }
  std::optional<std::int64_t> planned_bytes(const PlanInput& input) const override {
    return half_.planned_bytes(input);
  }
  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new LinearAttentionLayer(*this));
  }

 private:
  LinearAttentionLayer(const LinearAttentionLayer&) = default;

  void publish_state(std::int64_t tokens) noexcept override { half_.publish(tokens); }
  void crop_state(std::int64_t new_seen) override { half_.crop(seen() - new_seen, seen()); }
  void reset_state() noexcept override { half_.reset(); }
  void visit_state(Visitor& visitor) override { half_.visit(visitor, seen()); }

  LinearAttentionHalf half_;
};

}  // namespace kvcache
