// The methods of Python's values that templates may call.
#pragma once

#include <optional>
#include <string_view>

#include "chat/value.h"

namespace kvcache::detail::jinja {

// The method of that name, bound to the object; absent if its type has none. What would change the
// object is undefined, as in Jinja's sandbox; what Python has and this has not fails when called.
std::optional<Value> method(const Value& object, std::string_view name);

using Method = Value (*)(Interpreter& interpreter, const Value& self, const Arguments& arguments);
// null if there is none.
Method text_method(std::string_view name);

}  // namespace kvcache::detail::jinja
