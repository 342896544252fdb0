#include "kvcache/kernels/few_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/cpu/products.h"
#include "kernels/parallel.h"

namespace kvcache::detail {
namespace {

// Bytes of the matrix that are worth a thread of their own.
constexpr std::int64_t kBytesOfATask = std::int64_t{1} << 16;

std::optional<kernels::TokenSource::Kind> kind_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return kernels::TokenSource::Kind::float32;
    case at::kBFloat16:
      return kernels::TokenSource::Kind::bfloat16;
    case at::kHalf:
      return kernels::TokenSource::Kind::float16;
    default:
      return {};
  }
}

}  // namespace

bool takes_few_rows(const at::Tensor& x, const at::Tensor& transposed) {
  return x.dim() == 2 && x.size(0) > 0 && x.size(0) <= kFewProductRows && x.size(1) > 0 &&
         x.size(1) == transposed.size(0) && x.is_cpu() && transposed.is_cpu() &&
         x.scalar_type() == transposed.scalar_type() && kind_of(x.scalar_type()) &&
         transposed.stride(0) == 1 && transposed.stride(1) == transposed.size(0) &&
         !(at::GradMode::is_enabled() && (x.requires_grad() || transposed.requires_grad()));
}

at::Tensor few_row_product(const at::Tensor& x, const at::Tensor& transposed,
                           const std::optional<at::Tensor>& bias) {
  const std::int64_t width = transposed.size(0), out = transposed.size(1);
  const std::int64_t missing = -width & (kernels::kVectorStep - 1);
  at::Tensor vectors = x.to(at::kFloat).contiguous();
  if (missing > 0) vectors = at::constant_pad_nd(vectors, {0, missing});
  at::Tensor result = at::empty({x.size(0), out}, vectors.options());
  const kernels::Products products{
      .kind = *kind_of(x.scalar_type()),
      .matrix = static_cast<const std::uint8_t*>(transposed.const_data_ptr()),
      .width = width,
      .vectors = vectors.const_data_ptr<float>(),
      .vector_ld = vectors.size(1),
      .count = x.size(0),
      .out = result.data_ptr<float>(),
      .out_ld = out};
  const std::int64_t row_bytes = width * transposed.element_size();
  at::parallel_for(
      0, out, std::max<std::int64_t>(kBytesOfATask / row_bytes, 4),
      [&](std::int64_t first, std::int64_t end) { kernels::multiply(products, first, end); });
  if (bias) result.add_(*bias);
  return result.to(x.scalar_type());
}

}  // namespace kvcache::detail
