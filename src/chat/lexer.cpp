#include "chat/lexer.h"

#include <array>
#include <charconv>

#include "chat/code_points.h"
#include "chat/string_literal.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

// Looking a name up takes time with its length.
constexpr std::size_t kMostNameBytes = 1000;

// As Jinja does it: every kind of line end becomes \n, and one at the end falls away.
std::string with_plain_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '\r') {
      if (at + 1 < source.size() && source[at + 1] == '\n') ++at;
      text.push_back('\n');
    } else {
      text.push_back(source[at]);
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_figure(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  bool ahead(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  bool take(std::string_view text) {
    if (!ahead(text)) return false;
    advance(text.size());
    return true;
  }
  void advance(std::size_t count) {
    for (; count > 0; --count) line_ += source_[at_++] == '\n' ? 1 : 0;
  }
  void skip_space() {
    const std::string_view rest = std::string_view(source_).substr(at_);
    advance(rest.size() - strip(rest, Side::kLeft).size());
  }
  Token& add(TokenKind kind, std::string_view text = {}) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = text;
    return tokens_.emplace_back(std::move(token));
  }

  void read_data();
  void add_data(std::string_view text, char sign, bool variable);
  void read_comment();
  bool read_raw();
  bool end_tag(bool variable);
  void read_tag(bool variable);
  void read_token();
  void read_number();
  void read_integer(std::size_t length, int base);
  void read_float(std::size_t length);
  std::size_t float_length() const;
  std::size_t digits_length(std::size_t from) const;
  void read_operator();

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  // Whether what was read last ended a line.
  bool line_starting_ = true;
  std::vector<Token> tokens_;
  std::string open_brackets_;
};

// Text up to the next tag, with the white space that the tag's marks leave of it.
void Lexer::read_data() {
  const std::string_view rest = std::string_view(source_).substr(at_);
  std::size_t found = rest.find('{');
  while (found != std::string_view::npos && found + 1 < rest.size() &&
         std::string_view("%{#").find(rest[found + 1]) == std::string_view::npos) {
    found = rest.find('{', found + 1);
  }
  if (found == std::string_view::npos || found + 1 >= rest.size()) {
    add(TokenKind::kData, rest);
    advance(rest.size());
    return;
  }
  const std::string_view data = rest.substr(0, found);
  const char kind = rest[found + 1];
  const char mark = found + 2 < rest.size() ? rest[found + 2] : '\0';
  const char sign = mark == '-' || mark == '+' ? mark : '\0';
  add_data(data, sign, kind == '{');
  advance(found);
  if (kind == '%' && read_raw()) return;
  const Token begin{kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, line_, {}};
  advance(sign == '\0' ? 2 : 3);
  if (kind == '#') return read_comment();
  tokens_.push_back(begin);
  read_tag(kind == '{');
}

void Lexer::add_data(std::string_view text, char sign, bool variable) {
  if (sign == '-') {
    text = strip(text, Side::kRight);
  } else if (sign != '+' && !variable) {
    const auto newline = text.rfind('\n');
    const auto begin = newline == std::string_view::npos ? 0 : newline + 1;
    const bool blank = strip(text.substr(begin), Side::kLeft).empty();
    if (blank && (begin > 0 || line_starting_)) text = text.substr(0, begin);
  }
  if (!text.empty()) add(TokenKind::kData, text);
}

void Lexer::read_comment() {
  const int begin = line_;
  const auto end = source_.find("#}", at_);
  if (end == std::string::npos) fail_at(begin, "a comment is not closed by #}");
  const char sign = end > at_ ? source_[end - 1] : '\0';
  advance(end + 2 - at_);
  if (sign == '-') {
    skip_space();
  } else if (sign != '+') {
    take("\n");
  }
  line_starting_ = source_[at_ - 1] == '\n';
}

// {% raw %} ... {% endraw %}, if that is what begins here.
bool Lexer::read_raw() {
  const std::size_t begin = at_;
  const int line = line_;
  advance(2);
  if (!take("-")) take("+");
  skip_space();
  const bool raw = take("raw");
  if (raw) skip_space();
  const bool strips = raw && take("-%}");
  if (!raw || (!strips && !take("%}"))) {
    at_ = begin;
    line_ = line;
    return false;
  }
  if (strips) skip_space();
  line_starting_ = source_[at_ - 1] == '\n';
  const std::size_t content = at_;
  for (auto tag = source_.find("{%", at_); tag != std::string::npos;
       tag = source_.find("{%", tag + 1)) {
    const int content_line = line_;
    advance(tag + 2 - at_);
    const char sign = take("-") ? '-' : take("+") ? '+' : '\0';
    skip_space();
    if (!take("endraw")) continue;
    skip_space();
    if (!ahead("%}") && !ahead("-%}") && !ahead("+%}")) continue;
    const int tag_line = line_;
    line_ = content_line;
    add_data(std::string_view(source_).substr(content, tag - content), sign, false);
    line_ = tag_line;
    return end_tag(false);
  }
  fail_at(line, "{% raw %} is not closed by {% endraw %}");
}

// Reads the end of a tag, if it is here.
bool Lexer::end_tag(bool variable) {
  const std::string_view mark = variable ? "}}" : "%}";
  if (take("-" + std::string(mark))) {
    skip_space();
  } else if (!variable && take("+%}")) {
    // The newline behind it stays.
  } else if (take(mark)) {
    if (!variable) take("\n");
  } else {
    return false;
  }
  line_starting_ = source_[at_ - 1] == '\n';
  return true;
}

void Lexer::read_tag(bool variable) {
  open_brackets_.clear();
  while (true) {
    if (at_ >= source_.size()) {
      // The parser says what it was looking for.
      return;
    }
    const int line = line_;
    if (open_brackets_.empty() && end_tag(variable)) {
      add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd).line = line;
      return;
    }
    read_token();
  }
}

