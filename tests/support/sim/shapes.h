// What an operator will return, before it has run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace kvcache::testing::sim {

struct Inferred {
  torch::jit::Stack arguments;  // the call's, with tensors of the sizes that it gives them
  torch::jit::Stack results;
};

// By the operator's meta kernel; else by its CPU kernel on zeros, if that can tell; absent where
// only the data can. Throws what the operator throws for shapes that do not fit.
std::optional<Inferred> infer(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

}  // namespace kvcache::testing::sim
