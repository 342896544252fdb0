// Python's string operations on UTF-8 text: positions and lengths are code points.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace kvcache::detail::jinja {

std::int64_t count_code_points(std::string_view text);
// Offset of the character behind the one at `offset`.
std::size_t next_boundary(std::string_view text, std::size_t offset);
// Offset of the character number `index`, which may be one behind the last.
std::size_t offset_of(std::string_view text, std::int64_t index);

// str.isspace of one character; also what \s matches.
bool is_space(CodePoint code);
// Whether repr() shows the character itself.
bool is_printable(CodePoint code);

enum class Side { kLeft, kRight, kBoth };
// Without the characters that `strips` at either or both ends.
std::string_view strip(std::string_view text, Side side,
                       const std::function<bool(CodePoint)>& strips = is_space);
std::string_view strip(std::string_view text, Side side, std::string_view characters);

// Where the first or the last `part` begins; npos if there is none. As all searches here in time
// linear in the text, whatever the part.
std::size_t find_first(std::string_view text, std::string_view part);
std::size_t find_last(std::string_view text, std::string_view part);

// Takes the parts of a text one after the other.
using PartTaker = std::function<void(std::string_view)>;
// At most `limit` splits, from the left, or from the right with the last part first; a negative
// limit is none.
void split(std::string_view text, std::string_view separator, std::int64_t limit, bool from_right,
           const PartTaker& take);
// At runs of white space, which also fall away at both ends.
void split_at_space(std::string_view text, std::int64_t limit, bool from_right,
                    const PartTaker& take);
void split_lines(std::string_view text, bool keep_ends, const PartTaker& take);

// How often `part` occurs, without overlap; an empty one between all characters.
std::int64_t count_occurrences(std::string_view text, std::string_view part);
// The first `limit` occurrences replaced; a negative limit is none.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t limit);

// Bytes that a step of the sandbox stands for where each character is looked up: that takes longer
// than copying it.
inline constexpr std::int64_t kCasedBytesPerStep = 16;

// Python's full case mappings.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string to_title(std::string_view text);
std::string swap_case(std::string_view text);

// The `title` filter's: a word begins behind white space and any of -({[<.
std::string title_words(std::string_view text);

// str.isupper, str.islower: some cased characters, all of that case.
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
bool is_title(std::string_view text);
// str.isalpha and the like: text is not empty and all its characters pass.
bool all_of(std::string_view text, bool (*passes)(CodePoint));
bool is_alpha(CodePoint code);
bool is_decimal(CodePoint code);
bool is_digit(CodePoint code);
bool is_number(CodePoint code);
bool is_alphanumeric(CodePoint code);

}  // namespace kvcache::detail::jinja
