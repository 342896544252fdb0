#include "tests/support/sim/copies.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include <memory>
#include <utility>

#include "tests/support/sim/device_memory.h"
#include "tests/support/sim/kernel_view.h"
#include "tests/support/sim/pinned_memory.h"
#include "tests/support/sim/runtime.h"

namespace kvcache::testing::sim {
namespace {

// Whether both are one run of bytes in the same order, so that one transfer will do.
bool is_one_transfer(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.is_conj() != b.is_conj() ||
      a.is_neg() != b.is_neg()) {
    return false;
  }
  if (!a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

std::shared_ptr<Task> copy_task(const std::string* name, const at::Tensor& from,
                                const at::Tensor& to, Task::Kind kind) {
  auto task = std::make_shared<Task>(Task{.name = name, .kind = kind});
  KernelViews views;
  const auto side = [&](const at::Tensor& tensor, bool write) {
    if (is_device_tensor(tensor)) {
      task->accesses.push_back(bytes_of(tensor, write));
      return views.of(tensor);
    }
    if (pinned_memory().owns(tensor.const_data_ptr())) {
      task->accesses.push_back(bytes_of(tensor, write));
    }
    return tensor;  // held until the task is done
  };
  const at::Tensor source = side(from, false), target = side(to, true);
  task->run = [source, target] { target.copy_(source); };
  return task;
}

void copy_on_devices(const at::Tensor& from, const at::Tensor& to) {
  static const std::string* const name = intern("copy on device");
  Runtime& runtime = Runtime::get();
  runtime.count([](Counters& c) { ++c.device_to_device; });
  Stream& source = runtime.current_stream(from.device().index());
  auto task = copy_task(name, from, to, Task::Kind::kernel);
  if (from.device() == to.device()) {
    runtime.launch(source, std::move(task));
    return;
  }
  // On the source's stream, ordered with the target's on both sides.
  Stream& target = runtime.current_stream(to.device().index());
  TORCH_CHECK(!runtime.capture_of(source) && !runtime.capture_of(target),
              "a graph of one stream cannot hold a copy between devices");
  runtime.block(source, runtime.record(target));
  runtime.launch(source, std::move(task));
  runtime.block(target, runtime.record(source));
}

// One run of bytes between host and device.
void transfer(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  static const std::string* const up = intern("copy to device");
  static const std::string* const down = intern("copy to host");
  Runtime& runtime = Runtime::get();
  const bool upward = is_device_tensor(to);
  const at::Tensor& host = upward ? from : to;
  const bool pinned = pinned_memory().owns(host.const_data_ptr());
  const auto bytes = std::int64_t(host.nbytes());
  if (!pinned) runtime.refuse_while_capturing("copy from or to memory that is not pinned");
  if (!non_blocking) runtime.refuse_while_capturing("copy and wait");
  runtime.count([&](Counters& c) {
    ++(upward ? c.host_to_device : c.device_to_host);
    (upward ? c.bytes_host_to_device : c.bytes_device_to_host) += bytes;
    if (non_blocking && pinned) ++c.async_copies;
    if (non_blocking && !pinned) ++c.pageable_nonblocking;
  });
  // Pageable memory is the caller's own again when the call returns.
  const bool staged = upward && !pinned;
  auto task = copy_task(upward ? up : down, staged ? from.clone() : from, to, Task::Kind::copy);
  task->host_bytes = bytes;
  Stream& stream = runtime.current_stream((upward ? to : from).device().index());
  runtime.launch(stream, std::move(task));
  if (!non_blocking || (!upward && !pinned)) runtime.synchronize(stream);
}

// Through buffers of one dtype; the conversion is the device's work if the host is to go on.
void transfer_through_buffers(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto contiguous_like = [](const at::Tensor& tensor, at::ScalarType dtype) {
    return at::empty_like(tensor, tensor.options().dtype(dtype), at::MemoryFormat::Contiguous);
  };
  const bool same_dtype = from.scalar_type() == to.scalar_type();
  at::Tensor source, target;
  if (is_device_tensor(from) == non_blocking) {
    target = to.is_contiguous() ? to : contiguous_like(to, to.scalar_type());
    source = from.to(to.scalar_type()).contiguous();
  } else {
    target = to.is_contiguous() && same_dtype ? to : contiguous_like(to, from.scalar_type());
    source = from.contiguous();
  }
  transfer(source.resolve_conj().resolve_neg(), target, non_blocking);
  if (!target.is_same(to)) to.copy_(target, non_blocking);
}

}  // namespace

void copy_tensor(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return;
  const at::Tensor source = from.expand(to.sizes());
  const bool from_device = is_device_tensor(source), to_device = is_device_tensor(to);
  if (from_device && to_device) {
    copy_on_devices(source, to);
    return;
  }
  const c10::DeviceGuard guard((from_device ? source : to).device());
  if (is_one_transfer(source, to)) {
    transfer(source, to, non_blocking);
  } else {
    transfer_through_buffers(source, to, non_blocking);
  }
}

}  // namespace kvcache::testing::sim
