// Relative position biases of attention scores (https://arxiv.org/abs/1910.10683, section 2.1): one
// learned number for each head and bucket of distances, exact for near tokens, logarithmic beyond.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kvcache {

struct RelativeBuckets {
  std::int64_t count = 32;          // in all; of both directions, half of them each
  std::int64_t max_distance = 128;  // tokens; from there on all are in the last bucket
  bool bidirectional = false;       // else keys after the query are in the bucket of distance 0
};

// Buckets of the distances key - query, int64, of any shape.
at::Tensor relative_buckets(const at::Tensor& distances, const RelativeBuckets& buckets);

class RelativePositionBias {
 public:
  RelativePositionBias() = default;

  // weight [buckets.count, heads].
  RelativePositionBias(const at::Tensor& weight, const RelativeBuckets& buckets);

  // Biases [rows, heads, tokens, columns] in the weight's dtype and on its device, for positions of
  // queries, int64 [rows, tokens], and keys, int64 [rows, columns], on any device.
  at::Tensor operator()(const at::Tensor& queries, const at::Tensor& keys) const;

 private:
  at::Tensor by_head_;  // [heads, buckets.count]
  RelativeBuckets buckets_;
};

}  // namespace kvcache
