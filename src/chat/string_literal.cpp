#include "chat/string_literal.h"

#include <charconv>

#include "chat/lexer.h"
#include "kvcache/core/errors.h"
#include "text/unicode.h"

namespace kvcache::detail::jinja {

namespace {

constexpr std::string_view kEscapes = "\n\\'\"abfnrtv";
constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";

bool is_octal(char c) { return c >= '0' && c <= '7'; }

class Reader {
 public:
  Reader(std::string_view text, int line) : text_(text), line_(line) {}

  StringLiteral run() {
    const char quote = text_[0];
    at_ = 1;
    while (true) {
      if (at_ >= text_.size()) fail_at(line_, "a string is not closed");
      const char c = text_[at_++];
      if (c == quote) return {std::move(value_), at_};
      if (c != '\\') {
        value_.push_back(c);
      } else if (at_ < text_.size()) {
        read_escape();
      }
    }
  }

 private:
  void read_escape() {
    const char c = text_[at_++];
    const auto plain = kEscapes.find(c);
    if (plain == 0) return;  // a line that goes on
    if (plain != std::string_view::npos) return value_.push_back(kMeanings[plain - 1]);
    if (is_octal(c)) return read_octal();
    if (c == 'x') return read_hexadecimal(2);
    if (c == 'u') return read_hexadecimal(4);
    if (c == 'U') return read_hexadecimal(8);
    if (c == 'N') fail_at(line_, "characters by name (\\N{...}) are not supported; write \\u....");
    value_.push_back('\\');
    value_.push_back(c);
  }

  void read_octal() {
    CodePoint code = 0;
    --at_;
    for (int i = 0; i < 3 && at_ < text_.size() && is_octal(text_[at_]); ++i) {
      code = code * 8 + static_cast<CodePoint>(text_[at_++] - '0');
    }
    append_code_point(value_, code);
  }

  void read_hexadecimal(std::size_t digits) {
    const auto figures = text_.substr(at_, digits);
    std::uint32_t code = 0;
    const auto* end = figures.data() + figures.size();
    const auto result = std::from_chars(figures.data(), end, code, 16);
    if (figures.size() < digits || result.ptr != end) {
      fail_at(line_, c10::str("an escape in a string needs ", digits, " hexadecimal digits"));
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail_at(line_, c10::str("the escape \\u", figures, " in a string is no character"));
    }
    at_ += digits;
    append_code_point(value_, code);
  }

  std::string_view text_;
  int line_;
  std::size_t at_ = 0;
  std::string value_;
};

}  // namespace

StringLiteral read_string_literal(std::string_view text, int line) {
  return Reader(text, line).run();
}

}  // namespace kvcache::detail::jinja
