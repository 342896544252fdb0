// A Memory that counts what it hands out and refuses when told to.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "kvcache/core/memory.h"

namespace kvcache::testing {

class FailingMemory final : public Memory {
 public:
  // The allocation after `allowed` more ones throws c10::OutOfMemoryError, once. Absent: none does.
  void fail_after(std::optional<std::int64_t> allowed) { allowed_ = allowed; }

  // Whether a refusal is still to come.
  bool refuses() const { return allowed_.has_value(); }

  std::int64_t allocations() const { return counts_->allocations; }
  std::int64_t live_bytes() const { return counts_->live; }
  std::int64_t peak_bytes() const { return counts_->peak; }

  at::Tensor allocate(at::IntArrayRef shape, const BufferOptions& options) override {
    if (allowed_ && (*allowed_)-- == 0) {
      allowed_.reset();
      TORCH_CHECK_WITH(OutOfMemoryError, false, "memory refused by the test");
    }
    const c10::InferenceMode normal_tensor(false);
    const at::Tensor bytes = TorchMemory().allocate(shape, options);
    const auto size = static_cast<std::int64_t>(bytes.nbytes());
    counts_->allocations += 1;
    counts_->live += size;
    counts_->peak = std::max(counts_->peak, counts_->live);
    const auto release = [counts = counts_, bytes, size](void*) { counts->live -= size; };
    return at::from_blob(bytes.data_ptr(), shape, release, bytes.options(), bytes.device());
  }

 private:
  struct Counts {
    std::int64_t allocations = 0;
    std::int64_t live = 0;
    std::int64_t peak = 0;
  };

  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::optional<std::int64_t> allowed_;
};

}  // namespace kvcache::testing
