#include "chat/parameters.h"

#include <algorithm>

#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

Parameters::Parameters(const Arguments& arguments, std::string_view function,
                       std::initializer_list<std::string_view> names, std::size_t required)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  check_value(arguments.positional.size() <= names_.size(), function, "() takes at most ",
              names_.size(), " arguments, not ", arguments.positional.size());
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    check_value(!name.empty() && found != names_.end(), function, "() takes no argument '", name,
                "'");
    const auto index = static_cast<std::size_t>(found - names_.begin());
    check_value(!values_[index], function, "() got several values for '", name, "'");
    values_[index] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    check_value(values_[i], function, "() needs at least ", required, " argument(s)");
  }
}

const Text& Parameters::text(std::size_t index) const {
  const Value& value = at(index);
  check_defined(value);
  check_value(value.as_text(), function_, "() needs a str, not ", value.type_name());
  return *value.as_text();
}

std::int64_t Parameters::integer(std::size_t index) const {
  const Value& value = at(index);
  check_defined(value);
  const auto integer = value.as_integer();
  check_value(integer.has_value(), function_, "() needs an int, not ", value.type_name());
  return *integer;
}

std::int64_t Parameters::integer_or(std::size_t index, std::int64_t fallback) const {
  return values_[index] ? integer(index) : fallback;
}

std::int64_t Parameters::count_or(std::size_t index, std::int64_t fallback) const {
  return has(index) ? integer(index) : fallback;
}

bool Parameters::truth_or(std::size_t index, bool fallback) const {
  return values_[index] ? values_[index]->truth() : fallback;
}

}  // namespace kvcache::detail::jinja
