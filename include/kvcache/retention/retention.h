// Which tokens a layer keeps and which ones a query sees: integers only, usable in constant
// expressions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kvcache/core/errors.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/core/visible.h"

namespace kvcache {

class Retention {
 public:
  // Every token is kept and seen.
  static constexpr Retention full() { return Retention(Kind::full, 0); }

  // A query at p sees p - window + 1 .. p. Throws ValueError if window < 1.
  static constexpr Retention sliding(std::int64_t window) {
    return Retention(Kind::sliding, checked(window, "sliding window"));
  }

  // A query at p sees floor(p / chunk) * chunk .. p. Keeps like a sliding window of that size,
  // since left padding shifts each row's chunks. Throws ValueError if chunk < 1.
  static constexpr Retention chunked(std::int64_t chunk) {
    return Retention(Kind::chunked, checked(chunk, "attention chunk size"));
  }

  // What a model says of a layer's own attention; absent where it has none of these kinds. Throws
  // ValueError for a window or chunk size below 1.
  static std::optional<Retention> of(const LayerSpec& spec) {
    if (spec.type == kFullAttention || spec.type == kHybrid) return full();
    if (spec.type == kSlidingAttention || spec.type == kHybridSliding) return sliding(spec.window);
    if (spec.type == kChunkedAttention) return chunked(spec.window);
    return std::nullopt;
  }

  // Position of the oldest token that a query following `seen` tokens may need.
  constexpr std::int64_t first_needed(std::int64_t seen) const {
    return kind_ == Kind::full ? 0 : std::max<std::int64_t>(seen - size_ + 1, 0);
  }

  // What a step of `tokens` new tokens after `seen` past ones is handed: one formula for every
  // kind.
  constexpr Visible visible(std::int64_t seen, std::int64_t tokens) const {
    Visible result;
    result.offset = first_needed(seen);
    result.length = seen - result.offset + tokens;
    if (kind_ == Kind::sliding) result.window = size_;
    if (kind_ == Kind::chunked) result.chunk = size_;
    return result;
  }

  // Window or chunk size in tokens; absent for full retention.
  constexpr std::optional<std::int64_t> bound() const {
    return kind_ == Kind::full ? std::nullopt : std::optional(size_);
  }

 private:
  enum class Kind { full, sliding, chunked };

  constexpr Retention(Kind kind, std::int64_t size) : kind_(kind), size_(size) {}

  static constexpr std::int64_t checked(std::int64_t size, const char* what) {
    if (size < 1) throw ValueError(c10::str("the ", what, " is ", size, "; it must be at least 1"));
    return size;
  }

  Kind kind_;
  std::int64_t size_;
};

}  // namespace kvcache
