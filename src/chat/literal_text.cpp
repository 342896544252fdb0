#include "chat/literal_text.h"

#include <utility>

#include "chat/json_text.h"
#include "chat/json_values.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

using jinja::Value;

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

// All texts in a value, keys of objects too: templates write them where they show arguments.
Value marked(const Value& value, const Tokenizer& tokenizer) {
  if (const auto* text = value.as_text()) return Value::text(marked(text->bytes, tokenizer));
  if (const auto* list = value.as_list()) {
    std::vector<Value> items;
    for (const Value& item : list->items) items.push_back(marked(item, tokenizer));
    return Value::list(std::move(items));
  }
  const auto* dict = value.as_dict();
  if (dict == nullptr) return value;
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, element] : dict->entries) {
    entries.emplace_back(marked(key, tokenizer), marked(element, tokenizer));
  }
  return Value::dict(std::move(entries));
}

}  // namespace

ChatMessage mark_special_tokens(const ChatMessage& message, const Tokenizer& tokenizer) {
  ChatMessage result{message.role, marked(message.content, tokenizer), message.fields};
  if (message.fields.empty()) return result;
  const Value fields = jinja::parse_json_value(message.fields, "the fields of a message");
  result.fields = jinja::json_text(marked(fields, tokenizer));
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
