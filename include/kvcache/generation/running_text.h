// A tokenizer as generation sees it: text that comes out of tokens one by one. See
// chat/tokenizer_text.h for one made of a Tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvcache/core/errors.h"

namespace kvcache {

class RunningText {
 public:
  RunningText() = default;
  RunningText(const RunningText&) = delete;
  RunningText& operator=(const RunningText&) = delete;
  virtual ~RunningText() = default;

  // Takes the next token and returns the text that has become certain: whole characters in UTF-8,
  // maybe none.
  virtual std::string push(std::int64_t id) = 0;

  // Ends the text and returns what is left of it.
  virtual std::string finish() = 0;
};

// Begins a text.
using MakeRunningText = std::function<std::unique_ptr<RunningText>()>;

namespace detail {

// Throws ValueError where `make` makes none.
inline std::unique_ptr<RunningText> begin_text(const MakeRunningText& make) {
  std::unique_ptr<RunningText> text = make();
  check_value(text != nullptr,
              "the function that is to begin a text returned null; it must return a RunningText");
  return text;
}

}  // namespace detail

}  // namespace kvcache
