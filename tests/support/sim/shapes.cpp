#include "tests/support/sim/shapes.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "tests/support/sim/kernel_view.h"

namespace kvcache::testing::sim {
namespace {

torch::jit::Stack moved_to(const torch::jit::Stack& arguments, c10::DeviceType type) {
  torch::jit::Stack moved;
  for (const c10::IValue& value : arguments) {
    if (value.isDevice() && value.toDevice().type() == c10::kPrivateUse1) {
      moved.emplace_back(c10::Device(type));
      continue;
    }
    moved.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
      if (!is_device_tensor(tensor)) return tensor;
      at::Tensor like =
          at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(type));
      if (type == c10::kCPU) like.zero_();
      mark_number(like, tensor);
      return like;
    }));
  }
  return moved;
}

Inferred run(const c10::OperatorHandle& op, torch::jit::Stack arguments, c10::DispatchKey key) {
  torch::jit::Stack results = arguments;
  op.redispatchBoxed(c10::DispatchKeySet(key), &results);
  return {std::move(arguments), std::move(results)};
}

// Whether all results are arguments, which keep their sizes.
bool is_in_place(const c10::FunctionSchema& schema) {
  const auto aliased = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr;
  };
  const auto output = [&](const c10::Argument& a) { return a.kwarg_only() && aliased(a); };
  const auto& arguments = schema.arguments();
  const auto& results = schema.returns();
  return schema.is_mutable() && std::all_of(results.begin(), results.end(), aliased) &&
         std::none_of(arguments.begin(), arguments.end(), output);
}

}  // namespace

std::optional<Inferred> infer(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const c10::InferenceMode inference;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    try {
      return run(op, moved_to(arguments, c10::kMeta), c10::DispatchKey::Meta);
    } catch (const c10::NotImplementedError&) {
      // The meta kernel calls an operator that has none.
    }
  }
  if (is_in_place(op.schema())) {
    torch::jit::Stack same = moved_to(arguments, c10::kMeta);
    torch::jit::Stack results(same.begin(),
                              same.begin() + std::ptrdiff_t(op.schema().returns().size()));
    return Inferred{std::move(same), std::move(results)};
  }
  try {
    return run(op, moved_to(arguments, c10::kCPU), c10::DispatchKey::CPU);
  } catch (const c10::Error&) {
    return std::nullopt;  // zeros will not do, or the call is wrong: the data will tell
  }
}

}  // namespace kvcache::testing::sim
