#include "tests/support/sim/kernel_view.h"

#include <ATen/core/List.h>
#include <c10/core/TensorImpl.h>

#include "tests/support/sim/device_memory.h"

namespace kvcache::testing::sim {

at::Tensor KernelViews::of(const at::Tensor& device_tensor) {
  const c10::Storage& source = device_tensor.storage();
  c10::Storage& storage = storages_[source.unsafeGetStorageImpl()];
  if (!storage) {
    const void* memory = source.data();
    void* address = memory == nullptr ? nullptr : device_memory().kernel_address(memory);
    storage = c10::Storage(c10::Storage::use_byte_size_t(), source.nbytes(),
                           c10::DataPtr(address, c10::kCPU), /*allocator=*/nullptr,
                           /*resizable=*/false);
  }
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), device_tensor.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(device_tensor.sizes(), device_tensor.strides(),
                              device_tensor.storage_offset());
  mark_number(view, device_tensor);
  view._set_conj(device_tensor.is_conj());
  view._set_neg(device_tensor.is_neg());
  return view;
}

c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& map) {
  const auto mapped = [&](const at::Tensor& t) { return t.defined() ? map(t) : t; };
  if (value.isTensor()) return mapped(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(mapped(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(mapped(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    visit(tensor);
    return tensor;
  });
}

}  // namespace kvcache::testing::sim
