// A layer that reads the keys and values of an earlier one, its donor, and keeps none itself (the
// models whose `kv_sharing_modes` say "reuse"). In a step it takes Step::view instead of append.
#pragma once

#include <memory>

#include "kvcache/core/errors.h"
#include "kvcache/core/memory.h"
#include "kvcache/layers/stateless_layer.h"

namespace kvcache {

class SharedLayer final : public StatelessLayer {
 public:
  // spec.donor: index of the donor, else ValueError.
  explicit SharedLayer(LayerSpec spec, const std::shared_ptr<Memory>& = nullptr)
      : StatelessLayer(std::move(spec)) {
    check_value(this->spec().donor.has_value(),
                "a shared layer needs the index of the layer whose keys it reads (donor)");
  }

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new SharedLayer(*this));
  }

 private:
  SharedLayer(const SharedLayer&) = default;
};

}  // namespace kvcache
