// Oniguruma's Ruby syntax -> PCRE2's. Both are Perl-like; what differs in meaning is rewritten
// here, and what is not known to mean the same is refused. Left as it is: (?i) folds one character
// to one in PCRE2, while Oniguruma also matches a letter such as U+00DF with "ss".
#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <string_view>

#include "kvcache/core/errors.h"
#include "text/pattern.h"

namespace kvcache::detail {

namespace {

// Insides of bracket classes. Unicode's White_Space (PCRE2's own \s also has U+180E) and its
// complement.
constexpr std::string_view kSpace =
    "\\t-\\r "
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr std::string_view kNotSpace =
    "\\x00-\\x08\\x0E-\\x1F!-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"
    "\\x{3001}-\\x{10FFFF}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside brackets Oniguruma's \w also has the superscripts and fractions of Latin-1.
constexpr std::string_view kWordAlone =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (class_depth_ > 0) {
        class_member();
      } else if (c == '[') {
        open_class();
      } else if (c == '(') {
        open_group();
      } else if (c == '{') {
        interval();
      } else {
        copy(1);
      }
    }
    check_value(class_depth_ == 0, "the pattern ", in_, " has a [ without its ]");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw ValueError(
        c10::str("the pattern ", in_, " has ", what, " at byte ", at_, ", which is not supported"));
  }

  char peek(std::size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void copy(std::size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  // Writes a class escape of two characters by what it stands for.
  void expand(std::string_view members, bool negated) {
    if (class_depth_ > 0) {
      if (negated) refuse("a negated class escape inside [...]");
      out_ += members;
    } else {
      out_ += c10::str(negated ? "[^" : "[", members, "]");
    }
    at_ += 2;
  }

  void escape() {
    const char c = peek(1);
    switch (c) {
      case 's':
        return expand(kSpace, false);
      case 'S':
        return expand(kNotSpace, false);
      case 'w':
        return expand(class_depth_ > 0 ? kWord : kWordAlone, false);
      case 'W':
        return expand(kWordAlone, true);
      case 'h':
        return expand(kHexDigit, false);
      case 'H':
        return expand(kHexDigit, true);
      case 'v':  // Oniguruma's vertical tab; PCRE2's \v is a class
        out_ += "\\x0B";
        at_ += 2;
        return;
      case 'u':
        return code_point_escape();
      case 'x':
        return hex_escape();
      case 'p':
      case 'P':
        return property();
      default:
        break;
    }
    constexpr std::string_view kSame = "dDntrfae";
    constexpr std::string_view kSameOutsideClass = "AzZ";
    const bool symbol = !std::isalnum(static_cast<unsigned char>(c)) && c != '\0';
    const bool same = symbol || kSame.find(c) != std::string_view::npos ||
                      (class_depth_ == 0 && kSameOutsideClass.find(c) != std::string_view::npos);
    if (!same) refuse(c10::str("the escape \\", c));
    copy(2);
  }

  // \uHHHH
  void code_point_escape() {
    for (std::size_t i = 2; i < 6; ++i) {
      if (!std::isxdigit(static_cast<unsigned char>(peek(i))))
        refuse("\\u without four hex digits");
    }
    out_ += c10::str("\\x{", in_.substr(at_ + 2, 4), "}");
    at_ += 6;
  }

  // \x{H...} and \xHH; the latter is a byte in Oniguruma, so only ASCII means the same.
  void hex_escape() {
    if (peek(2) == '{') {
      const auto end = in_.find('}', at_);
      if (end == std::string_view::npos) refuse("\\x{ without }");
      return copy(end + 1 - at_);
    }
    const char high = peek(2);
    const bool ascii = high >= '0' && high <= '7';
    if (!ascii || !std::isxdigit(static_cast<unsigned char>(peek(3)))) refuse("\\x of a byte");
    copy(4);
  }

  // A script, e.g. \p{Han}, is PCRE2's \p{sc:Han}; \p{Han} there is the larger set of script
  // extensions.
  void property() {
    const auto end = in_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without {...}");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    constexpr std::string_view kNoScripts[] = {"Any", "Alphabetic", "Lowercase", "Uppercase",
                                               "White_Space"};
    const bool script = name.size() > 2 && std::find(std::begin(kNoScripts), std::end(kNoScripts),
                                                     name) == std::end(kNoScripts);
    out_ += c10::str("\\", in_[at_ + 1], "{", negated ? "^" : "", script ? "sc:" : "", name, "}");
    at_ = end + 1;
  }

  void open_class() {
    ++class_depth_;
    copy(peek(1) == '^' ? 2 : 1);
    if (peek(0) == ']') refuse("an empty class");
  }

  // A class within a class adds its members; so its brackets can go.
  void class_member() {
    const char c = in_[at_];
    if (c == '[') {
      if (peek(1) == '^' || peek(1) == ':' || peek(1) == ']') refuse("a nested class");
      ++class_depth_;
      ++at_;
    } else if (c == ']') {
      --class_depth_;
      if (class_depth_ == 0) out_.push_back(c);
      ++at_;
    } else if (c == '&' && peek(1) == '&') {
      refuse("an intersection of classes");
    } else {
      copy(1);
    }
  }

  void open_group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    const char kind = peek(2);
    if (kind == ':' || kind == '=' || kind == '!' || kind == '>') return copy(3);
    if (kind == '<' && (peek(3) == '=' || peek(3) == '!')) return copy(4);
    options();
  }

  // (?i:...), and (?i) where it begins the pattern (elsewhere its reach differs). Ruby's m is
  // PCRE2's s.
  void options() {
    const std::size_t begin = at_;
    std::string translated = "(?";
    for (at_ += 2; peek(0) == 'i' || peek(0) == 'm' || peek(0) == '-'; ++at_) {
      translated.push_back(peek(0) == 'm' ? 's' : peek(0));
    }
    const bool scoped = peek(0) == ':';
    const bool leading = peek(0) == ')' && begin == 0;
    if (!scoped && !leading) refuse("a group of an unknown kind");
    out_ += translated;
    copy(1);
  }

  // {n}, {n,}, {,m}, {n,m}: a following + is possessive in PCRE2, a repetition in Ruby; {n}?
  // differs too.
  void interval() {
    std::size_t end = at_ + 1;
    while (end < in_.size() && (is_digit(in_[end]) || in_[end] == ',')) ++end;
    const std::string_view bounds = in_.substr(at_ + 1, end - at_ - 1);
    if (end >= in_.size() || in_[end] != '}' || bounds.empty() || bounds == ",") {
      out_ += "\\{";  // not an interval: the character itself
      ++at_;
      return;
    }
    const char next = end + 1 < in_.size() ? in_[end + 1] : '\0';
    const bool exact = bounds.find(',') == std::string_view::npos;
    if (next == '+' || (next == '?' && exact)) refuse("a quantifier on a quantifier");
    out_ += bounds.front() == ',' ? "{0" : "{";
    ++at_;
    copy(end + 1 - at_);
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  int class_depth_ = 0;
};

}  // namespace

std::string pcre2_pattern_from_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace kvcache::detail
