// Gives the arguments of a call to a function's parameters.
#pragma once

#include <initializer_list>
#include <string_view>

#include "chat/value.h"

namespace kvcache::detail::jinja {

class Parameters {
 public:
  // Throws ValueError where there are too many or unknown arguments, or one of the first `required`
  // is missing. A name of "" can be given by position alone.
  Parameters(const Arguments& arguments, std::string_view function,
             std::initializer_list<std::string_view> names, std::size_t required = 0);

  // The argument; null if it was not given.
  const Value* find(std::size_t index) const { return values_[index]; }
  // The argument, which is required.
  const Value& at(std::size_t index) const { return *values_[index]; }

  // Throw ValueError where the argument is of another type. Absent: the fallback.
  const Text& text(std::size_t index) const;
  std::int64_t integer(std::size_t index) const;
  std::int64_t integer_or(std::size_t index, std::int64_t fallback) const;
  // As above, None also meaning the fallback.
  std::int64_t count_or(std::size_t index, std::int64_t fallback) const;
  bool truth_or(std::size_t index, bool fallback) const;
  // Whether the argument is given and not None.
  bool has(std::size_t index) const { return values_[index] && !values_[index]->is_none(); }

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace kvcache::detail::jinja
