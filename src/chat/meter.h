// Counts the work of a template.
#pragma once

#include <cstdint>
#include <limits>

#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

class Meter {
 public:
  explicit Meter(std::int64_t limit = std::numeric_limits<std::int64_t>::max()) : limit_(limit) {}

  // Throws ValueError at the limit. A step is a node evaluated, an element touched, or 64 bytes of
  // text; what is only compared or copied counts an eighth of an element.
  void charge(std::int64_t steps) {
    check_value(steps <= limit_ - steps_, "the template takes more than ", limit_,
                " steps (limits.steps)");
    steps_ += steps;
  }
  void charge_elements(std::size_t count) { charge(static_cast<std::int64_t>(1 + count / 8)); }
  void charge_bytes(std::size_t count) { charge(static_cast<std::int64_t>(count / 64)); }

 private:
  std::int64_t limit_;
  std::int64_t steps_ = 0;
};

}  // namespace kvcache::detail::jinja
