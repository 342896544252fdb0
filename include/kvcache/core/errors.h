// The library's two error kinds and the checks that throw them. Messages name the thing, the value
// given, the limit, and what to do. c10::OutOfMemoryError passes through.
#pragma once

#include <c10/util/StringUtil.h>

#include <stdexcept>
#include <string>

namespace kvcache {

// A bad argument, option or file: the call can never succeed as given. Programs exit with 2.
class ValueError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// A state that refuses (an open step, a crop of tokens no longer held, ...). Programs exit with 3.
class RuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws ValueError with the concatenated message parts unless `condition` holds.
template <typename... Parts>
inline void check_value(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw ValueError(c10::str(parts...));
}

// Throws RuntimeError with the concatenated message parts unless `condition` holds.
template <typename... Parts>
inline void check_state(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw RuntimeError(c10::str(parts...));
}

}  // namespace kvcache
