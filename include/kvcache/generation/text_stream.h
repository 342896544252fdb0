// Pulling text out of generate(), piece by piece.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "kvcache/generation/output.h"
#include "kvcache/generation/running_text.h"
#include "kvcache/generation/streamer.h"

namespace kvcache {

// What Transformers' TextIteratorStreamer and a thread around generate() do:
//
//   TextStream stream(running_text(tokenizer), [&](Streamer& streamer) {
//     return generate(*model, {.input_ids = ids, .streamer = &streamer}, config, &cache);
//   });
//   for (const std::string& piece : stream) std::cout << piece << std::flush;
//   const Output output = stream.output();
//
// Text is made on a thread of the stream's own, whether it is pulled or not; what the call reads
// must outlive the stream and be left alone meanwhile. One thread at a time may pull.
class TextStream {
 public:
  // Calls generate(), or what else makes one row of text and puts its tokens to the streamer.
  using Call = std::function<Output(Streamer&)>;

  // Throws ValueError for an empty function.
  TextStream(MakeRunningText text, Call call);

  // Stops the text at its next token, if it is still being made: a cache that was passed in stays
  // whole, and holds the tokens fed so far.
  ~TextStream();
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;

  // The next piece, which is not empty, as soon as it is there; absent: the text is complete.
  // Throws, behind the last piece, what the call threw.
  std::optional<std::string> next();

  // What the call returned, once it has; pieces that were not pulled are dropped. Once. Throws what
  // the call threw, and RuntimeError the second time.
  Output output();

  // The pieces from here on. `++` waits and throws as next() does.
  class Iterator {
   public:
    using value_type = std::string;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(TextStream& stream) : stream_(&stream), piece_(stream.next()) {}

    const std::string& operator*() const { return *piece_; }
    Iterator& operator++() {
      piece_ = stream_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !piece_.has_value(); }

   private:
    TextStream* stream_;
    std::optional<std::string> piece_;
  };
  Iterator begin() { return Iterator(*this); }
  static std::default_sentinel_t end() { return {}; }

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace kvcache
