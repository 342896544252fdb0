// Where caches get their buffers from: one seam, so that placements and tests can supply, count or
// refuse memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <memory>

namespace kvcache {

// The kind and home of a buffer.
struct BufferOptions {
  at::ScalarType dtype;
  at::Device device;
  bool pinned = false;  // host memory that an accelerator can copy from asynchronously
};

class Memory {
 public:
  virtual ~Memory() = default;

  // An uninitialized, contiguous tensor of this shape. It is a normal tensor, writable in place
  // also when the caller runs under InferenceMode. Throws c10::OutOfMemoryError.
  virtual at::Tensor allocate(at::IntArrayRef shape, const BufferOptions& options) = 0;
};

// LibTorch's own allocators. Stateless.
class TorchMemory final : public Memory {
 public:
  at::Tensor allocate(at::IntArrayRef shape, const BufferOptions& options) override {
    const c10::InferenceMode normal_tensor(false);
    return at::empty(shape, at::TensorOptions()
                                .dtype(options.dtype)
                                .device(options.device)
                                .pinned_memory(options.pinned));
  }
};

}  // namespace kvcache
