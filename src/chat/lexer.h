// Cuts a template into tokens, with Jinja's rules for the white space around tags as Transformers
// sets them: trim_blocks and lstrip_blocks on, one newline at the end dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::detail::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, a name, a string's value, an operator
  std::int64_t integer = 0;
  double real = 0.0;

  bool is(TokenKind expected, std::string_view expected_text) const {
    return kind == expected && text == expected_text;
  }
};

// The tokens, kEnd last. Throws ValueError with the line where the text is no template.
std::vector<Token> tokenize(std::string_view source);

// How messages name a token.
std::string describe(const Token& token);

// Throws the ValueError of a template that cannot be parsed.
[[noreturn]] void fail_at(int line, std::string_view message);

}  // namespace kvcache::detail::jinja
