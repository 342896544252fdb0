// A layer that keeps nothing of its own but its length.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "kvcache/core/layer.h"

namespace kvcache {

class StatelessLayer : public Layer {
 public:
  using Layer::Layer;

  KeyValuePort* key_values() noexcept override { return nullptr; }
  StatePort* states() noexcept override { return nullptr; }
  std::int64_t get_max_length() const override { return -1; }
  std::optional<std::int64_t> room() const override { return std::nullopt; }
  void reserve(std::int64_t) override {}
  void seal() override {}
  void settle() override {}
  void discard() noexcept override {}
  bool can_crop(std::int64_t tokens) const override { return tokens >= 0 && tokens <= seen(); }
  void activate_past_recording(std::optional<std::int64_t>) override {}
  std::optional<std::int64_t> planned_bytes(const PlanInput&) const override { return 0; }
  void check_filled() const override {}

 protected:
  StatelessLayer(const StatelessLayer&) = default;

  void publish_state(std::int64_t) noexcept override {}
  void crop_state(std::int64_t) override {}
  void reset_state() noexcept override {}
  void visit_state(Visitor&) override {}
};

}  // namespace kvcache
