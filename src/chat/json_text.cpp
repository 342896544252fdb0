#include "chat/json_text.h"

#include <cstddef>
#include <nlohmann/json.hpp>

namespace kvcache::detail::jinja {
namespace {

// Recurses as deep as the value, which the parser bounds.
class JsonText {
 public:
  explicit JsonText(int indent) : indent_(indent) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(text_);
  }

 private:
  void write(const Value& value, int level) {
    if (const List* list = value.as_list()) return write_all('[', ']', list->items, level);
    if (const Dict* dict = value.as_dict()) return write_all('{', '}', dict->entries, level);
    text_ += scalar(value).dump();
  }

  void write(const std::pair<Value, Value>& entry, int level) {
    write(entry.first, level);
    text_ += indent_ < 0 ? ":" : ": ";
    write(entry.second, level);
  }

  template <typename Elements>
  void write_all(char open, char close, const Elements& elements, int level) {
    text_ += open;
    const char* separator = "";
    for (const auto& element : elements) {
      text_ += separator;
      break_line(level + 1);
      write(element, level + 1);
      separator = ",";
    }
    if (!elements.empty()) break_line(level);
    text_ += close;
  }

  void break_line(int level) {
    if (indent_ < 0) return;
    text_ += '\n';
    text_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(level), ' ');
  }

  static nlohmann::json scalar(const Value& value) {
    if (const Text* text = value.as_text()) return text->bytes;
    if (const auto* boolean = value.get<bool>()) return *boolean;
    if (const auto* integer = value.get<std::int64_t>()) return *integer;
    if (const auto* real = value.get<double>()) return *real;
    return nullptr;
  }

  int indent_;
  std::string text_;
};

}  // namespace

std::string json_text(const Value& value, int indent) { return JsonText(indent).run(value); }

}  // namespace kvcache::detail::jinja
