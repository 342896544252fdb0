#include "chat/code_points.h"

#include <utf8proc.h>

#include <algorithm>

namespace kvcache::detail::jinja {

namespace {

utf8proc_category_t category(CodePoint code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_line_end(CodePoint code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

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
  std::u32string set;
  for (std::size_t at = 0; at < characters.size();) {
    set.push_back(next_code_point(characters, at));
  }
  return strip(text, side, [&](CodePoint code) { return set.find(code) != std::u32string::npos; });
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    std::int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const auto at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const auto behind = at + separator.size();
    parts.push_back(from_right ? text.substr(behind) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(behind);
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t limit,
                                             bool from_right) {
  const Side outer = from_right ? Side::kRight : Side::kLeft;
  const auto not_space = [](CodePoint code) { return !is_space(code); };
  std::vector<std::string_view> parts;
  for (text = strip(text, outer); !text.empty(); text = strip(text, outer)) {
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      break;
    }
    const auto rest = strip(text, outer, not_space);
    const auto length = text.size() - rest.size();
    parts.push_back(from_right ? text.substr(rest.size()) : text.substr(0, length));
    text = rest;
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const CodePoint code = next_code_point(text, at);
    if (!is_line_end(code)) continue;
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::int64_t count_occurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return count_code_points(text) + 1;
  std::int64_t count = 0;
  for (auto at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
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
  for (auto found = text.find(from); found != std::string_view::npos && more();
       found = text.find(from, at)) {
    result.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
  return result.append(text.substr(at));
}

}  // namespace kvcache::detail::jinja
