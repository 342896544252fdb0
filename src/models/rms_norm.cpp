#include "kvcache/models/rms_norm.h"

namespace kvcache {

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor mean_square = wide.square().mean(-1, /*keepdim=*/true);
  return wide.mul(mean_square.add_(eps).rsqrt_()).to(x.scalar_type()).mul(weight);
}

}  // namespace kvcache
