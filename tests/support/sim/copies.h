// Copies within and between devices and the host, asynchronous where CUDA's are.
#pragma once

#include <ATen/core/Tensor.h>

namespace kvcache::testing::sim {

// Of `from` into `to`, of which at least one is on a device; shapes as copy_ takes them.
void copy_tensor(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

}  // namespace kvcache::testing::sim