void Lexer::read_token() {
  const char first = source_[at_];
  std::size_t end = at_;
  const CodePoint code = next_code_point(source_, end);
  if (is_space(code)) return skip_space();
  if (is_figure(first)) return read_number();
  if (first == '\'' || first == '"') {
    const auto literal = read_string_literal(std::string_view(source_).substr(at_), line_);
    add(TokenKind::kString, literal.value);
    return advance(literal.length);
  }
  if (!is_word(code)) return read_operator();
  for (std::size_t behind = at_; behind < source_.size(); end = behind) {
    if (!is_word(next_code_point(source_, behind))) break;
  }
  if (end - at_ > kMostNameBytes) {
    fail_at(line_, c10::str("a name of ", end - at_, " bytes is longer than ", kMostNameBytes));
  }
  add(TokenKind::kName, std::string_view(source_).substr(at_, end - at_));
  advance(end - at_);
}

// The length of (\d+_)*\d+ from there on.
std::size_t Lexer::digits_length(std::size_t from) const {
  std::size_t end = from;
  while (end < source_.size() && (is_figure(source_[end]) ||
                                  (source_[end] == '_' && end > from && end + 1 < source_.size() &&
                                   is_figure(source_[end + 1]) && is_figure(source_[end - 1])))) {
    ++end;
  }
  return end - from;
}

// The length of a float that begins here, or 0.
std::size_t Lexer::float_length() const {
  if (at_ > 0 && source_[at_ - 1] == '.') return 0;
  std::size_t end = at_ + digits_length(at_);
  bool is_float = false;
  if (end < source_.size() && source_[end] == '.') {
    const auto digits = digits_length(end + 1);
    if (digits > 0) {
      end += 1 + digits;
      is_float = true;
    }
  }
  if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
    std::size_t exponent = end + 1;
    if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
      ++exponent;
    }
    const auto digits = digits_length(exponent);
    if (digits > 0) return exponent + digits - at_;
  }
  return is_float ? end - at_ : 0;
}

void Lexer::read_number() {
  if (const auto length = float_length()) return read_float(length);
  if (source_[at_] == '0' && at_ + 1 < source_.size()) {
    const char kind = static_cast<char>(source_[at_ + 1] | 0x20);
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    std::size_t end = at_ + 2;
    const auto in_base = [&](char c) {
      const int value = is_figure(c) ? c - '0' : (c | 0x20) >= 'a' ? (c | 0x20) - 'a' + 10 : 99;
      return c == '_' || value < base;
    };
    while (base != 10 && end < source_.size() && in_base(source_[end])) ++end;
    if (end > at_ + 2) return read_integer(end - at_, base);
  }
  std::size_t length = digits_length(at_);
  if (source_[at_] == '0') {
    // "012" is no number: a zero, and what follows it.
    length = 1;
    while (at_ + length < source_.size() && source_[at_ + length] == '0') ++length;
  }
  read_integer(length, 10);
}

void Lexer::read_integer(std::size_t length, int base) {
  std::string figures;
  for (const char c : source_.substr(at_, length)) {
    if (c != '_') figures.push_back(c);
  }
  if (base != 10) figures.erase(0, 2);
  Token& token = add(TokenKind::kInteger, source_.substr(at_, length));
  const auto result =
      std::from_chars(figures.data(), figures.data() + figures.size(), token.integer, base);
  if (result.ec != std::errc{}) fail_at(line_, "the number " + token.text + " exceeds 64 bits");
  advance(length);
}

void Lexer::read_float(std::size_t length) {
  std::string figures;
  for (const char c : source_.substr(at_, length)) {
    if (c != '_') figures.push_back(c);
  }
  Token& token = add(TokenKind::kFloat, source_.substr(at_, length));
  const auto result = std::from_chars(figures.data(), figures.data() + figures.size(), token.real);
  if (result.ec != std::errc{}) fail_at(line_, "the number " + token.text + " is out of range");
  advance(length);
}

void Lexer::read_operator() {
  for (const auto name : kOperators) {
    if (!ahead(name)) continue;
    const auto opening = std::string_view("([{").find(name);
    const auto closing = std::string_view(")]}").find(name);
    if (opening != std::string_view::npos) open_brackets_.push_back(")]}"[opening]);
    if (closing != std::string_view::npos) {
      if (open_brackets_.empty()) fail_at(line_, c10::str("unexpected '", name, "'"));
      const char expected = open_brackets_.back();
      if (expected != name[0]) {
        fail_at(line_, c10::str("unexpected '", name, "', expected '", expected, "'"));
      }
      open_brackets_.pop_back();
    }
    add(TokenKind::kOperator, name);
    return advance(name.size());
  }
  const auto end = next_boundary(source_, at_);
  fail_at(line_, c10::str("unexpected character '", source_.substr(at_, end - at_), "'"));
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kData:
      return "text";
    case TokenKind::kBlockBegin:
      return "{%";
    case TokenKind::kBlockEnd:
      return "%}";
    case TokenKind::kVariableBegin:
      return "{{";
    case TokenKind::kVariableEnd:
      return "}}";
    default:
      return token.text;
  }
}

void fail_at(int line, std::string_view message) {
  throw ValueError(c10::str("chat template, line ", line, ": ", message));
}

}  // namespace kvcache::detail::jinja
