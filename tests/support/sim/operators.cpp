// Every operator that is not registered by name: its CPU kernel, queued on the current stream.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "tests/support/sim/device_memory.h"
#include "tests/support/sim/kernel_view.h"
#include "tests/support/sim/runtime.h"
#include "tests/support/sim/shapes.h"

namespace kvcache::testing::sim {
namespace {

using torch::jit::Stack;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// One call of an operator on device tensors.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack arguments)
      : op_(op), schema_(op.schema()), arguments_(std::move(arguments)) {
    find_device();
    move_indices();
  }

  // The results, on the device; the work may be still to come.
  Stack run() {
    const c10::DeviceGuard guard{device_};
    if (needs_data()) return run_now();
    const std::optional<Inferred> inferred = infer(op_, arguments_);
    if (!inferred) return run_now();
    resize_outputs(*inferred);
    Stack results = outputs_like(inferred->results);
    queue(results);
    return results;
  }

 private:
  // The one device of all tensors; CPU tensors without dimensions may come along.
  void find_device() {
    std::optional<c10::Device> found;
    for (const c10::IValue& value : arguments_) {
      if (value.isDevice() && value.toDevice().type() == c10::kPrivateUse1)
        found = value.toDevice();
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (!is_device_tensor(tensor)) return;
        check_same(found.value_or(tensor.device()), tensor.device());
        found = tensor.device();
      });
    }
    TORCH_INTERNAL_ASSERT(found, schema_.name(), " has nothing on a simulated device");
    device_ = found->has_index() ? *found : sim::device(current_device());
    for (const c10::IValue& value : arguments_) {
      if (value.isOptionalTensorList()) continue;  // indices may come from the CPU
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (tensor.dim() > 0) check_same(device_, tensor.device());
      });
    }
  }

  void check_same(c10::Device expected, c10::Device found) const {
    TORCH_CHECK(expected == found, "Expected all tensors to be on the same device, but found ",
                expected, " and ", found, " (", schema_.name(), ")");
  }

  void move_indices() {
    for (c10::IValue& value : arguments_) {
      if (!value.isOptionalTensorList()) continue;
      value = map_tensors(value, [&](const at::Tensor& tensor) { return tensor.to(device_); });
    }
  }

  // Whether the shape or a result on the host follows from the data.
  bool needs_data() const {
    if (op_.hasTag(at::Tag::dynamic_output_shape) || op_.hasTag(at::Tag::data_dependent_output)) {
      return true;
    }
    for (const c10::Argument& result : schema_.returns()) {
      if (!result.type()->isSubtypeOf(*c10::TensorType::get()) &&
          !result.type()->isSubtypeOf(*c10::ListType::ofTensors())) {
        return true;
      }
    }
    bool mask = false;
    for (const c10::IValue& value : arguments_) {
      if (!value.isOptionalTensorList()) continue;
      each_tensor(value, [&](const at::Tensor& index) {
        mask |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
      });
    }
    return mask;
  }

  // The argument that result `i` is, for in-place operators and those with outputs.
  const c10::IValue* returned_argument(std::size_t i) const {
    const c10::AliasInfo* wanted = schema_.returns()[i].alias_info();
    if (wanted == nullptr) return nullptr;
    TORCH_CHECK(wanted->isWrite(), "the simulated device has no view operator ", schema_.name());
    for (std::size_t a = 0; a < arguments_.size(); ++a) {
      const c10::AliasInfo* info = schema_.arguments()[a].alias_info();
      if (info != nullptr && info->beforeSets() == wanted->beforeSets()) return &arguments_[a];
    }
    TORCH_INTERNAL_ASSERT(false, schema_.name(), " returns an argument that it does not have");
  }

  void resize_outputs(const Inferred& inferred) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(schema_.arguments()[i]) || !arguments_[i].isTensor()) continue;
      const at::Tensor& output = arguments_[i].toTensor();
      const at::Tensor& wanted = inferred.arguments[i].toTensor();
      if (output.sizes() != wanted.sizes()) output.resize_(wanted.sizes());
    }
  }

  Stack outputs_like(const Stack& results) const {
    Stack outputs;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const c10::IValue* argument = returned_argument(i);
      outputs.push_back(argument != nullptr ? *argument : map_tensors(results[i], new_like));
    }
    return outputs;
  }

  static at::Tensor new_like(const at::Tensor& tensor) {
    return at::empty_strided(tensor.sizes(), tensor.strides(),
                             tensor.options().device(sim::device(current_device())));
  }

  // The call's arguments for the CPU kernel, and the bytes that it touches.
  Stack kernel_arguments(KernelViews& views, std::vector<Access>& accesses) const {
    Stack arguments;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const c10::IValue& value = arguments_[i];
      if (value.isDevice() && value.toDevice().type() == c10::kPrivateUse1) {
        arguments.emplace_back(c10::Device(c10::kCPU));
        continue;
      }
      const bool write = is_written(schema_.arguments()[i]);
      arguments.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
        if (!is_device_tensor(tensor)) return scalar_now(tensor);
        accesses.push_back(bytes_of(tensor, write));
        return views.of(tensor);
      }));
    }
    return arguments;
  }

  // The value that a CPU scalar has at the call, as kernels take it.
  static at::Tensor scalar_now(const at::Tensor& scalar) {
    at::Tensor copy = scalar.clone();
    mark_number(copy, scalar);
    return copy;
  }

  const std::string* name() const {
    const std::string& overload = schema_.overload_name();
    return intern(overload.empty() ? schema_.name() : schema_.name() + "." + overload);
  }

  void queue(const Stack& results) const {
    auto task = std::make_shared<Task>(Task{.name = name()});
    KernelViews views;
    const Stack arguments = kernel_arguments(views, task->accesses);
    std::vector<at::Tensor> targets;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (returned_argument(i) != nullptr) continue;  // the kernel writes it
      each_tensor(results[i], [&](const at::Tensor& tensor) {
        task->accesses.push_back(bytes_of(tensor, /*write=*/true));
        targets.push_back(views.of(tensor));
      });
    }
    task->run = [op = op_, arguments, targets] {
      Stack stack = arguments;
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      if (targets.empty()) return;
      std::size_t next = 0;
      for (const c10::IValue& result : stack) {
        each_tensor(result, [&](const at::Tensor& tensor) { targets[next++].copy_(tensor); });
      }
    };
    Runtime::get().launch(Runtime::get().current_stream(device_.index()), std::move(task));
  }

  // Waits for the kernel, then takes its results to the device.
  Stack run_now() const {
    Runtime& runtime = Runtime::get();
    runtime.refuse_while_capturing("use operators whose result depends on data");
    runtime.count([](Counters& c) { ++c.synchronous_ops; });
    auto results = std::make_shared<Stack>();
    auto task = std::make_shared<Task>(Task{.name = name()});
    KernelViews views;
    const Stack arguments = kernel_arguments(views, task->accesses);
    task->run = [op = op_, arguments, results] {
      *results = arguments;
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), results.get());
    };
    Stream& stream = runtime.current_stream(device_.index());
    runtime.launch(stream, std::move(task));
    runtime.synchronize(stream);
    Stack outputs;
    for (std::size_t i = 0; i < results->size(); ++i) {
      const c10::IValue* argument = returned_argument(i);
      outputs.push_back(argument != nullptr
                            ? *argument
                            : map_tensors((*results)[i], [&](const at::Tensor& tensor) {
                                return new_like(tensor).copy_(tensor);
                              }));
    }
    return outputs;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack arguments_;
  c10::Device device_ = sim::device(0);
};

void run_operator(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = std::ptrdiff_t(op.schema().arguments().size());
  Stack arguments(std::make_move_iterator(stack->end() - count),
                  std::make_move_iterator(stack->end()));
  stack->erase(stack->end() - count, stack->end());
  Stack results = Call(op, std::move(arguments)).run();
  stack->insert(stack->end(), std::make_move_iterator(results.begin()),
                std::make_move_iterator(results.end()));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_operator>());
}

}  // namespace
}  // namespace kvcache::testing::sim
