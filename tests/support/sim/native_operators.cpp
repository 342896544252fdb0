// The operators that make, view and resize tensors, copy them or bring a value to the host.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "tests/support/sim/copies.h"
#include "tests/support/sim/device_memory.h"
#include "tests/support/sim/kernel_view.h"
#include "tests/support/sim/resize.h"
#include "tests/support/sim/runtime.h"

namespace kvcache::testing::sim {
namespace {

using OptionalDtype = std::optional<at::ScalarType>;
using OptionalLayout = std::optional<at::Layout>;
using OptionalDevice = std::optional<at::Device>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_options(OptionalLayout layout, std::optional<bool> pin) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "simulated devices are dense");
  TORCH_CHECK(!pin.value_or(false), "only memory of the CPU can be pinned");
}

at::Tensor empty(at::IntArrayRef sizes, OptionalDtype dtype, OptionalLayout layout,
                 OptionalDevice device, std::optional<bool> pin,
                 std::optional<at::MemoryFormat> format) {
  check_options(layout, pin);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &device_memory(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, OptionalDtype dtype,
                         OptionalLayout layout, OptionalDevice device, std::optional<bool> pin) {
  check_options(layout, pin);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &device_memory(), kKeys,
                                           c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(format.value_or(at::MemoryFormat::Contiguous) == at::MemoryFormat::Contiguous,
              "simulated devices resize to contiguous tensors only");
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(
      sizes, self.dtype().itemsize(), std::size_t(self.storage_offset()));
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  const std::size_t bytes = at::detail::computeStorageNbytes(
      sizes, strides, self.dtype().itemsize(), std::size_t(offset));
  if (bytes > source.nbytes()) resize_storage(source, bytes);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  copy_tensor(self, target, non_blocking);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  copy_tensor(self, target, /*non_blocking=*/false);
  return target;
}

at::Scalar local_scalar(const at::Tensor& self) {
  Runtime& runtime = Runtime::get();
  runtime.refuse_while_capturing("read a value from the device");
  runtime.count([](Counters& c) { ++c.synchronous_ops; });
  static const std::string* const name = intern("aten::_local_scalar_dense");
  auto value = std::make_shared<at::Scalar>();
  auto task =
      std::make_shared<Task>(Task{.name = name, .accesses = {bytes_of(self, /*write=*/false)}});
  task->run = [view = KernelViews().of(self), value] { *value = at::_local_scalar_dense(view); };
  Stream& stream = runtime.current_stream(self.device().index());
  runtime.launch(stream, std::move(task));
  runtime.synchronize(stream);
  return *value;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_memory().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
}

// Copies apply pending conjugation and negation themselves; others have it done by a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace kvcache::testing::sim
