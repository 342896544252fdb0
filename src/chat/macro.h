// Macros, and the bodies of {% call %}, as functions.
#pragma once

#include "chat/interpreter.h"

namespace kvcache::detail::jinja {

// A function that runs in the current scope.
Value make_macro(Interpreter& interpreter, std::shared_ptr<const MacroDefinition> definition);

}  // namespace kvcache::detail::jinja
