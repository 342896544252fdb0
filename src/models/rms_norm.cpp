#include "kvcache/models/rms_norm.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace kvcache {

RmsNorm::RmsNorm(const at::Tensor& weight, double eps)
    : weight_(weight), eps_(at::full({1}, eps, weight.options().dtype(at::kFloat))) {}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor length = at::linalg_vector_norm(wide, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  const double share = 1.0 / static_cast<double>(x.size(-1));
  const at::Tensor scale = at::addcmul(eps_, length, length, share).rsqrt_();
  return wide.mul(scale).to(x.scalar_type()).mul_(weight_);
}

}  // namespace kvcache
