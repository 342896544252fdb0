// The statements of a template: its text, and what stands in {% %}.
#pragma once

#include "chat/syntax.h"

namespace kvcache::detail::jinja {

enum class Flow { kNext, kBreak, kContinue };

class Statement {
 public:
  explicit Statement(int line) : line_(line) {}
  virtual ~Statement() = default;
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Called through Interpreter::execute.
  virtual Flow execute(Interpreter& interpreter) const = 0;
  int line() const { return line_; }

 private:
  int line_;
};

using Block = std::vector<std::unique_ptr<const Statement>>;

// What is assigned to: a name, a namespace's member, or several of them.
struct Target {
  std::string name;
  std::string member;  // empty: the name itself
  std::vector<Target> parts;
  bool tuple = false;
};

class Data final : public Statement {
 public:
  Data(int line, std::string content) : Statement(line), text(std::move(content)) {}
  Flow execute(Interpreter& interpreter) const override;

  const std::string text;
};

class Print final : public Statement {
 public:
  Print(int line, std::vector<ExpressionPtr> printed)
      : Statement(line), values(std::move(printed)) {}
  Flow execute(Interpreter& interpreter) const override;

  const std::vector<ExpressionPtr> values;
};

class If final : public Statement {
 public:
  struct Branch {
    ExpressionPtr condition;
    Block body;
  };
  If(int line, std::vector<Branch> conditions, Block rest)
      : Statement(line), branches(std::move(conditions)), otherwise(std::move(rest)) {}
  Flow execute(Interpreter& interpreter) const override;

  const std::vector<Branch> branches;
  const Block otherwise;
};

class For final : public Statement {
 public:
  struct Parts {
    Target target;
    ExpressionPtr iterable;
    ExpressionPtr condition;  // may be null
    Block body;
    Block otherwise;
  };
  For(int line, Parts given) : Statement(line), parts(std::move(given)) {}
  Flow execute(Interpreter& interpreter) const override;

  const Parts parts;
};

class Break final : public Statement {
 public:
  using Statement::Statement;
  Flow execute(Interpreter&) const override { return Flow::kBreak; }
};

class Continue final : public Statement {
 public:
  using Statement::Statement;
  Flow execute(Interpreter&) const override { return Flow::kContinue; }
};

class Set final : public Statement {
 public:
  Set(int line, Target to, ExpressionPtr from)
      : Statement(line), target(std::move(to)), value(std::move(from)) {}
  Flow execute(Interpreter& interpreter) const override;

  const Target target;
  const ExpressionPtr value;
};

// {% set name %}...{% endset %}; the filters begin at a Captured, or are null.
class SetBlock final : public Statement {
 public:
  SetBlock(int line, Target to, ExpressionPtr through, Block content)
      : Statement(line),
        target(std::move(to)),
        filters(std::move(through)),
        body(std::move(content)) {}
  Flow execute(Interpreter& interpreter) const override;

  const Target target;
  const ExpressionPtr filters;
  const Block body;
};

// {% filter name %}...{% endfilter %}
class FilterBlock final : public Statement {
 public:
  FilterBlock(int line, ExpressionPtr through, Block content)
      : Statement(line), filters(std::move(through)), body(std::move(content)) {}
  Flow execute(Interpreter& interpreter) const override;

  const ExpressionPtr filters;
  const Block body;
};

// {% with %}, and {% generation %}, whose marks nobody asks for here: a scope of its own.
class With final : public Statement {
 public:
  With(int line, std::vector<std::pair<Target, ExpressionPtr>> assigned, Block content)
      : Statement(line), values(std::move(assigned)), body(std::move(content)) {}
  Flow execute(Interpreter& interpreter) const override;

  const std::vector<std::pair<Target, ExpressionPtr>> values;
  const Block body;
};

// What a macro and the body of a {% call %} have.
struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Block body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

class Macro final : public Statement {
 public:
  Macro(int line, std::shared_ptr<const MacroDefinition> given)
      : Statement(line), definition(std::move(given)) {}
  Flow execute(Interpreter& interpreter) const override;

  const std::shared_ptr<const MacroDefinition> definition;
};

class CallBlock final : public Statement {
 public:
  CallBlock(int line, std::unique_ptr<const Call> callee,
            std::shared_ptr<const MacroDefinition> content)
      : Statement(line), call(std::move(callee)), caller(std::move(content)) {}
  Flow execute(Interpreter& interpreter) const override;

  const std::unique_ptr<const Call> call;
  const std::shared_ptr<const MacroDefinition> caller;
};

}  // namespace kvcache::detail::jinja
