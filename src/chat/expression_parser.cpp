#include "chat/expression_parser.h"

#include <array>

#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

Expression::Expression(int line, int depth_below) : line_(line), depth_(depth_below + 1) {
  if (depth_ > 2 * kMaxNesting) {
    fail_at(line, c10::str("an expression nests deeper than ", 2 * kMaxNesting, " levels"));
  }
}

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) {
    fail_at(parser_.stream_.line(),
            c10::str("the template nests deeper than ", kMaxNesting, " levels"));
  }
  ++parser_.nesting_;
}

ExpressionPtr ExpressionParser::tuple(TupleOptions options) {
  const int line = stream_.line();
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) stream_.expect_operator(",");
    const bool ends = stream_.at(TokenKind::kVariableEnd) || stream_.at(TokenKind::kBlockEnd) ||
                      stream_.at_operator(")") ||
                      (!options.end_name.empty() && stream_.at_name(options.end_name));
    if (ends) break;
    items.push_back(expression(options.conditional));
    if (!stream_.at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !options.parenthesised) stream_.fail_expected("an expression");
  return std::make_unique<Sequence>(line, std::move(items), true);
}

ExpressionPtr ExpressionParser::expression(bool conditional) {
  const Nesting nesting(*this);
  ExpressionPtr value = disjunction();
  while (conditional && stream_.skip_name("if")) {
    ExpressionPtr condition = disjunction();
    ExpressionPtr otherwise;
    if (stream_.skip_name("else")) otherwise = expression();
    value =
        std::make_unique<Conditional>(std::move(condition), std::move(value), std::move(otherwise));
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (stream_.skip_name("or")) {
    left = std::make_unique<Binary>("or", std::move(left), conjunction());
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (stream_.skip_name("and")) {
    left = std::make_unique<Binary>("and", std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  const int line = stream_.line();
  if (!stream_.skip_name("not")) return comparison();
  const Nesting nesting(*this);
  return std::make_unique<Unary>(line, "not", negation());
}

ExpressionPtr ExpressionParser::comparison() {
  constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr left = sum();
  Comparison::Operands operands;
  while (true) {
    std::string sign;
    if (stream_.at(TokenKind::kOperator) &&
        std::find(kSigns.begin(), kSigns.end(), stream_.current().text) != kSigns.end()) {
      sign = stream_.next().text;
    } else if (stream_.skip_name("in")) {
      sign = "in";
    } else if (stream_.at_name("not") && stream_.ahead().is(TokenKind::kName, "in")) {
      stream_.next();
      stream_.next();
      sign = "not in";
    } else {
      break;
    }
    operands.emplace_back(std::move(sign), sum());
  }
  if (operands.empty()) return left;
  return std::make_unique<Comparison>(std::move(left), std::move(operands));
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (stream_.at_operator("+") || stream_.at_operator("-")) {
    std::string sign = stream_.next().text;
    left = std::make_unique<Binary>(std::move(sign), std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = stream_.line();
  std::vector<ExpressionPtr> items;
  items.push_back(product());
  while (stream_.skip_operator("~")) items.push_back(product());
  if (items.size() == 1) return std::move(items.front());
  return std::make_unique<Concatenation>(line, std::move(items));
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  while (stream_.at_operator("*") || stream_.at_operator("/") || stream_.at_operator("//") ||
         stream_.at_operator("%")) {
    std::string sign = stream_.next().text;
    left = std::make_unique<Binary>(std::move(sign), std::move(left), power());
  }
  return left;
}

// From left to right, as Jinja has it.
ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary();
  while (stream_.skip_operator("**")) {
    left = std::make_unique<Binary>("**", std::move(left), unary());
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Nesting nesting(*this);
  const int line = stream_.line();
  ExpressionPtr operand;
  if (stream_.at_operator("-") || stream_.at_operator("+")) {
    std::string sign = stream_.next().text;
    operand = std::make_unique<Unary>(line, std::move(sign), unary(false));
  } else {
    operand = primary();
  }
  operand = postfix(std::move(operand));
  return with_filters ? filters_and_tests(std::move(operand)) : std::move(operand);
}

ExpressionPtr ExpressionParser::primary() {
  const int line = stream_.line();
  switch (stream_.current().kind) {
    case TokenKind::kName:
      return name();
    case TokenKind::kString: {
      std::string text = stream_.next().text;
      while (stream_.at(TokenKind::kString)) text += stream_.next().text;
      return std::make_unique<Constant>(line, Value::text(std::move(text)));
    }
    case TokenKind::kInteger:
      return std::make_unique<Constant>(line, Value::integer(stream_.next().integer));
    case TokenKind::kFloat:
      return std::make_unique<Constant>(line, Value::real(stream_.next().real));
    default:
      break;
  }
  if (stream_.at_operator("[")) return list();
  if (stream_.at_operator("{")) return mapping();
  if (!stream_.skip_operator("(")) stream_.fail_expected("an expression");
  ExpressionPtr value = tuple({.parenthesised = true});
  stream_.expect_operator(")");
  return value;
}

ExpressionPtr ExpressionParser::name() {
  const Token& token = stream_.next();
  const std::string& text = token.text;
  if (text == "true" || text == "True") {
    return std::make_unique<Constant>(token.line, Value::boolean(true));
  }
  if (text == "false" || text == "False") {
    return std::make_unique<Constant>(token.line, Value::boolean(false));
  }
  if (text == "none" || text == "None") return std::make_unique<Constant>(token.line, Value());
  names_read.insert(text);
  return std::make_unique<Name>(token.line, text);
}

ExpressionPtr ExpressionParser::list() {
  const int line = stream_.line();
  stream_.expect_operator("[");
  std::vector<ExpressionPtr> items;
  while (!stream_.at_operator("]")) {
    if (!items.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("]")) break;
    items.push_back(expression());
  }
  stream_.expect_operator("]");
  return std::make_unique<Sequence>(line, std::move(items), false);
}

ExpressionPtr ExpressionParser::mapping() {
  const int line = stream_.line();
  stream_.expect_operator("{");
  Mapping::Entries entries;
  while (!stream_.at_operator("}")) {
    if (!entries.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("}")) break;
    ExpressionPtr key = expression();
    stream_.expect_operator(":");
    entries.emplace_back(std::move(key), expression());
  }
  stream_.expect_operator("}");
  return std::make_unique<Mapping>(line, std::move(entries));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr operand) {
  while (true) {
    if (stream_.at_operator(".") || stream_.at_operator("[")) {
      operand = subscript(std::move(operand));
    } else if (stream_.at_operator("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr operand) {
  while (true) {
    if (stream_.at_operator("|")) {
      operand = filters(std::move(operand));
    } else if (stream_.at_name("is")) {
      operand = test(std::move(operand));
    } else if (stream_.at_operator("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr operand) {
  const int line = stream_.line();
  if (stream_.skip_operator(".")) {
    const Token& member = stream_.next();
    if (member.kind == TokenKind::kName) {
      return std::make_unique<Member>(line, std::move(operand), member.text);
    }
    if (member.kind != TokenKind::kInteger) fail_at(line, "expected a name or number behind a dot");
    auto index = std::make_unique<Constant>(line, Value::integer(member.integer));
    return std::make_unique<Item>(line, std::move(operand), std::move(index));
  }
  stream_.expect_operator("[");
  const auto bound = [&]() -> ExpressionPtr {
    const bool absent =
        stream_.at_operator(":") || stream_.at_operator("]") || stream_.at_operator(",");
    return absent ? nullptr : expression();
  };
  ExpressionPtr index = bound();
  std::vector<ExpressionPtr> parts;
  if (stream_.skip_operator(":")) {
    parts.push_back(std::move(index));
    parts.push_back(bound());
    parts.push_back(stream_.skip_operator(":") ? bound() : nullptr);
  } else if (!index) {
    stream_.fail_expected("an index");
  } else if (stream_.at_operator(",")) {
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(index));
    while (stream_.skip_operator(",")) items.push_back(expression());
    index = std::make_unique<Sequence>(line, std::move(items), true);
  }
  stream_.expect_operator("]");
  if (!parts.empty()) return std::make_unique<Slice>(line, std::move(operand), std::move(parts));
  return std::make_unique<Item>(line, std::move(operand), std::move(index));
}

std::string ExpressionParser::dotted_name() {
  std::string text = stream_.expect(TokenKind::kName, "a name").text;
  while (stream_.skip_operator(".")) {
    text += "." + stream_.expect(TokenKind::kName, "a name").text;
  }
  return text;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr operand) {
  while (stream_.skip_operator("|")) operand = filter(std::move(operand));
  return operand;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr operand) {
  const int line = stream_.line();
  std::string filter_name = dotted_name();
  CallArguments given;
  if (stream_.at_operator("(")) given = arguments();
  return std::make_unique<FilterCall>(line, std::move(operand), std::move(filter_name),
                                      std::move(given));
}

ExpressionPtr ExpressionParser::test(ExpressionPtr operand) {
  const int line = stream_.line();
  stream_.expect_name("is");
  const bool negated = stream_.skip_name("not");
  std::string test_name = dotted_name();
  CallArguments given;
  const bool literal = stream_.at(TokenKind::kName) || stream_.at(TokenKind::kString) ||
                       stream_.at(TokenKind::kInteger) || stream_.at(TokenKind::kFloat) ||
                       stream_.at_operator("[") || stream_.at_operator("{");
  const bool goes_on = stream_.at_name("else") || stream_.at_name("or") || stream_.at_name("and");
  if (stream_.at_operator("(")) {
    given = arguments();
  } else if (literal && !goes_on) {
    if (stream_.at_name("is")) fail_at(line, "several tests cannot be chained with is");
    given.positional.push_back(postfix(primary()));
  }
  ExpressionPtr result =
      std::make_unique<TestCall>(line, std::move(operand), std::move(test_name), std::move(given));
  if (negated) result = std::make_unique<Unary>(line, "not", std::move(result));
  return result;
}

std::unique_ptr<const Call> ExpressionParser::call(ExpressionPtr function) {
  const int line = stream_.line();
  return std::make_unique<Call>(line, std::move(function), arguments());
}

CallArguments ExpressionParser::arguments() {
  stream_.expect_operator("(");
  CallArguments result;
  std::set<std::string, std::less<>> names;
  bool first = true;
  while (!stream_.at_operator(")")) {
    if (!first) {
      stream_.expect_operator(",");
      if (stream_.at_operator(")")) break;
    }
    first = false;
    argument(result, names);
  }
  stream_.expect_operator(")");
  return result;
}

void ExpressionParser::argument(CallArguments& result, std::set<std::string, std::less<>>& names) {
  const int line = stream_.line();
  const auto ensure = [&](bool condition) {
    if (!condition) fail_at(line, "arguments of a call stand in a wrong order");
  };
  if (stream_.skip_operator("*")) {
    ensure(!result.more_positional && !result.more_named);
    result.more_positional = expression();
  } else if (stream_.skip_operator("**")) {
    ensure(!result.more_named);
    result.more_named = expression();
  } else if (stream_.at(TokenKind::kName) && stream_.ahead().is(TokenKind::kOperator, "=")) {
    ensure(!result.more_named);
    std::string parameter = stream_.next().text;
    stream_.next();
    if (!names.insert(parameter).second) {
      fail_at(line, "the argument " + parameter + " is given twice");
    }
    result.named.emplace_back(std::move(parameter), expression());
  } else {
    ensure(!result.more_positional && !result.more_named && result.named.empty());
    result.positional.push_back(expression());
  }
}

}  // namespace kvcache::detail::jinja
