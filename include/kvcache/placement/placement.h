// Where the layers' bytes lie, the third axis. A cache tells its placement when the model comes to
// a layer and when the layer's last reader is done; it sees layers as core::Layer, never their
// kinds.
#pragma once

#include <cstdint>

#include "kvcache/core/layer.h"

namespace kvcache {

class Placement {
 public:
  virtual ~Placement() = default;

  // Before the first call of a step for this layer: its bytes must be where it computes.
  virtual void before(std::int64_t index, Layer& layer) = 0;

  // After the layer was sealed: its bytes may leave.
  virtual void after(std::int64_t index, Layer& layer) = 0;

  // Before a walk over the layer's state outside a step.
  virtual void sync_for_visit(Layer& layer) = 0;
};

// Everything stays where it was made.
class Resident final : public Placement {
 public:
  void before(std::int64_t, Layer&) override {}
  void after(std::int64_t, Layer&) override {}
  void sync_for_visit(Layer&) override {}
};

}  // namespace kvcache
