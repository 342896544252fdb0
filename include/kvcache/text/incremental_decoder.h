// Decoding token by token for streaming: whole characters as soon as their last byte is known,
// never a part of one, and all pieces joined are exactly Tokenizer::decode of all ids.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvcache/text/tokenizer.h"

namespace kvcache {

// One stream of tokens. Cost per token is that of the token alone, however long the stream. Keeps
// the tokenizer's vocabulary alive. Not for use by several threads at once. (A character is a code
// point: an emoji joined of several comes in several pieces.)
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, DecodeOptions options = {});
  ~IncrementalDecoder();
  IncrementalDecoder(IncrementalDecoder&&) noexcept;
  IncrementalDecoder& operator=(IncrementalDecoder&&) noexcept;

  // Takes the next token and returns the text that has become certain, maybe none. Throws
  // ValueError on an unknown id (the stream is as before). Throws RuntimeError after finish().
  std::string push(std::int64_t id);
  std::string push(std::span<const std::int64_t> ids);

  // Ends the stream and returns the rest: an unfinished character becomes U+FFFD, as in decode.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvcache
