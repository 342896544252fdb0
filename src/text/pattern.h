// What a tokenizer.json calls a pattern: a literal string, or a regular expression in Oniguruma's
// (Ruby) syntax, which the `tokenizers` library uses; here it is translated and run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::detail {

class JsonNode;

// A part of a text: a match of a pattern, or what lies between two matches. Matches can be empty.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool matched = false;
};

// Rewrites an Oniguruma pattern for PCRE2 (UTF, UCP, MULTILINE) so that it means the same. Throws
// ValueError naming the construct where that is not sure: exact or refused.
std::string pcre2_pattern_from_oniguruma(std::string_view pattern);

class Pattern {
 public:
  // Throws ValueError (beginning with `where`) if the pattern is not valid.
  static Pattern regex(std::string_view oniguruma, std::string_view where);
  // `text` must not be empty.
  static Pattern literal(std::string text);
  // Reads {"Regex": "..."} or {"String": "..."}.
  static Pattern from_json(const JsonNode& node);

  // The whole of `text` (well-formed UTF-8) as spans in order. Throws RuntimeError where PCRE2 runs
  // into its limits.
  std::vector<Span> find(std::string_view text) const;

  // The literal's text; empty for a regular expression.
  const std::string& literal_text() const { return literal_; }

 private:
  struct Code;

  std::string literal_;
  std::shared_ptr<const Code> code_;
};

}  // namespace kvcache::detail
