#include "chat/code_points.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace kvcache::detail::jinja {

namespace {

utf8proc_category_t category(CodePoint code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_line_end(CodePoint code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

// Where a part, which is not empty, occurs in a text: one place after the other without overlap,
// from the left or from the right.
class Occurrences {
 public:
  Occurrences(std::string_view text, std::string_view part, bool from_right = false)
      : text_(text), part_(part), from_right_(from_right), end_(text.size()) {
    if (!reversed()) return;
    reversed_text_.assign(text.rbegin(), text.rend());
    reversed_part_.assign(part.rbegin(), part.rend());
  }

  // Where the next one begins; npos at the end.
  std::size_t next() {
    if (!from_right_) {
      const auto at = find_first(text_.substr(begin_), part_);
      if (at == std::string_view::npos) return at;
      begin_ += at + part_.size();
      return begin_ - part_.size();
    }
    if (reversed()) {
      const auto rest = std::string_view(reversed_text_).substr(text_.size() - end_);
      const auto at = find_first(rest, reversed_part_);
      if (at == std::string_view::npos) return at;
      end_ -= at + part_.size();
      return end_;
    }
    const auto at = text_.substr(0, end_).rfind(part_);
    if (at != std::string_view::npos) end_ = at;
    return at;
  }

 private:
  // From the right the library's search compares the whole part everywhere.
  bool reversed() const {
    constexpr std::size_t kShort = 16;
    return from_right_ && part_.size() > kShort;
  }

  std::string_view text_;
  std::string_view part_;
  bool from_right_;
  std::size_t begin_ = 0;
  std::size_t end_;
  std::string reversed_text_;
  std::string reversed_part_;
};

}  // namespace

std::int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

std::size_t next_boundary(std::string_view text, std::size_t offset) {
  do {
    ++offset;
  } while (offset < text.size() && (static_cast<unsigned char>(text[offset]) & 0xC0) == 0x80);
  return offset;
}

std::size_t offset_of(std::string_view text, std::int64_t index) {
  std::size_t offset = 0;
  for (; index > 0; --index) offset = next_boundary(text, offset);
  return offset;
}

bool is_space(CodePoint code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_printable(CodePoint code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

bool is_alpha(CodePoint code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(CodePoint code) { return category(code) == UTF8PROC_CATEGORY_ND; }

bool is_alphanumeric(CodePoint code) { return is_alpha(code) || is_number(code); }

bool all_of(std::string_view text, bool (*passes)(CodePoint)) {
  if (text.empty()) return false;
  for (std::size_t at = 0; at < text.size();) {
    if (!passes(next_code_point(text, at))) return false;
  }
  return true;
}

std::string_view strip(std::string_view text, Side side,
                       const std::function<bool(CodePoint)>& strips) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  if (side != Side::kRight) {
    for (std::size_t at = 0; at < end; begin = at) {
      if (!strips(next_code_point(text, at))) break;
    }
  }
  if (side != Side::kLeft) {
    for (std::size_t at = end; at > begin; end = at) {
      if (!strips(previous_code_point(text, at))) break;
    }
  }
  return text.substr(begin, end - begin);
}

std::string_view strip(std::string_view text, Side side, std::string_view characters) {
  constexpr std::size_t kFew = 16;
  std::u32string few;
  std::vector<bool> many(characters.size() > kFew ? 0x110000 : 0);
  for (std::size_t at = 0; at < characters.size();) {
    const CodePoint code = next_code_point(characters, at);
    if (many.empty()) {
      few.push_back(code);
    } else {
      many[code] = true;
    }
  }
  return strip(text, side, [&](CodePoint code) {
    return many.empty() ? few.find(code) != std::u32string::npos : many[code];
  });
}

std::size_t find_first(std::string_view text, std::string_view part) {
  if (part.size() <= 1 || part.size() > text.size()) return text.find(part);
  const void* found = memmem(text.data(), text.size(), part.data(), part.size());
  if (!found) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last(std::string_view text, std::string_view part) {
  return part.empty() ? text.size() : Occurrences(text, part, true).next();
}

void split(std::string_view text, std::string_view separator, std::int64_t limit, bool from_right,
           const PartTaker& take) {
  Occurrences separators(text, separator, from_right);
  std::size_t begin = 0;
  std::size_t end = text.size();
  for (std::int64_t splits = 0; limit < 0 || splits < limit; ++splits) {
    const auto at = separators.next();
    if (at == std::string_view::npos) break;
    const auto behind = at + separator.size();
    take(from_right ? text.substr(behind, end - behind) : text.substr(begin, at - begin));
    (from_right ? end : begin) = from_right ? at : behind;
  }
  take(text.substr(begin, end - begin));
}

void split_at_space(std::string_view text, std::int64_t limit, bool from_right,
                    const PartTaker& take) {
  const Side outer = from_right ? Side::kRight : Side::kLeft;
  const auto not_space = [](CodePoint code) { return !is_space(code); };
  std::int64_t parts = 0;
  for (text = strip(text, outer); !text.empty(); text = strip(text, outer)) {
    if (parts++ == limit) return take(text);
    const auto rest = strip(text, outer, not_space);
    const auto length = text.size() - rest.size();
    take(from_right ? text.substr(rest.size()) : text.substr(0, length));
    text = rest;
  }
}

void split_lines(std::string_view text, bool keep_ends, const PartTaker& take) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const CodePoint code = next_code_point(text, at);
    if (!is_line_end(code)) continue;
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    take(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) take(text.substr(begin));
}

std::int64_t count_occurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return count_code_points(text) + 1;
  std::int64_t count = 0;
  for (Occurrences found(text, part); found.next() != std::string_view::npos;) ++count;
  return count;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t limit) {
  std::string result;
  std::size_t at = 0;
  const auto more = [&] { return limit < 0 || limit-- > 0; };
  if (from.empty()) {
    for (; more(); at = next_boundary(text, at)) {
      result += to;
      if (at >= text.size()) return result;
      result += text.substr(at, next_boundary(text, at) - at);
    }
    return result.append(text.substr(at));
  }
  Occurrences occurrences(text, from);
  for (auto found = occurrences.next(); found != std::string_view::npos && more();
       found = occurrences.next()) {
    result.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
  return result.append(text.substr(at));
}

}  // namespace kvcache::detail::jinja
