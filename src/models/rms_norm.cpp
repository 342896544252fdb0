#include "kvcache/models/rms_norm.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace kvcache {

RmsNorm::RmsNorm(const at::Tensor& weight, double eps) : RmsNorm(unweighted(eps, weight.device())) {
  weight_ = weight;
}

RmsNorm RmsNorm::zero_centered(const at::Tensor& weight, double eps) {
  RmsNorm norm = unweighted(eps, weight.device());
  norm.wide_weight_ = weight.to(at::kFloat).add(1);
  return norm;
}

RmsNorm RmsNorm::unweighted(double eps, at::Device device) {
  RmsNorm norm;
  norm.eps_ = at::full({1}, eps, at::TensorOptions().dtype(at::kFloat).device(device));
  return norm;
}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor length = at::linalg_vector_norm(wide, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  const double share = 1.0 / static_cast<double>(x.size(-1));
  const at::Tensor scale = at::addcmul(eps_, length, length, share).rsqrt_();
  at::Tensor normed = wide.mul(scale);
  if (wide_weight_.defined()) normed.mul_(wide_weight_);
  normed = normed.to(x.scalar_type());
  return weight_.defined() ? normed.mul_(weight_) : normed;
}

}  // namespace kvcache
