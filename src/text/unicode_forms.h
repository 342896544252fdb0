// Unicode normalization forms over utf8proc's tables, in time O(n log n) also for hostile texts.
#pragma once

#include <string>
#include <string_view>

namespace kvcache::detail {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` must be well-formed UTF-8.
std::string to_unicode_form(std::string_view text, UnicodeForm form);

}  // namespace kvcache::detail
