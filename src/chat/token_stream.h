// The tokens of a template as a parser reads them.
#pragma once

#include "chat/lexer.h"

namespace kvcache::detail::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  // Returns the current token and moves on; the end stays.
  const Token& next() {
    const Token& token = current();
    if (token.kind != TokenKind::kEnd) ++at_;
    return token;
  }

  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_name(std::string_view name) const { return current().is(TokenKind::kName, name); }
  bool at_operator(std::string_view sign) const { return current().is(TokenKind::kOperator, sign); }
  bool skip_name(std::string_view name) { return skip(at_name(name)); }
  bool skip_operator(std::string_view sign) { return skip(at_operator(sign)); }

  const Token& expect(TokenKind kind, std::string_view what) {
    if (!at(kind)) fail_expected(what);
    return next();
  }
  void expect_operator(std::string_view sign) {
    if (!skip_operator(sign)) fail_expected(sign);
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected(name);
  }
  [[noreturn]] void fail_expected(std::string_view what) const {
    fail_at(line(), "expected " + std::string(what) + ", found " + describe(current()));
  }

 private:
  bool skip(bool found) {
    if (found) next();
    return found;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace kvcache::detail::jinja
