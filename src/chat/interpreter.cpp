#include "chat/interpreter.h"

#include <exception>

#include "chat/functions.h"
#include "chat/lexer.h"
#include "chat/loop.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// How deep lists, dicts and iterators may nest.
constexpr int kMaxValueDepth = 200;

}  // namespace

void Scope::assign(std::string_view name, Value value) {
  for (auto& [known, held] : variables) {
    if (known == name) {
      held = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

// One level of evaluation: counted, and the line in errors.
class Interpreter::Level {
 public:
  Level(Interpreter& interpreter, int line)
      : interpreter_(interpreter),
        outer_line_(std::exchange(interpreter.line_, line)),
        exceptions_(std::uncaught_exceptions()) {
    ++interpreter.depth_;
  }
  // An error keeps the line of the innermost node.
  ~Level() {
    --interpreter_.depth_;
    if (std::uncaught_exceptions() == exceptions_) interpreter_.line_ = outer_line_;
  }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

  void check() const {
    check_value(interpreter_.depth_ <= interpreter_.limits_.depth,
                "the template calls itself deeper than ", interpreter_.limits_.depth,
                " levels (limits.depth)");
    interpreter_.charge(1);
  }

 private:
  Interpreter& interpreter_;
  int outer_line_;
  int exceptions_;
};

Interpreter::Interpreter(const ChatTemplateLimits& limits,
                         std::optional<std::chrono::local_seconds> time,
                         std::vector<std::pair<std::string, Value>> variables)
    : now(time), limits_(limits), scope_(std::make_shared<Scope>(nullptr)) {
  scope_->variables = global_functions();
  for (auto& [name, value] : variables) scope_->assign(name, std::move(value));
  scope_ = inner_scope();
}

Interpreter::~Interpreter() {
  for (const auto& held : loops_) {
    if (const auto loop = held.lock()) loop->last_changed.reset();
  }
}

std::string Interpreter::run(const Block& block) {
  try {
    execute(block);
  } catch (const ValueError& error) {
    fail_at(line_, error.what());
  }
  return std::move(output_);
}

Value Interpreter::evaluate(const Expression& expression) {
  const Level level(*this, expression.line());
  level.check();
  Value value = expression.evaluate(*this);
  check_value(value.depth() <= kMaxValueDepth, "a value nests deeper than ", kMaxValueDepth,
              " levels");
  check_value(value.bytes() <= limits_.value_bytes, "a value is larger than ", limits_.value_bytes,
              " bytes (limits.value_bytes)");
  return value;
}

Flow Interpreter::execute(const Block& block) {
  for (const auto& statement : block) {
    const Level level(*this, statement->line());
    level.check();
    const Flow flow = statement->execute(*this);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

std::string Interpreter::capture(const Block& block) {
  std::string outer = std::exchange(output_, {});
  execute(block);
  return std::exchange(output_, std::move(outer));
}

void Interpreter::charge(std::int64_t steps) {
  steps_ += steps;
  check_value(steps_ <= limits_.steps, "the template takes more than ", limits_.steps,
              " steps (limits.steps)");
}

void Interpreter::check_bytes(std::int64_t bytes) {
  check_value(bytes <= limits_.value_bytes, "a value is larger than ", limits_.value_bytes,
              " bytes (limits.value_bytes)");
  charge(bytes / 64);
}

void Interpreter::write(std::string_view text) {
  const auto size = static_cast<std::int64_t>(output_.size() + text.size());
  check_value(size <= limits_.output_bytes, "the output is longer than ", limits_.output_bytes,
              " bytes (limits.output_bytes)");
  charge(static_cast<std::int64_t>(text.size() / 64));
  output_ += text;
}

Value Interpreter::lookup(std::string_view name) const {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return value;
    }
  }
  return Value::undefined(c10::str("'", name, "' is undefined"));
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.tuple) {
    const Next next = iterate(value);
    Value item;
    for (const Target& part : target.parts) {
      check_value(next(item), "not enough values to unpack (expected ", target.parts.size(), ")");
      assign(part, item);
    }
    check_value(!next(item), "too many values to unpack (expected ", target.parts.size(), ")");
    return;
  }
  if (target.member.empty()) return assign(target.name, value);
  const Value object = lookup(target.name);
  const auto* held = object.get<Namespace*>();
  check_value(held, "cannot assign to a member of '", target.name,
              "', which is no namespace: make it by namespace()");
  check_value(!target.member.starts_with('_'), "a namespace takes no member '", target.member,
              "', as it begins with an underscore");
  for (auto& [name, member] : (*held)->members) {
    if (name == target.member) {
      member = value;
      return;
    }
  }
  (*held)->members.emplace_back(target.member, value);
}

Arguments Interpreter::evaluate(const CallArguments& arguments) {
  Arguments result;
  for (const auto& argument : arguments.positional) {
    result.positional.push_back(evaluate(*argument));
  }
  for (const auto& [name, argument] : arguments.named) {
    result.named.emplace_back(name, evaluate(*argument));
  }
  if (arguments.more_positional) {
    for (auto& value : to_vector(evaluate(*arguments.more_positional))) {
      result.positional.push_back(std::move(value));
    }
  }
  if (arguments.more_named) {
    const Value mapping = evaluate(*arguments.more_named);
    check_defined(mapping);
    const Dict* dict = mapping.as_dict();
    check_value(dict, "argument after ** must be a mapping, not ", mapping.type_name());
    for (const auto& [key, value] : dict->entries) {
      check_value(key.as_text(), "keywords must be strings");
      const auto& name = key.as_text()->bytes;
      for (const auto& [other, held] : result.named) {
        check_value(other != name, "the argument ", name, " is given twice");
      }
      result.named.emplace_back(name, value);
    }
  }
  charge(static_cast<std::int64_t>(result.positional.size() + result.named.size()));
  return result;
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  check_defined(function);
  const auto* callable = function.get<std::shared_ptr<const Callable>>();
  check_value(callable, "'", function.type_name(), "' object is not callable");
  Value result = (*callable)->call(*this, arguments);
  charge(result.cost());
  return result;
}

Value Interpreter::make_namespace(std::vector<std::pair<std::string, Value>> members) {
  namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(members)}));
  return Value(Value::Data(namespaces_.back().get()));
}

}  // namespace kvcache::detail::jinja
