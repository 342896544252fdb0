// Where caches get their buffers from: one seam, so that placements and tests can supply, count or
// refuse memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kvcache/core/buffer_bytes.h"
#include "kvcache/core/dtype_name.h"

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
  // also when the caller runs under InferenceMode. Throws c10::OutOfMemoryError, also for more
  // bytes than there can be.
  virtual at::Tensor allocate(at::IntArrayRef shape, const BufferOptions& options) = 0;
};

// LibTorch's own allocators. Stateless.
class TorchMemory final : public Memory {
 public:
  at::Tensor allocate(at::IntArrayRef shape, const BufferOptions& options) override {
    const std::optional<std::int64_t> bytes = detail::buffer_bytes(shape, options.dtype);
    if (!bytes) refuse(shape, options, c10::str("more than ", detail::kMostBytes), "");
    const c10::InferenceMode normal_tensor(false);
    try {
      return at::empty(shape, at::TensorOptions()
                                  .dtype(options.dtype)
                                  .device(options.device)
                                  .pinned_memory(options.pinned));
    } catch (const c10::OutOfMemoryError& error) {
      refuse(shape, options, c10::str(*bytes), error.what_without_backtrace());
    } catch (const c10::Error& error) {
      // The CPU's allocator has no kind of error for it.
      if (!options.device.is_cpu() || options.pinned) throw;
      refuse(shape, options, c10::str(*bytes), error.what_without_backtrace());
    }
  }

 private:
  // `reason`: the allocator's own words.
  [[noreturn]] static void refuse(at::IntArrayRef shape, const BufferOptions& options,
                                  const std::string& bytes, const std::string& reason) {
    throw c10::OutOfMemoryError(c10::str(
        "there is no memory for a buffer of ", bytes, " bytes: shape ", shape, " of ",
        detail::dtype_name(options.dtype), " on ", options.pinned ? "pinned " : "", options.device,
        "; hold fewer rows or tokens, with a smaller max_cache_len or, after reset(), a "
        "smaller reserve()",
        reason.empty() ? "" : " (", reason, reason.empty() ? "" : ")"));
  }
};

}  // namespace kvcache
