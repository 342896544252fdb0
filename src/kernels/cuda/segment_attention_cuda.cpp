// kvcache::segment_attention on a GPU. Nothing here copies to the device or waits for it.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/segment_attention.cuh"
#include "kernels/cuda/segment_runs.h"
#include "kernels/segment_layout.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/rotation.h"
#include "kvcache/kernels/segment_attention.h"

namespace kvcache::detail {
namespace {

namespace cuda = kernels::cuda;

std::int32_t narrowed(std::int64_t n) { return static_cast<std::int32_t>(n); }

at::Tensor segment_attention_cuda(const at::Tensor& query, at::TensorList parts,
                                  at::IntArrayRef numbers, const std::optional<at::Tensor>& mask,
                                  double scale, double softcap) {
  std::vector<SegmentSides> sides = segments_of(parts, numbers);
  check_segments(sides, {query, mask});
  for (SegmentSides& each : sides) {
    put_together(each.keys);
    put_together(each.values);
  }
  const std::int64_t heads = sides[0].keys.data.size(1), tokens = query.size(2);
  const std::int64_t rows = query.size(1) / heads * tokens, value_dim = sides[0].values.dim();
  const c10::cuda::CUDAGuard guard(query.device());
  const at::Tensor result =
      at::empty({query.size(0), query.size(1), tokens, value_dim}, query.options());
  if (result.numel() == 0) return result;
  const cuda::Launches launches = cuda::launches_of(sides);
  const at::Tensor together = query.contiguous();
  const at::Tensor partials =
      at::empty({query.size(0), heads, launches.splits, rows, value_dim + 2},
                query.options().dtype(at::kFloat));
  cuda::Task task{.query = together.const_data_ptr(),
                  .result = result.data_ptr(),
                  .partials = partials.data_ptr<float>(),
                  .batch = query.size(0),
                  .kv_heads = heads,
                  .splits = launches.splits,
                  .columns = launches.columns,
                  .rows = narrowed(rows),
                  .tokens = narrowed(tokens),
                  .key_dim = narrowed(query.size(3)),
                  .value_dim = narrowed(value_dim),
                  .scale = static_cast<float>(scale),
                  .softcap = static_cast<float>(softcap),
                  .number = cuda::number_of(query.scalar_type())};
  const bool any_rotated = std::any_of(sides.begin(), sides.end(), [](const SegmentSides& each) {
    return each.keys.format.rotated;
  });
  const at::Tensor turned = any_rotated ? rotated(together).contiguous() : at::Tensor();
  if (any_rotated) task.rotated_query = turned.const_data_ptr<float>();
  at::Tensor allowed;
  if (mask) {
    allowed = mask->contiguous();
    task.allowed = allowed.const_data_ptr<bool>();
    task.allowed_row = allowed.size(0) == 1 ? 0 : tokens * launches.columns;
  }
  C10_CUDA_CHECK(cuda::attend(task, launches.each.data(),
                              static_cast<std::int64_t>(launches.each.size()),
                              c10::cuda::getCurrentCUDAStream()));
  return result;
}

}  // namespace
}  // namespace kvcache::detail

TORCH_LIBRARY_IMPL(kvcache, CUDA, m) {
  m.impl("segment_attention", kvcache::detail::segment_attention_cuda);
}
