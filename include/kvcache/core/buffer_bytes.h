// How many bytes a buffer takes, told without overflow.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

#include "kvcache/core/errors.h"

namespace kvcache::detail {

inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 48;  // more than a machine addresses

// Bytes of a buffer of this shape; absent: more than kMostBytes.
inline std::optional<std::int64_t> buffer_bytes(at::IntArrayRef shape, at::ScalarType dtype) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (const std::int64_t size : shape) {
    if (size > 0 && bytes > kMostBytes / size) return std::nullopt;
    bytes *= size;
  }
  return bytes;
}

// Bytes of a buffer. Throws ValueError for more than kMostBytes of them.
inline std::int64_t bytes_of(at::IntArrayRef shape, at::ScalarType dtype) {
  const std::optional<std::int64_t> bytes = buffer_bytes(shape, dtype);
  check_value(bytes.has_value(), "a buffer of shape ", shape, " would be larger than ", kMostBytes,
              " bytes");
  return *bytes;
}

}  // namespace kvcache::detail
