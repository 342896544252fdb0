// What generate() returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kvcache/cache/cache.h"

namespace kvcache {

struct Timings {
  double prefill_s = 0;  // until the first new token of each row is there
  double decode_s = 0;   // all later steps
  std::int64_t prefill_tokens =
      0;  // tokens that the prefill computed, all rows, without reused ones
  std::int64_t decode_tokens = 0;  // tokens that later steps made, all rows, without pads
};

struct Output {
  // int64 [rows, prompt + new tokens] on the input's device: the input ids (with an encoder, the
  // decoder's) as given, then what was made, filled with the pad token after a row's end.
  at::Tensor sequences;
  // float32 [rows], with num_beams: the sum of the log-probabilities of a row's new tokens, its end
  // token among them, divided by their number to the power of length_penalty. A prompt's rows are
  // neighbours, best first.
  std::optional<at::Tensor> sequences_scores = {};
  // float32 [rows, new tokens, vocab]: the model's scores at each step before any processor, zeros
  // where a row had ended; with output_logits. Of beams, those that the returned texts went
  // through.
  std::optional<at::Tensor> logits = {};
  // The cache, if generate() made it; it holds all of the text but the last token of each row. Null
  // without a cache, or where the caller passed one. A static one goes back to its Runner, which
  // uses it again, when this pointer and its copies are gone; nobody touches it before.
  std::shared_ptr<Cache> cache = {};
  Timings timings = {};
};

}  // namespace kvcache
