#include "text/unicode_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kvcache/core/errors.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

using Buffer = std::vector<utf8proc_int32_t>;

int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

Buffer decompose(std::string_view text, bool compatible) {
  const int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0);
  Buffer codes;
  codes.reserve(text.size());
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18
  int boundary = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto code = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    const auto count =
        utf8proc_decompose_char(code, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()),
                                static_cast<utf8proc_option_t>(options), &boundary);
    check_state(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
                "utf8proc cannot decompose the character ", code);
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  return codes;
}

// Canonical ordering. utf8proc's own is quadratic in the length of a run of marks.
void order_marks(Buffer& codes) {
  for (auto run = codes.begin(); run != codes.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, codes.end(),
                                  [](utf8proc_int32_t code) { return combining_class(code) == 0; });
    std::stable_sort(run, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    run = end;
  }
}

}  // namespace

std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
  if (ascii) return std::string(text);
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  Buffer codes = decompose(text, compatible);
  order_marks(codes);
  if (form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) {
    const auto length = utf8proc_normalize_utf32(
        codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    check_state(length >= 0, "utf8proc cannot compose a text of ", codes.size(), " characters");
    codes.resize(static_cast<std::size_t>(length));
  }
  std::string result;
  result.reserve(text.size());
  for (const auto code : codes) append_code_point(result, static_cast<CodePoint>(code));
  return result;
}

}  // namespace kvcache::detail
