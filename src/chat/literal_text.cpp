#include "chat/literal_text.h"

#include <nlohmann/json.hpp>

#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kBegin = "\uFDD0", kEnd = "\uFDD1";

std::string marked(const std::string& text, const Tokenizer& tokenizer) {
  check_value(text.find(kBegin) == std::string::npos && text.find(kEnd) == std::string::npos,
              "a message holds U+FDD0 or U+FDD1, which are no characters; remove them");
  std::string result;
  std::size_t copied = 0;
  for (const TextRange& range : tokenizer.find_special_tokens(text)) {
    result.append(text, copied, range.begin - copied).append(kBegin);
    result.append(text, range.begin, range.end - range.begin).append(kEnd);
    copied = range.end;
  }
  return result.append(text, copied);
}

void mark_strings(ordered_json& json, const Tokenizer& tokenizer) {
  if (json.is_string()) json = marked(json.get<std::string>(), tokenizer);
  if (!json.is_structured()) return;
  for (ordered_json& element : json) mark_strings(element, tokenizer);
}

}  // namespace

ChatMessage mark_special_tokens(const ChatMessage& message, const Tokenizer& tokenizer) {
  ChatMessage result{message.role, marked(message.content, tokenizer), message.fields};
  if (message.fields.empty()) return result;
  ordered_json fields = ordered_json::parse(message.fields, nullptr, /*allow_exceptions=*/false);
  if (fields.is_discarded()) return result;  // the template says what is wrong
  mark_strings(fields, tokenizer);
  result.fields = fields.dump();
  return result;
}

std::vector<std::int64_t> encode_marked(std::string_view rendered, const Tokenizer& tokenizer) {
  std::string text;
  std::vector<TextRange> literal;
  while (true) {
    const std::size_t begin = rendered.find(kBegin);
    text += rendered.substr(0, begin);
    if (begin == std::string_view::npos) break;
    rendered.remove_prefix(begin + kBegin.size());
    const std::size_t end = rendered.find(kEnd);
    check_value(end != std::string_view::npos,
                "the chat template divides a message within a special token that it spells; this "
                "cannot be kept as text");
    literal.push_back({text.size(), text.size() + end});
    text += rendered.substr(0, end);
    rendered.remove_prefix(end + kEnd.size());
  }
  return tokenizer.encode(text, {.add_special_tokens = false, .literal = literal});
}

}  // namespace kvcache::detail
