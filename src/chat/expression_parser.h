// Parses the expressions of a template, with Jinja's precedence (from weak to strong):
//   if else | or | and | not | comparisons, in | + - | ~ | * / // % | ** | signs | . [] () | is
#pragma once

#include <set>

#include "chat/syntax.h"
#include "chat/token_stream.h"

namespace kvcache::detail::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  struct TupleOptions {
    bool conditional = true;      // "a if b" may stand here
    bool parenthesised = false;   // () is an empty tuple
    std::string_view end_name{};  // a name that ends the tuple
  };

  // One expression, or a tuple where there are commas.
  ExpressionPtr tuple(TupleOptions options);
  ExpressionPtr expression(bool conditional = true);
  // Filters behind a value, each after its |.
  ExpressionPtr filters(ExpressionPtr operand);
  // One filter, whose name is next.
  ExpressionPtr filter(ExpressionPtr operand);
  std::unique_ptr<const Call> call(ExpressionPtr function);

  // Names that were read (not assigned) since it was last cleared; macros look for their own.
  std::set<std::string, std::less<>> names_read;

  // Counts how deep the parser is in itself; throws ValueError if it is too deep.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr name();
  ExpressionPtr list();
  ExpressionPtr mapping();
  ExpressionPtr postfix(ExpressionPtr operand);
  ExpressionPtr filters_and_tests(ExpressionPtr operand);
  ExpressionPtr subscript(ExpressionPtr operand);
  ExpressionPtr test(ExpressionPtr operand);
  std::string dotted_name();
  CallArguments arguments();
  void argument(CallArguments& result, std::set<std::string, std::less<>>& names);

  TokenStream& stream_;
  int nesting_ = 0;
};

}  // namespace kvcache::detail::jinja
