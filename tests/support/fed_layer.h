// A kind of layer as a user would add it: a sliding one that also counts the tokens that it was
// ever fed, those taken back later among them.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "kvcache/layers/attention_layer.h"
#include "kvcache/storage/growing_storage.h"

namespace kvcache::testing {

inline constexpr std::string_view kFed = "fed";

class FedLayer final : public AttentionLayer {
 public:
  FedLayer(LayerSpec spec, std::shared_ptr<Memory> memory)
      : AttentionLayer(spec, Retention::sliding(spec.window),
                       std::make_unique<GrowingStorage>(std::move(memory))) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new FedLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new FedLayer(*this, Sharing{}));
  }

 private:
  FedLayer(const FedLayer&) = default;
  FedLayer(FedLayer& other, Sharing sharing) : AttentionLayer(other, sharing), fed_(other.fed_) {}

  void publish_state(std::int64_t tokens) noexcept override {
    AttentionLayer::publish_state(tokens);
    fed_ += tokens;
  }
  void reset_state() noexcept override {
    AttentionLayer::reset_state();
    fed_ = 0;
  }
  void visit_state(Visitor& visitor) override {
    visitor.count("fed", fed_);
    AttentionLayer::visit_state(visitor);
  }

  std::int64_t fed_ = 0;
};

}  // namespace kvcache::testing
