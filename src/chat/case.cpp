// Python's case mappings: Unicode's full ones, with the final sigma as the only context.
#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "chat/code_points.h"

namespace kvcache::detail::jinja {

namespace {

// SpecialCasing.txt: characters whose upper or title case is several.
struct Expansion {
  CodePoint code;
  std::u32string_view upper;
  std::u32string_view title;
};

constexpr std::array<Expansion, 102> kExpansions = {
    {{0xDF, U"SS", U"Ss"},
     {0x149, U"\u02BCN", U"\u02BCN"},
     {0x1F0, U"J\u030C", U"J\u030C"},
     {0x390, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
     {0x3B0, U"\u03A5\u0308\u0301", U"\u03A5\u0308\u0301"},
     {0x587, U"\u0535\u0552", U"\u0535\u0582"},
     {0x1E96, U"H\u0331", U"H\u0331"},
     {0x1E97, U"T\u0308", U"T\u0308"},
     {0x1E98, U"W\u030A", U"W\u030A"},
     {0x1E99, U"Y\u030A", U"Y\u030A"},
     {0x1E9A, U"A\u02BE", U"A\u02BE"},
     {0x1F50, U"\u03A5\u0313", U"\u03A5\u0313"},
     {0x1F52, U"\u03A5\u0313\u0300", U"\u03A5\u0313\u0300"},
     {0x1F54, U"\u03A5\u0313\u0301", U"\u03A5\u0313\u0301"},
     {0x1F56, U"\u03A5\u0313\u0342", U"\u03A5\u0313\u0342"},
     {0x1F80, U"\u1F08\u0399", U"\u1F88"},
     {0x1F81, U"\u1F09\u0399", U"\u1F89"},
     {0x1F82, U"\u1F0A\u0399", U"\u1F8A"},
     {0x1F83, U"\u1F0B\u0399", U"\u1F8B"},
     {0x1F84, U"\u1F0C\u0399", U"\u1F8C"},
     {0x1F85, U"\u1F0D\u0399", U"\u1F8D"},
     {0x1F86, U"\u1F0E\u0399", U"\u1F8E"},
     {0x1F87, U"\u1F0F\u0399", U"\u1F8F"},
     {0x1F88, U"\u1F08\u0399", U"\u1F88"},
     {0x1F89, U"\u1F09\u0399", U"\u1F89"},
     {0x1F8A, U"\u1F0A\u0399", U"\u1F8A"},
     {0x1F8B, U"\u1F0B\u0399", U"\u1F8B"},
     {0x1F8C, U"\u1F0C\u0399", U"\u1F8C"},
     {0x1F8D, U"\u1F0D\u0399", U"\u1F8D"},
     {0x1F8E, U"\u1F0E\u0399", U"\u1F8E"},
     {0x1F8F, U"\u1F0F\u0399", U"\u1F8F"},
     {0x1F90, U"\u1F28\u0399", U"\u1F98"},
     {0x1F91, U"\u1F29\u0399", U"\u1F99"},
     {0x1F92, U"\u1F2A\u0399", U"\u1F9A"},
     {0x1F93, U"\u1F2B\u0399", U"\u1F9B"},
     {0x1F94, U"\u1F2C\u0399", U"\u1F9C"},
     {0x1F95, U"\u1F2D\u0399", U"\u1F9D"},
     {0x1F96, U"\u1F2E\u0399", U"\u1F9E"},
     {0x1F97, U"\u1F2F\u0399", U"\u1F9F"},
     {0x1F98, U"\u1F28\u0399", U"\u1F98"},
     {0x1F99, U"\u1F29\u0399", U"\u1F99"},
     {0x1F9A, U"\u1F2A\u0399", U"\u1F9A"},
     {0x1F9B, U"\u1F2B\u0399", U"\u1F9B"},
     {0x1F9C, U"\u1F2C\u0399", U"\u1F9C"},
     {0x1F9D, U"\u1F2D\u0399", U"\u1F9D"},
     {0x1F9E, U"\u1F2E\u0399", U"\u1F9E"},
     {0x1F9F, U"\u1F2F\u0399", U"\u1F9F"},
     {0x1FA0, U"\u1F68\u0399", U"\u1FA8"},
     {0x1FA1, U"\u1F69\u0399", U"\u1FA9"},
     {0x1FA2, U"\u1F6A\u0399", U"\u1FAA"},
     {0x1FA3, U"\u1F6B\u0399", U"\u1FAB"},
     {0x1FA4, U"\u1F6C\u0399", U"\u1FAC"},
     {0x1FA5, U"\u1F6D\u0399", U"\u1FAD"},
     {0x1FA6, U"\u1F6E\u0399", U"\u1FAE"},
     {0x1FA7, U"\u1F6F\u0399", U"\u1FAF"},
     {0x1FA8, U"\u1F68\u0399", U"\u1FA8"},
     {0x1FA9, U"\u1F69\u0399", U"\u1FA9"},
     {0x1FAA, U"\u1F6A\u0399", U"\u1FAA"},
     {0x1FAB, U"\u1F6B\u0399", U"\u1FAB"},
     {0x1FAC, U"\u1F6C\u0399", U"\u1FAC"},
     {0x1FAD, U"\u1F6D\u0399", U"\u1FAD"},
     {0x1FAE, U"\u1F6E\u0399", U"\u1FAE"},
     {0x1FAF, U"\u1F6F\u0399", U"\u1FAF"},
     {0x1FB2, U"\u1FBA\u0399", U"\u1FBA\u0345"},
     {0x1FB3, U"\u0391\u0399", U"\u1FBC"},
     {0x1FB4, U"\u0386\u0399", U"\u0386\u0345"},
     {0x1FB6, U"\u0391\u0342", U"\u0391\u0342"},
     {0x1FB7, U"\u0391\u0342\u0399", U"\u0391\u0342\u0345"},
     {0x1FBC, U"\u0391\u0399", U"\u1FBC"},
     {0x1FC2, U"\u1FCA\u0399", U"\u1FCA\u0345"},
     {0x1FC3, U"\u0397\u0399", U"\u1FCC"},
     {0x1FC4, U"\u0389\u0399", U"\u0389\u0345"},
     {0x1FC6, U"\u0397\u0342", U"\u0397\u0342"},
     {0x1FC7, U"\u0397\u0342\u0399", U"\u0397\u0342\u0345"},
     {0x1FCC, U"\u0397\u0399", U"\u1FCC"},
     {0x1FD2, U"\u0399\u0308\u0300", U"\u0399\u0308\u0300"},
     {0x1FD3, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
     {0x1FD6, U"\u0399\u0342", U"\u0399\u0342"},
     {0x1FD7, U"\u0399\u0308\u0342", U"\u0399\u0308\u0342"},
     {0x1FE2, U"\u03A5\u0308\u0300", U"\u03A5\u0308\u0300"},
     {0x1FE3, U"\u03A5\u0308\u0301", U"\u03A5\u0308\u0301"},
     {0x1FE4, U"\u03A1\u0313", U"\u03A1\u0313"},
     {0x1FE6, U"\u03A5\u0342", U"\u03A5\u0342"},
     {0x1FE7, U"\u03A5\u0308\u0342", U"\u03A5\u0308\u0342"},
     {0x1FF2, U"\u1FFA\u0399", U"\u1FFA\u0345"},
     {0x1FF3, U"\u03A9\u0399", U"\u1FFC"},
     {0x1FF4, U"\u038F\u0399", U"\u038F\u0345"},
     {0x1FF6, U"\u03A9\u0342", U"\u03A9\u0342"},
     {0x1FF7, U"\u03A9\u0342\u0399", U"\u03A9\u0342\u0345"},
     {0x1FFC, U"\u03A9\u0399", U"\u1FFC"},
     {0xFB00, U"FF", U"Ff"},
     {0xFB01, U"FI", U"Fi"},
     {0xFB02, U"FL", U"Fl"},
     {0xFB03, U"FFI", U"Ffi"},
     {0xFB04, U"FFL", U"Ffl"},
     {0xFB05, U"ST", U"St"},
     {0xFB06, U"ST", U"St"},
     {0xFB13, U"\u0544\u0546", U"\u0544\u0576"},
     {0xFB14, U"\u0544\u0535", U"\u0544\u0565"},
     {0xFB15, U"\u0544\u053B", U"\u0544\u056B"},
     {0xFB16, U"\u054E\u0546", U"\u054E\u0576"},
     {0xFB17, U"\u0544\u053D", U"\u0544\u056D"}}};

const Expansion* expansion_of(CodePoint code) {
  const auto* found =
      std::lower_bound(kExpansions.begin(), kExpansions.end(), code,
                       [](const Expansion& entry, CodePoint value) { return entry.code < value; });
  return found != kExpansions.end() && found->code == code ? found : nullptr;
}

void append_all(std::string& out, std::u32string_view codes) {
  for (const CodePoint code : codes) append_code_point(out, code);
}

void append_upper(std::string& out, CodePoint code) {
  if (const auto* expansion = expansion_of(code)) return append_all(out, expansion->upper);
  append_code_point(out,
                    static_cast<CodePoint>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

void append_title(std::string& out, CodePoint code) {
  if (const auto* expansion = expansion_of(code)) return append_all(out, expansion->title);
  append_code_point(out,
                    static_cast<CodePoint>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
}

utf8proc_category_t category(CodePoint code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_upper_letter(CodePoint code) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(code)) != 0;
}

bool is_lower_letter(CodePoint code) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(code)) != 0;
}

bool is_title_letter(CodePoint code) { return category(code) == UTF8PROC_CATEGORY_LT; }

bool is_cased(CodePoint code) {
  return is_upper_letter(code) || is_lower_letter(code) || is_title_letter(code);
}

bool is_case_ignorable(CodePoint code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x387 ||
             code == 0x55F || code == 0x5F4 || code == 0x2018 || code == 0x2019 || code == 0x2024 ||
             code == 0x2027 || code == 0xFE13 || code == 0xFE52 || code == 0xFE55 ||
             code == 0xFF07 || code == 0xFF0E || code == 0xFF1A;
  }
}

// Whether the sigma that ends before `behind` and begins at `at` ends a word.
bool is_final_sigma(std::string_view text, std::size_t at, std::size_t behind) {
  CodePoint before = 0;
  while (at > 0) {
    before = previous_code_point(text, at);
    if (!is_case_ignorable(before)) break;
    before = 0;
  }
  if (!is_cased(before)) return false;
  while (behind < text.size()) {
    const CodePoint after = next_code_point(text, behind);
    if (!is_case_ignorable(after)) return !is_cased(after);
  }
  return true;
}

// The character at `at`, which moves behind it.
void append_lower(std::string& out, std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  const CodePoint code = next_code_point(text, at);
  if (code == 0x3A3) {
    append_code_point(out, is_final_sigma(text, begin, at) ? 0x3C2 : 0x3C3);
  } else {
    append_lower_case(out, code);
  }
}

}  // namespace

std::string to_upper(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) append_upper(out, next_code_point(text, at));
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) append_lower(out, text, at);
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  if (!text.empty()) append_title(out, next_code_point(text, at));
  while (at < text.size()) append_lower(out, text, at);
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t behind = at;
    const CodePoint code = next_code_point(text, behind);
    if (inside) {
      append_lower(out, text, at);
    } else {
      append_title(out, code);
    }
    at = behind;
    inside = is_cased(code);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t behind = at;
    const CodePoint code = next_code_point(text, behind);
    if (is_upper_letter(code)) {
      append_lower(out, text, at);
    } else if (is_lower_letter(code)) {
      append_upper(out, code);
    } else {
      append_code_point(out, code);
    }
    at = behind;
  }
  return out;
}

