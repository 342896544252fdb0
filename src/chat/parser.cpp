#include "chat/parser.h"

#include <initializer_list>

#include "chat/expression_parser.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : stream_(tokenize(source)), expressions_(stream_) {}

  Block run() { return block({}); }

 private:
  Block block(Names ends);
  // The rest of the opening tag, and its body up to one of the ends, whose name is read.
  Block body(Names ends);
  std::unique_ptr<const Statement> statement(Names ends);
  std::unique_ptr<const Statement> print(int line);
  std::unique_ptr<const Statement> condition(int line);
  std::unique_ptr<const Statement> loop(int line);
  std::unique_ptr<const Statement> set(int line);
  std::unique_ptr<const Statement> macro(int line);
  std::unique_ptr<const Statement> call_block(int line);
  std::unique_ptr<const Statement> filter_block(int line);
  std::unique_ptr<const Statement> with(int line);
  std::unique_ptr<const Statement> generation(int line);
  std::unique_ptr<const Statement> loop_control(int line, bool breaks);
  Target target(bool members, std::string_view end_name = {});
  Target single_target(bool members);
  void signature(MacroDefinition& definition);
  void function_body(MacroDefinition& definition, std::string_view end);
  // A body that loops outside cannot be left from.
  Block closed_body(Names ends);

  TokenStream stream_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

Block Parser::block(Names ends) {
  const ExpressionParser::Nesting nesting(expressions_);
  Block statements;
  while (true) {
    const int line = stream_.line();
    switch (stream_.current().kind) {
      case TokenKind::kData:
        statements.push_back(std::make_unique<Data>(line, stream_.next().text));
        break;
      case TokenKind::kVariableBegin: {
        stream_.next();
        std::vector<ExpressionPtr> values;
        values.push_back(expressions_.tuple({}));
        stream_.expect(TokenKind::kVariableEnd, "}}");
        statements.push_back(std::make_unique<Print>(line, std::move(values)));
        break;
      }
      case TokenKind::kBlockBegin:
        stream_.next();
        for (const auto end : ends) {
          if (stream_.at_name(end)) return statements;
        }
        statements.push_back(statement(ends));
        stream_.expect(TokenKind::kBlockEnd, "%}");
        break;
      default:
        if (ends.size() == 0) return statements;
        stream_.fail_expected(c10::str("{% ", *(ends.end() - 1), " %}"));
    }
  }
}

Block Parser::body(Names ends) {
  stream_.skip_operator(":");
  stream_.expect(TokenKind::kBlockEnd, "%}");
  return block(ends);
}

Block Parser::closed_body(Names ends) {
  const int outer = std::exchange(loops_, 0);
  Block statements = body(ends);
  loops_ = outer;
  return statements;
}

std::unique_ptr<const Statement> Parser::statement(Names ends) {
  const Token& token = stream_.expect(TokenKind::kName, "the name of a tag");
  const int line = token.line;
  const std::string& tag = token.text;
  if (tag == "if") return condition(line);
  if (tag == "for") return loop(line);
  if (tag == "set") return set(line);
  if (tag == "macro") return macro(line);
  if (tag == "call") return call_block(line);
  if (tag == "filter") return filter_block(line);
  if (tag == "with") return with(line);
  if (tag == "generation") return generation(line);
  if (tag == "print") return print(line);
  if (tag == "break" || tag == "continue") return loop_control(line, tag == "break");
  for (const std::string_view other :
       {"include", "import", "from", "extends", "block", "autoescape"}) {
    if (tag == other) fail_at(line, "{% " + tag + " %} is not supported in chat templates");
  }
  if (ends.size() == 0) fail_at(line, "unknown tag " + tag);
  fail_at(line, c10::str("unknown tag ", tag, "; looking for ", *(ends.end() - 1)));
}

std::unique_ptr<const Statement> Parser::print(int line) {
  std::vector<ExpressionPtr> values;
  while (!stream_.at(TokenKind::kBlockEnd)) {
    if (!values.empty()) stream_.expect_operator(",");
    values.push_back(expressions_.expression());
  }
  return std::make_unique<Print>(line, std::move(values));
}

std::unique_ptr<const Statement> Parser::condition(int line) {
  std::vector<If::Branch> branches;
  while (true) {
    If::Branch branch;
    branch.condition = expressions_.tuple({.conditional = false});
    branch.body = body({"elif", "else", "endif"});
    branches.push_back(std::move(branch));
    if (!stream_.skip_name("elif")) break;
  }
  Block otherwise;
  if (stream_.skip_name("else")) otherwise = body({"endif"});
  stream_.expect_name("endif");
  return std::make_unique<If>(line, std::move(branches), std::move(otherwise));
}

std::unique_ptr<const Statement> Parser::loop(int line) {
  For::Parts parts;
  parts.target = target(false, "in");
  stream_.expect_name("in");
  parts.iterable = expressions_.tuple({.conditional = false, .end_name = "recursive"});
  if (stream_.skip_name("if")) parts.condition = expressions_.expression();
  if (stream_.at_name("recursive")) {
    fail_at(stream_.line(), "recursive loops are not supported; use a macro that calls itself");
  }
  ++loops_;
  parts.body = body({"else", "endfor"});
  --loops_;
  if (stream_.skip_name("else")) parts.otherwise = body({"endfor"});
  stream_.expect_name("endfor");
  return std::make_unique<For>(line, std::move(parts));
}

