// Seeing text as it is made.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/running_text.h"
#include "kvcache/generation/streamer.h"

namespace kvcache {

// Transformers' TextStreamer for one row of text: hands on each whole character as soon as its last
// byte is known, also in text without spaces. (Transformers waits for the end of a word.) Serves
// one generate() after the other, whether or not the one before came to its end.
class TextStreamer final : public Streamer {
 public:
  // `put` gets text that is not empty; `end_tokens` are no part of it. Throws ValueError for an
  // empty function.
  TextStreamer(MakeRunningText text, std::function<void(std::string_view text)> put,
               std::vector<std::int64_t> end_tokens = {})
      : make_text_(std::move(text)), put_(std::move(put)), end_tokens_(std::move(end_tokens)) {
    check_value(make_text_ != nullptr && put_ != nullptr,
                "a TextStreamer needs a function that begins a text and one that takes it");
  }

  void begin() override { text_ = detail::begin_text(make_text_); }

  // Throws ValueError for more than one row.
  void put(const at::Tensor& tokens) override {
    check_value(tokens.numel() == 1, "a TextStreamer shows one row, but there are ", tokens.numel(),
                "; use a CallbackStreamer for a batch");
    const auto token = tokens.item<std::int64_t>();
    if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) return;
    if (!text_) text_ = detail::begin_text(make_text_);
    hand_on(text_->push(token));
  }

  void end() override {
    if (text_) hand_on(std::exchange(text_, nullptr)->finish());
  }

 private:
  void hand_on(const std::string& text) const {
    if (!text.empty()) put_(text);
  }

  MakeRunningText make_text_;
  std::function<void(std::string_view)> put_;
  std::vector<std::int64_t> end_tokens_;
  std::unique_ptr<RunningText> text_;  // null between texts
};

}  // namespace kvcache
