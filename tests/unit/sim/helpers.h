// Short names for what LibTorch asks of devices.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tests/support/sim/sim.h"

namespace kvcache::testing::sim {

inline c10::Stream current_stream(c10::DeviceIndex index = 0) {
  return c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStream(device(index));
}

inline c10::Stream side_stream(c10::DeviceIndex index = 0) {
  return c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(device(index));
}

// What is queued on `later` from now on runs after all that is queued on `earlier`.
inline void wait_for(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(c10::kPrivateUse1);
  event.record(earlier);
  event.block(later);
}

inline at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, at::TensorOptions(dtype).pinned_memory(true));
}

}  // namespace kvcache::testing::sim
