// How expressions are evaluated.
#include "chat/functions.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

Value Name::evaluate(Interpreter& interpreter) const { return interpreter.lookup(name); }

Value Captured::evaluate(Interpreter& interpreter) const { return interpreter.captured; }

Value Sequence::evaluate(Interpreter& interpreter) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const auto& element : items) values.push_back(interpreter.evaluate(*element));
  return tuple ? Value::tuple(std::move(values)) : Value::list(std::move(values));
}

Value Mapping::evaluate(Interpreter& interpreter) const {
  std::vector<std::pair<Value, Value>> values;
  for (const auto& [key, value] : entries) {
    Value evaluated = interpreter.evaluate(*key);
    check_hashable(interpreter.meter(), evaluated);
    put(interpreter.meter(), values, std::move(evaluated), interpreter.evaluate(*value));
  }
  return Value::dict(std::move(values));
}

Value Unary::evaluate(Interpreter& interpreter) const {
  const Value value = interpreter.evaluate(*operand);
  if (sign == "not") return Value::boolean(!value.truth());
  check_defined(value);
  check_value(value.as_number().has_value(), "bad operand type for unary ", sign, ": '",
              value.type_name(), "'");
  if (value.as_integer()) {
    return arithmetic(interpreter, sign, Value::integer(0), Value::integer(*value.as_integer()));
  }
  return Value::real(sign == "-" ? -*value.as_number() : *value.as_number());
}

Value Binary::evaluate(Interpreter& interpreter) const {
  Value first = interpreter.evaluate(*left);
  if (sign == "and") return first.truth() ? interpreter.evaluate(*right) : first;
  if (sign == "or") return first.truth() ? first : interpreter.evaluate(*right);
  return arithmetic(interpreter, sign, first, interpreter.evaluate(*right));
}

Value Concatenation::evaluate(Interpreter& interpreter) const {
  std::string text;
  for (const auto& part : items) {
    text += to_text(interpreter, interpreter.evaluate(*part));
    interpreter.check_bytes(static_cast<std::int64_t>(text.size()));
  }
  return Value::text(std::move(text));
}

Value Comparison::evaluate(Interpreter& interpreter) const {
  Value left = interpreter.evaluate(*first);
  for (const auto& [sign, operand] : rest) {
    Value right = interpreter.evaluate(*operand);
    if (!compare(interpreter, sign, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Conditional::evaluate(Interpreter& interpreter) const {
  if (interpreter.evaluate(*condition).truth()) return interpreter.evaluate(*then);
  if (otherwise) return interpreter.evaluate(*otherwise);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

Value Member::evaluate(Interpreter& interpreter) const {
  const Value container = interpreter.evaluate(*object);
  return member(interpreter, container, name);
}

Value Item::evaluate(Interpreter& interpreter) const {
  const Value container = interpreter.evaluate(*object);
  return item(interpreter, container, interpreter.evaluate(*index));
}

Value Slice::evaluate(Interpreter& interpreter) const {
  const Value sliced = interpreter.evaluate(*object);
  std::vector<Value> bounds;
  for (const auto& part : parts) bounds.push_back(part ? interpreter.evaluate(*part) : Value());
  return slice(interpreter, sliced, bounds);
}

Value Call::evaluate(Interpreter& interpreter) const {
  const Value callee = interpreter.evaluate(*function);
  return interpreter.call(callee, interpreter.evaluate(arguments));
}

Value FilterCall::evaluate(Interpreter& interpreter) const {
  const Value value = interpreter.evaluate(*operand);
  return apply_filter(interpreter, name, value, interpreter.evaluate(arguments));
}

Value TestCall::evaluate(Interpreter& interpreter) const {
  const Value value = interpreter.evaluate(*operand);
  return Value::boolean(apply_test(interpreter, name, value, interpreter.evaluate(arguments)));
}

}  // namespace kvcache::detail::jinja
