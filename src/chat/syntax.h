// A template as a tree. Nodes evaluate themselves in an Interpreter; they are immutable.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace kvcache::detail::jinja {

class Interpreter;

// How deep expressions may nest, and how deep blocks: evaluating and destroying them recurse.
inline constexpr int kMaxNesting = 100;

class Expression {
 public:
  // Throws ValueError with the line if the expression nests too deep.
  Expression(int line, int depth_below);
  virtual ~Expression() = default;
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

  // Called through Interpreter::evaluate, which counts steps and keeps the line.
  virtual Value evaluate(Interpreter& interpreter) const = 0;

  int line() const { return line_; }
  int depth() const { return depth_; }

 private:
  int line_;
  int depth_;
};

using ExpressionPtr = std::unique_ptr<const Expression>;

inline int deepest(const ExpressionPtr& child) { return child ? child->depth() : 0; }
inline int deepest(const std::vector<ExpressionPtr>& children) {
  int depth = 0;
  for (const auto& child : children) depth = std::max(depth, child->depth());
  return depth;
}
inline int deepest(const std::pair<std::string, ExpressionPtr>& child) {
  return deepest(child.second);
}
inline int deepest(const std::pair<ExpressionPtr, ExpressionPtr>& child) {
  return std::max(deepest(child.first), deepest(child.second));
}
template <typename Pair>
int deepest(const std::vector<Pair>& children) {
  int depth = 0;
  for (const auto& child : children) depth = std::max(depth, deepest(child));
  return depth;
}
template <typename First, typename... Rest>
requires(sizeof...(Rest) > 0) int deepest(const First& first, const Rest&... rest) {
  return std::max(deepest(first), deepest(rest...));
}

// What stands between the parentheses of a call.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *sequence
  ExpressionPtr more_named;       // **mapping
};
inline int deepest(const CallArguments& arguments) {
  return deepest(arguments.positional, arguments.named, arguments.more_positional,
                 arguments.more_named);
}

class Constant final : public Expression {
 public:
  Constant(int line, Value given) : Expression(line, 0), value(std::move(given)) {}
  Value evaluate(Interpreter&) const override { return value; }

  const Value value;
};

class Name final : public Expression {
 public:
  Name(int line, std::string given) : Expression(line, 0), name(std::move(given)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const std::string name;
};

// The text that a filter or set block holds, where its filters begin.
class Captured final : public Expression {
 public:
  explicit Captured(int line) : Expression(line, 0) {}
  Value evaluate(Interpreter& interpreter) const override;
};

class Sequence final : public Expression {
 public:
  Sequence(int line, std::vector<ExpressionPtr> elements, bool is_tuple)
      : Expression(line, deepest(elements)), items(std::move(elements)), tuple(is_tuple) {}
  Value evaluate(Interpreter& interpreter) const override;

  const std::vector<ExpressionPtr> items;
  const bool tuple;
};

class Mapping final : public Expression {
 public:
  using Entries = std::vector<std::pair<ExpressionPtr, ExpressionPtr>>;
  Mapping(int line, Entries given) : Expression(line, deepest(given)), entries(std::move(given)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const Entries entries;
};

// not, and the signs.
class Unary final : public Expression {
 public:
  Unary(int line, std::string operation, ExpressionPtr of)
      : Expression(line, deepest(of)), sign(std::move(operation)), operand(std::move(of)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const std::string sign;
  const ExpressionPtr operand;
};

// Arithmetic, "and" and "or".
class Binary final : public Expression {
 public:
  Binary(std::string operation, ExpressionPtr first, ExpressionPtr second)
      : Expression(first->line(), deepest(first, second)),
        sign(std::move(operation)),
        left(std::move(first)),
        right(std::move(second)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const std::string sign;
  const ExpressionPtr left;
  const ExpressionPtr right;
};

// a ~ b ~ c
class Concatenation final : public Expression {
 public:
  Concatenation(int line, std::vector<ExpressionPtr> parts)
      : Expression(line, deepest(parts)), items(std::move(parts)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const std::vector<ExpressionPtr> items;
};

// a < b <= c: chained as in Python; also "in" and "not in".
class Comparison final : public Expression {
 public:
  using Operands = std::vector<std::pair<std::string, ExpressionPtr>>;
  Comparison(ExpressionPtr left, Operands others)
      : Expression(left->line(), deepest(left, others)),
        first(std::move(left)),
        rest(std::move(others)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr first;
  const Operands rest;
};

// a if condition else b
class Conditional final : public Expression {
 public:
  Conditional(ExpressionPtr when, ExpressionPtr value, ExpressionPtr other)
      : Expression(value->line(), deepest(when, value, other)),
        condition(std::move(when)),
        then(std::move(value)),
        otherwise(std::move(other)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr condition;
  const ExpressionPtr then;
  const ExpressionPtr otherwise;  // may be null
};

// a.name
class Member final : public Expression {
 public:
  Member(int line, ExpressionPtr of, std::string member)
      : Expression(line, deepest(of)), object(std::move(of)), name(std::move(member)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr object;
  const std::string name;
};

// a[index]
class Item final : public Expression {
 public:
  Item(int line, ExpressionPtr of, ExpressionPtr at)
      : Expression(line, deepest(of, at)), object(std::move(of)), index(std::move(at)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr object;
  const ExpressionPtr index;
};

// a[start:stop:step]; parts may be null.
class Slice final : public Expression {
 public:
  Slice(int line, ExpressionPtr of, std::vector<ExpressionPtr> bounds)
      : Expression(line, std::max({deepest(of), deepest(bounds[0]), deepest(bounds[1]),
                                   deepest(bounds[2])})),
        object(std::move(of)),
        parts(std::move(bounds)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr object;
  const std::vector<ExpressionPtr> parts;
};

class Call final : public Expression {
 public:
  Call(int line, ExpressionPtr callee, CallArguments given)
      : Expression(line, deepest(callee, given)),
        function(std::move(callee)),
        arguments(std::move(given)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr function;
  const CallArguments arguments;
};

// value|name(arguments)
class FilterCall final : public Expression {
 public:
  FilterCall(int line, ExpressionPtr value, std::string filter, CallArguments given)
      : Expression(line, deepest(value, given)),
        operand(std::move(value)),
        name(std::move(filter)),
        arguments(std::move(given)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr operand;
  const std::string name;
  const CallArguments arguments;
};

// value is name(arguments)
class TestCall final : public Expression {
 public:
  TestCall(int line, ExpressionPtr value, std::string test, CallArguments given)
      : Expression(line, deepest(value, given)),
        operand(std::move(value)),
        name(std::move(test)),
        arguments(std::move(given)) {}
  Value evaluate(Interpreter& interpreter) const override;

  const ExpressionPtr operand;
  const std::string name;
  const CallArguments arguments;
};

}  // namespace kvcache::detail::jinja
