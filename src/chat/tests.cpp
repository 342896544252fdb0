// Tests: what follows `is`.
#include <algorithm>
#include <array>

#include "chat/code_points.h"
#include "chat/functions.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/parameters.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

template <bool (*kTest)(const Value&)>
bool simple(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "a test", {});
  return kTest(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.get<bool>() != nullptr; }
bool is_false(const Value& value) { return value.get<bool>() && !*value.get<bool>(); }
bool is_true(const Value& value) { return value.get<bool>() && *value.get<bool>(); }
bool is_integer(const Value& value) { return value.get<std::int64_t>() != nullptr; }
bool is_float(const Value& value) { return value.get<double>() != nullptr; }
bool is_number(const Value& value) { return value.as_number().has_value(); }
bool is_string(const Value& value) { return value.as_text() != nullptr; }
bool is_mapping(const Value& value) { return value.as_dict() != nullptr; }
bool is_escaped(const Value& value) { return value.as_text() && value.as_text()->markup; }
// What has a length and can be indexed, be it only to fail.
bool is_sequence(const Value& value) {
  return value.is_undefined() || value.as_text() || value.as_list() || value.as_dict() ||
         value.as_range();
}
// Undefined values can be called: that fails.
bool is_callable(const Value& value) {
  return value.get<std::shared_ptr<const Callable>>() || value.get<std::shared_ptr<Loop>>() ||
         value.is_undefined();
}

template <bool (*kTest)(std::string_view)>
bool of_text(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "a test", {});
  const std::string text = to_text(interpreter, value);
  interpreter.charge(static_cast<std::int64_t>(text.size()) / kCasedBytesPerStep);
  return kTest(text);
}

bool rest_is(Interpreter& interpreter, const Value& value, std::int64_t divisor,
             std::int64_t rest) {
  return equal(interpreter.meter(), arithmetic(interpreter, "%", value, Value::integer(divisor)),
               Value::integer(rest));
}

bool odd(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "odd", {});
  return rest_is(interpreter, value, 2, 1);
}

bool even(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "even", {});
  return rest_is(interpreter, value, 2, 0);
}

bool divisible_by(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "divisibleby", {"num"}, 1);
  return equal(interpreter.meter(), arithmetic(interpreter, "%", value, parameters.at(0)),
               Value::integer(0));
}

constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};

template <std::size_t kSign>
bool compared(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "a comparing test", {""}, 1);
  return compare(interpreter, kSigns[kSign], value, parameters.at(0));
}

bool in(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "in", {"seq"}, 1);
  return contains(interpreter, parameters.at(0), value);
}

// Whether two values are one object. Numbers count as one where they are equal and of one type,
// as Python holds for small ones.
bool same_as(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "sameas", {"other"}, 1);
  const Value& other = parameters.at(0);
  return value.type_name() == other.type_name() && compare(interpreter, "==", value, other);
}

bool names_filter(Interpreter& interpreter, const Value& value, const Arguments&) {
  check_hashable(interpreter.meter(), value);
  return value.as_text() && is_filter(value.as_text()->bytes);
}

bool names_test(Interpreter& interpreter, const Value& value, const Arguments&) {
  check_hashable(interpreter.meter(), value);
  return value.as_text() && is_test(value.as_text()->bytes);
}

struct NamedTest {
  std::string_view name;
  Test test;
};

constexpr std::array kTests = {
    NamedTest{"defined", simple<is_defined>},
    NamedTest{"undefined", simple<is_undefined>},
    NamedTest{"none", simple<is_none>},
    NamedTest{"boolean", simple<is_boolean>},
    NamedTest{"false", simple<is_false>},
    NamedTest{"true", simple<is_true>},
    NamedTest{"integer", simple<is_integer>},
    NamedTest{"float", simple<is_float>},
    NamedTest{"number", simple<is_number>},
    NamedTest{"string", simple<is_string>},
    NamedTest{"mapping", simple<is_mapping>},
    NamedTest{"sequence", simple<is_sequence>},
    NamedTest{"iterable", simple<iterable>},
    NamedTest{"callable", simple<is_callable>},
    NamedTest{"escaped", simple<is_escaped>},
    NamedTest{"lower", of_text<is_lower>},
    NamedTest{"upper", of_text<is_upper>},
    NamedTest{"odd", odd},
    NamedTest{"even", even},
    NamedTest{"divisibleby", divisible_by},
    NamedTest{"in", in},
    NamedTest{"sameas", same_as},
    NamedTest{"filter", names_filter},
    NamedTest{"test", names_test},
    NamedTest{"==", compared<0>},
    NamedTest{"eq", compared<0>},
    NamedTest{"equalto", compared<0>},
    NamedTest{"!=", compared<1>},
    NamedTest{"ne", compared<1>},
    NamedTest{"<", compared<2>},
    NamedTest{"lt", compared<2>},
    NamedTest{"lessthan", compared<2>},
    NamedTest{"<=", compared<3>},
    NamedTest{"le", compared<3>},
    NamedTest{">", compared<4>},
    NamedTest{"gt", compared<4>},
    NamedTest{"greaterthan", compared<4>},
    NamedTest{">=", compared<5>},
    NamedTest{"ge", compared<5>},
};

const NamedTest* find_test(std::string_view name) {
  const auto* found = std::find_if(kTests.begin(), kTests.end(),
                                   [&](const auto& entry) { return entry.name == name; });
  return found == kTests.end() ? nullptr : found;
}

}  // namespace

bool is_test(std::string_view name) { return find_test(name) != nullptr; }

bool apply_test(Interpreter& interpreter, std::string_view name, const Value& value,
                const Arguments& arguments) {
  const auto* found = find_test(name);
  check_value(found, "no test is named '", name, "'");
  return found->test(interpreter, value, arguments);
}

}  // namespace kvcache::detail::jinja
