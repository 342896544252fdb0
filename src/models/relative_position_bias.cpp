#include "kvcache/models/relative_position_bias.h"

#include <ATen/ops/where.h>

#include <cmath>

#include "kvcache/core/errors.h"

namespace kvcache {

at::Tensor relative_buckets(const at::Tensor& distances, const RelativeBuckets& buckets) {
  // Half of a direction's buckets stand for one distance each.
  const std::int64_t directed = buckets.bidirectional ? buckets.count / 2 : buckets.count;
  const std::int64_t exact = directed / 2;
  const at::Tensor far = buckets.bidirectional ? distances.abs() : distances.neg().clamp_min(0);
  // The others are as wide in logarithms; in float32, whose rounding decides at their borders.
  const double octave =
      std::log(static_cast<double>(buckets.max_distance) / static_cast<double>(exact));
  const at::Tensor logarithmic = far.to(at::kFloat)
                                     .div(exact)
                                     .log()
                                     .div(octave)
                                     .mul(directed - exact)
                                     .to(at::kLong)
                                     .add(exact)
                                     .clamp_max(directed - 1);
  const at::Tensor bucket = at::where(far.lt(exact), far, logarithmic);
  return buckets.bidirectional ? bucket.add(distances.gt(0), directed) : bucket;
}

RelativePositionBias::RelativePositionBias(const at::Tensor& weight, const RelativeBuckets& buckets)
    : by_head_(weight.t().contiguous()), buckets_(buckets) {
  check_value(
      buckets.count >= 4 && buckets.max_distance > buckets.count / 2,
      "relative positions need at least 4 buckets and a distance of more than half of them, "
      "but have ",
      buckets.count, " and ", buckets.max_distance);
}

at::Tensor RelativePositionBias::operator()(const at::Tensor& queries,
                                            const at::Tensor& keys) const {
  const at::Tensor distances = keys.unsqueeze(1).sub(queries.unsqueeze(2));
  const at::Tensor buckets = relative_buckets(distances, buckets_).to(by_head_.device());
  return by_head_.index_select(1, buckets.flatten())
      .view({by_head_.size(0), distances.size(0), distances.size(1), distances.size(2)})
      .transpose(0, 1)
      .contiguous();
}

}  // namespace kvcache