std::string title_words(std::string_view text) {
  constexpr std::u32string_view kBefore = U"-({[<";
  const auto separates = [&](CodePoint code) {
    return is_space(code) || kBefore.find(code) != std::u32string_view::npos;
  };
  std::string out;
  while (!text.empty()) {
    const auto word = strip(text, Side::kLeft, separates);
    out += text.substr(0, text.size() - word.size());
    text = strip(word, Side::kLeft, [&](CodePoint code) { return !separates(code); });
    const auto whole = word.substr(0, word.size() - text.size());
    std::size_t at = 0;
    if (!whole.empty()) append_upper(out, next_code_point(whole, at));
    out += to_lower(whole.substr(at));
  }
  return out;
}

bool is_upper(std::string_view text) {
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code = next_code_point(text, at);
    if (is_lower_letter(code) || is_title_letter(code)) return false;
    found = found || is_upper_letter(code);
  }
  return found;
}

bool is_lower(std::string_view text) {
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code = next_code_point(text, at);
    if (is_upper_letter(code) || is_title_letter(code)) return false;
    found = found || is_lower_letter(code);
  }
  return found;
}

bool is_title(std::string_view text) {
  bool found = false;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code = next_code_point(text, at);
    const bool capital = is_upper_letter(code) || is_title_letter(code);
    if (capital ? inside : is_lower_letter(code) && !inside) return false;
    inside = is_cased(code);
    found = found || inside;
  }
  return found;
}

}  // namespace kvcache::detail::jinja
