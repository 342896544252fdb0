// CPU tensors over device memory, for the streams' kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <unordered_map>

namespace kvcache::testing::sim {

inline bool is_device_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::kPrivateUse1;
}

// Says of `copy` whether it stands for a plain number, as `source` does: such promote no dtype.
inline void mark_number(const at::Tensor& copy, const at::Tensor& source) {
  if (source.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

// The views made for one task: tensors that share a storage still do, so that kernels notice
// overlaps. They own no memory.
class KernelViews {
 public:
  at::Tensor of(const at::Tensor& device_tensor);

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
};

// `value` with every tensor in it, also in lists, replaced by map(tensor).
c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& map);

// Calls `visit` with every defined tensor in `value`.
void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

}  // namespace kvcache::testing::sim
