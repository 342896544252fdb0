// A streamer over several runs that make the same text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "kvcache/generation/streamer.h"

namespace kvcache::detail {

// Hands each step's tokens to `streamer` once, whichever run makes them first. A run that makes
// others than were handed on is a RuntimeError.
class ReplayStreamer final : public Streamer {
 public:
  // Null: nobody is told. Keeps a reference.
  explicit ReplayStreamer(Streamer* streamer) : streamer_(streamer) {}

  // Each run calls it; `streamer` is told of the first.
  void begin() override;
  void put(const at::Tensor& tokens) override;

  // The run that has just ended is the last one. (Not end(): a run may still fail behind it.)
  void finish();

 private:
  Streamer* streamer_;
  std::vector<at::Tensor> handed_on_;  // int64 [rows] each
  std::size_t next_ = 0;               // of this run
  bool begun_ = false;
};

}  // namespace kvcache::detail
