// Seeing tokens as they are made.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

namespace kvcache {

class Streamer {
 public:
  Streamer() = default;
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;
  virtual ~Streamer() = default;

  // One step's new tokens, int64 [rows] on the CPU; the pad token for rows that have ended. The
  // prompt is not among them. What this throws, generate() throws.
  virtual void put(const at::Tensor& tokens) = 0;

  // No more will come. Not called when generate() throws.
  virtual void end() {}
};

class CallbackStreamer final : public Streamer {
 public:
  explicit CallbackStreamer(std::function<void(const at::Tensor& tokens)> put)
      : put_(std::move(put)) {}

  void put(const at::Tensor& tokens) override { put_(tokens); }

 private:
  std::function<void(const at::Tensor&)> put_;
};

}  // namespace kvcache
