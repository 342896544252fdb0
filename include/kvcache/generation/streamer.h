// Seeing tokens as they are made.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

#include "kvcache/core/errors.h"

namespace kvcache {

class Streamer {
 public:
  Streamer() = default;
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;
  virtual ~Streamer() = default;

  // A new text begins. What is left of the one before, where generate() threw, is to be forgotten.
  // Called once generate() has checked its arguments, before anything runs.
  virtual void begin() {}

  // One step's new tokens, int64 [rows] on the CPU; the pad token for rows that have ended. The
  // prompt is not among them. What these calls throw, generate() throws.
  virtual void put(const at::Tensor& tokens) = 0;

  // No more will come. Not called when generate() throws.
  virtual void end() {}
};

class CallbackStreamer final : public Streamer {
 public:
  // Throws ValueError for an empty function.
  explicit CallbackStreamer(std::function<void(const at::Tensor& tokens)> put)
      : put_(std::move(put)) {
    check_value(put_ != nullptr, "a CallbackStreamer needs a function that takes tokens");
  }

  void put(const at::Tensor& tokens) override { put_(tokens); }

 private:
  std::function<void(const at::Tensor&)> put_;
};

}  // namespace kvcache
