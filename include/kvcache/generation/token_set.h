// Ids of a vocabulary, checked, in the forms in which processors use them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvcache/core/errors.h"

namespace kvcache::detail {

// Throws ValueError, naming `field`, for an id that is none of the vocabulary.
inline void check_token(std::string_view field, std::int64_t id, std::int64_t vocab_size) {
  check_value(id >= 0 && id < vocab_size, field, " holds ", id,
              ", which is no token of a vocabulary of ", vocab_size, "; its ids must be in [0, ",
              vocab_size - 1, "]");
}

// Throws ValueError for scores of another vocabulary than a processor was made for.
inline void check_vocabulary(const at::Tensor& scores, std::int64_t vocab_size) {
  check_value(scores.dim() == 2 && scores.size(1) == vocab_size, "scores must have shape [rows, ",
              vocab_size, "], the vocabulary that the processor was made for, but have ",
              scores.sizes());
}

class TokenSet {
 public:
  // `field`: whose ids these are, in messages. Throws ValueError if there are none, or for one
  // outside of the vocabulary.
  TokenSet(std::string_view field, const std::vector<std::int64_t>& ids, std::int64_t vocab_size) {
    check_value(!ids.empty(), field, " is empty; it must name at least one token");
    for (const std::int64_t id : ids) check_token(field, id, vocab_size);
    ids_ = at::tensor(ids, at::kLong);
    mask_ = at::zeros({vocab_size}, at::kBool).index_fill_(0, ids_, true);
  }

  // bool [vocab], true for these ids, on the scores' device.
  const at::Tensor& mask(const at::Tensor& scores) {
    check_vocabulary(scores, mask_.size(0));
    return on_device(mask_, scores);
  }

  // The ids, int64 [n], on the scores' device.
  const at::Tensor& ids(const at::Tensor& scores) {
    check_vocabulary(scores, mask_.size(0));
    return on_device(ids_, scores);
  }

 private:
  // Moved once: the device stays the same from step to step.
  static const at::Tensor& on_device(at::Tensor& tensor, const at::Tensor& scores) {
    if (tensor.device() != scores.device()) tensor = tensor.to(scores.device());
    return tensor;
  }

  at::Tensor ids_;   // int64 [n]
  at::Tensor mask_;  // bool [vocab]
};

}  // namespace kvcache::detail
