// Python's operators on a template's values.
#pragma once

#include "chat/interpreter.h"

namespace kvcache::detail::jinja {

// + - * / // % **. Throws ValueError with Python's message where the operands do not fit.
Value arithmetic(Interpreter& interpreter, std::string_view sign, const Value& left,
                 const Value& right);
// Throws ValueError where the container is none.
bool contains(Interpreter& interpreter, const Value& container, const Value& element);
// == != < <= > >= in, "not in".
bool compare(Interpreter& interpreter, std::string_view sign, const Value& left,
             const Value& right);

// object.name: Python's attribute first, then the key.
Value member(Interpreter& interpreter, const Value& object, const std::string& name);
// object[index]: the key or index first, then the attribute; undefined if there is neither.
Value item(Interpreter& interpreter, const Value& object, const Value& index);
// The part of a text, list or range from `start` to `stop` in steps; undefined values are None.
Value slice(Interpreter& interpreter, const Value& object, const std::vector<Value>& bounds);

// & < > ' " as HTML writes them. Throws ValueError where the result would be too large.
std::string escape_html(Interpreter& interpreter, std::string_view text);

}  // namespace kvcache::detail::jinja