std::unique_ptr<const Statement> Parser::loop_control(int line, bool breaks) {
  if (loops_ == 0) fail_at(line, c10::str(breaks ? "break" : "continue", " outside a loop"));
  if (breaks) return std::make_unique<Break>(line);
  return std::make_unique<Continue>(line);
}

Target Parser::single_target(bool members) {
  const Token token = stream_.next();
  Target result;
  if (token.is(TokenKind::kOperator, "(")) {
    result = target(members);
    stream_.expect_operator(")");
    return result;
  }
  const auto& name = token.text;
  if (token.kind != TokenKind::kName) fail_at(token.line, "cannot assign to " + describe(token));
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) fail_at(token.line, "cannot assign to " + name);
  }
  result.name = name;
  if (members && stream_.skip_operator(".")) {
    result.member = stream_.expect(TokenKind::kName, "a name").text;
  }
  return result;
}

// One target, or several with commas between them.
Target Parser::target(bool members, std::string_view end_name) {
  const ExpressionParser::Nesting nesting(expressions_);
  Target result = single_target(members);
  if (!stream_.at_operator(",")) return result;
  Target all;
  all.tuple = true;
  all.parts.push_back(std::move(result));
  while (stream_.skip_operator(",")) {
    const bool ends = stream_.at_operator(")") || stream_.at(TokenKind::kBlockEnd) ||
                      stream_.at_operator("=") || (!end_name.empty() && stream_.at_name(end_name));
    if (ends) break;
    all.parts.push_back(single_target(members));
  }
  return all;
}

std::unique_ptr<const Statement> Parser::set(int line) {
  Target assigned = target(true);
  if (stream_.skip_operator("=")) {
    return std::make_unique<Set>(line, std::move(assigned), expressions_.tuple({}));
  }
  ExpressionPtr filters;
  if (stream_.at_operator("|")) filters = expressions_.filters(std::make_unique<Captured>(line));
  Block content = closed_body({"endset"});
  stream_.expect_name("endset");
  return std::make_unique<SetBlock>(line, std::move(assigned), std::move(filters),
                                    std::move(content));
}

void Parser::signature(MacroDefinition& definition) {
  stream_.expect_operator("(");
  while (!stream_.at_operator(")")) {
    if (!definition.parameters.empty()) stream_.expect_operator(",");
    const Token& parameter = stream_.expect(TokenKind::kName, "a parameter's name");
    definition.parameters.push_back(parameter.text);
    if (stream_.skip_operator("=")) {
      definition.defaults.push_back(expressions_.expression());
    } else if (!definition.defaults.empty()) {
      fail_at(parameter.line, "a parameter without a default follows one with a default");
    }
  }
  stream_.expect_operator(")");
}

void Parser::function_body(MacroDefinition& definition, std::string_view end) {
  auto outer = std::exchange(expressions_.names_read, {});
  definition.body = closed_body({end});
  stream_.expect_name(end);
  auto& names = expressions_.names_read;
  definition.uses_caller = names.contains("caller");
  definition.uses_varargs = names.contains("varargs");
  definition.uses_kwargs = names.contains("kwargs");
  // The smaller into the larger: else many macros beside many names would take long.
  if (names.size() < outer.size()) names.swap(outer);
  names.merge(outer);
}

std::unique_ptr<const Statement> Parser::macro(int line) {
  auto definition = std::make_shared<MacroDefinition>();
  definition->name = stream_.expect(TokenKind::kName, "the macro's name").text;
  signature(*definition);
  function_body(*definition, "endmacro");
  return std::make_unique<Macro>(line, std::move(definition));
}

std::unique_ptr<const Statement> Parser::call_block(int line) {
  auto definition = std::make_shared<MacroDefinition>();
  definition->name = "caller";
  if (stream_.at_operator("(")) signature(*definition);
  ExpressionPtr called = expressions_.expression();
  const auto* call = dynamic_cast<const Call*>(called.get());
  if (!call) fail_at(line, "expected a call");
  called.release();
  std::unique_ptr<const Call> owned(call);
  function_body(*definition, "endcall");
  return std::make_unique<CallBlock>(line, std::move(owned), std::move(definition));
}

std::unique_ptr<const Statement> Parser::filter_block(int line) {
  ExpressionPtr filters = expressions_.filter(std::make_unique<Captured>(line));
  filters = expressions_.filters(std::move(filters));
  Block content = closed_body({"endfilter"});
  stream_.expect_name("endfilter");
  return std::make_unique<FilterBlock>(line, std::move(filters), std::move(content));
}

std::unique_ptr<const Statement> Parser::with(int line) {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  while (!stream_.at(TokenKind::kBlockEnd)) {
    if (!values.empty()) stream_.expect_operator(",");
    Target assigned = single_target(false);
    stream_.expect_operator("=");
    values.emplace_back(std::move(assigned), expressions_.expression());
  }
  Block content = body({"endwith"});
  stream_.expect_name("endwith");
  return std::make_unique<With>(line, std::move(values), std::move(content));
}

std::unique_ptr<const Statement> Parser::generation(int line) {
  Block content = closed_body({"endgeneration"});
  stream_.expect_name("endgeneration");
  return std::make_unique<With>(line, std::vector<std::pair<Target, ExpressionPtr>>(),
                                std::move(content));
}

}  // namespace

Block parse(std::string_view source) {
  check_value(source.size() <= kMostSourceBytes, "the chat template is ", source.size(),
              " bytes long; at most ", kMostSourceBytes, " are read");
  return Parser(source).run();
}

}  // namespace kvcache::detail::jinja
