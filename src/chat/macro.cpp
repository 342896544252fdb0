#include "chat/macro.h"

#include <algorithm>

#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

class MacroFunction final : public Callable {
 public:
  MacroFunction(std::shared_ptr<const MacroDefinition> definition, std::weak_ptr<Scope> scope)
      : definition_(std::move(definition)), scope_(std::move(scope)) {}

  Value call(Interpreter& interpreter, const Arguments& arguments) const override {
    const auto outer = scope_.lock();
    check_value(outer != nullptr, "the macro '", definition_->name,
                "' is called outside the block that it was made in");
    auto inner = std::make_shared<Scope>(outer);
    const Interpreter::ScopeGuard guard(interpreter, inner);
    bind(interpreter, arguments);
    return Value::text(interpreter.capture(definition_->body));
  }
  std::string name() const override { return c10::str("Macro '", definition_->name, "'"); }

 private:
  void bind(Interpreter& interpreter, const Arguments& arguments) const;
  void bind_rest(Interpreter& interpreter, const Arguments& arguments,
                 std::vector<std::pair<std::string, Value>> named) const;
  static Value missing(const std::string& parameter) {
    return Value::undefined(c10::str("parameter '", parameter, "' was not provided"));
  }

  std::shared_ptr<const MacroDefinition> definition_;
  // Weak, as the scope holds the macro.
  std::weak_ptr<Scope> scope_;
};

void MacroFunction::bind(Interpreter& interpreter, const Arguments& arguments) const {
  const auto& parameters = definition_->parameters;
  auto named = arguments.named;
  interpreter.charge(static_cast<std::int64_t>(parameters.size() * (1 + named.size() / 8)));
  std::vector<std::optional<Value>> values(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (i < arguments.positional.size()) {
      values[i] = arguments.positional[i];
      continue;
    }
    const auto given = std::find_if(named.begin(), named.end(), [&](const auto& argument) {
      return argument.first == parameters[i];
    });
    if (given == named.end()) continue;
    values[i] = given->second;
    named.erase(given);
  }
  bind_rest(interpreter, arguments, std::move(named));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    interpreter.assign(parameters[i], values[i] ? *values[i] : missing(parameters[i]));
  }
  // Defaults see the parameters before them.
  const auto first = parameters.size() - definition_->defaults.size();
  for (std::size_t i = first; i < parameters.size(); ++i) {
    if (values[i]) continue;
    interpreter.assign(parameters[i], interpreter.evaluate(*definition_->defaults[i - first]));
  }
}

void MacroFunction::bind_rest(Interpreter& interpreter, const Arguments& arguments,
                              std::vector<std::pair<std::string, Value>> named) const {
  const auto count = definition_->parameters.size();
  if (definition_->uses_caller) {
    Value caller = Value::undefined("No caller defined");
    const auto given = std::find_if(named.begin(), named.end(), [](const auto& argument) {
      return argument.first == "caller";
    });
    if (given != named.end()) {
      caller = given->second;
      named.erase(given);
    }
    interpreter.assign("caller", std::move(caller));
  }
  if (definition_->uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    entries.reserve(named.size());
    for (const auto& [name, value] : named) entries.emplace_back(Value::text(name), value);
    interpreter.assign("kwargs", Value::dict(std::move(entries)));
  } else {
    check_value(named.empty(), "macro '", definition_->name, "' takes no keyword argument '",
                named.empty() ? "" : named.front().first, "'");
  }
  const auto& positional = arguments.positional;
  const bool more = positional.size() > count;
  if (definition_->uses_varargs) {
    const auto begin =
        positional.begin() + static_cast<std::ptrdiff_t>(more ? count : positional.size());
    interpreter.assign("varargs", Value::tuple({begin, positional.end()}));
  } else {
    check_value(!more, "macro '", definition_->name, "' takes not more than ", count,
                " argument(s)");
  }
}

}  // namespace

Value make_macro(Interpreter& interpreter, std::shared_ptr<const MacroDefinition> definition) {
  return Value::callable(
      std::make_shared<MacroFunction>(std::move(definition), interpreter.scope()));
}

}  // namespace kvcache::detail::jinja
