// Transformers' DummyLayer: stands in a cache's list for a layer of the model that needs no cache,
// such as one of experts or an MLP alone.
#pragma once

#include <memory>

#include "kvcache/core/memory.h"
#include "kvcache/layers/stateless_layer.h"

namespace kvcache {

class DummyLayer final : public StatelessLayer {
 public:
  explicit DummyLayer(LayerSpec spec, const std::shared_ptr<Memory>& = nullptr)
      : StatelessLayer(std::move(spec)) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new DummyLayer(*this));
  }

 private:
  DummyLayer(const DummyLayer&) = default;
};

}  // namespace kvcache
