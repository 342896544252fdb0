#include "chat/represent.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "chat/code_points.h"
#include "chat/interpreter.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// Text that grows within the interpreter's limits.
class Writer {
 public:
  explicit Writer(Interpreter& interpreter) : interpreter_(interpreter) {}

  void add(std::string_view piece) {
    interpreter_.charge(1);
    text_ += piece;
    if (text_.size() > checked_ + kPortion) {
      interpreter_.check_bytes(static_cast<std::int64_t>(text_.size()));
      checked_ = text_.size();
    }
  }
  // Gives away what has been written of a longer piece, so that it does not grow unchecked.
  void add_some(std::string& piece) {
    if (piece.size() < kPortion / 16) return;
    add(piece);
    piece.clear();
  }
  Meter& meter() { return interpreter_.meter(); }
  std::string take() {
    interpreter_.check_bytes(static_cast<std::int64_t>(text_.size()));
    return std::move(text_);
  }

 private:
  static constexpr std::size_t kPortion = std::size_t{1} << 20;

  Interpreter& interpreter_;
  std::string text_;
  std::size_t checked_ = 0;
};

void write_quoted(Writer& writer, std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const CodePoint code = next_code_point(text, at);
    if (code == static_cast<CodePoint>(quote) || code == '\\') {
      out.append({'\\', static_cast<char>(code)});
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      out += text.substr(begin, at - begin);
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(code));
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(code));
    }
    writer.add_some(out);
  }
  writer.add(out + quote);
}

class Representer {
 public:
  explicit Representer(Interpreter& interpreter) : writer_(interpreter) {}

  std::string run(const Value& value) {
    write(value);
    return writer_.take();
  }

 private:
  void write(const Value& value);
  void write_scalar(const Value& value);
  void write_list(const List& list);
  void write_dict(const Dict& dict);
  void write_view(const Value& value, const DictView& view);
  void write_range(const Range& range);
  void write_namespace(const Namespace& object);

  Writer writer_;
  // Namespaces that are being written: they can hold themselves.
  int namespaces_ = 0;
};

void Representer::write(const Value& value) {
  if (const List* list = value.as_list()) return write_list(*list);
  if (const Dict* dict = value.as_dict()) return write_dict(*dict);
  if (const DictView* view = value.as_view()) return write_view(value, *view);
  if (const Range* range = value.as_range()) return write_range(*range);
  if (const auto* object = value.get<Namespace*>()) return write_namespace(**object);
  write_scalar(value);
}

void Representer::write_scalar(const Value& value) {
  if (value.is_undefined()) return writer_.add("Undefined");
  if (value.is_none()) return writer_.add("None");
  if (const auto* boolean = value.get<bool>()) return writer_.add(*boolean ? "True" : "False");
  if (const auto* integer = value.get<std::int64_t>()) return writer_.add(std::to_string(*integer));
  if (const auto* real = value.get<double>()) return writer_.add(float_text(*real));
  if (const Text* text = value.as_text()) {
    if (text->markup) writer_.add("Markup(");
    write_quoted(writer_, text->bytes);
    if (text->markup) writer_.add(")");
    return;
  }
  const auto* callable = value.get<std::shared_ptr<const Callable>>();
  writer_.add(fmt::format("<{}>", callable ? (*callable)->name() : value.type_name()));
}

void Representer::write_list(const List& list) {
  writer_.add(list.tuple ? "(" : "[");
  std::string_view separator;
  for (const Value& item : list.items) {
    writer_.add(separator);
    write(item);
    separator = ", ";
  }
  if (list.tuple && list.items.size() == 1) writer_.add(",");
  writer_.add(list.tuple ? ")" : "]");
}

void Representer::write_dict(const Dict& dict) {
  writer_.add("{");
  std::string_view separator;
  for (const auto& [key, value] : dict.entries) {
    writer_.add(separator);
    write(key);
    writer_.add(": ");
    write(value);
    separator = ", ";
  }
  writer_.add("}");
}

void Representer::write_view(const Value& value, const DictView& view) {
  writer_.add(value.type_name());
  writer_.add("([");
  std::string_view separator;
  for (const auto& entry : view.dict->entries) {
    writer_.add(separator);
    write(view_element(entry, view.part));
    separator = ", ";
  }
  writer_.add("])");
}

void Representer::write_range(const Range& range) {
  writer_.add(fmt::format("range({}, {}", range.start, range.stop));
  if (range.step != 1) writer_.add(fmt::format(", {}", range.step));
  writer_.add(")");
}

void Representer::write_namespace(const Namespace& object) {
  constexpr int kMostNamespaces = 20;
  check_value(++namespaces_ <= kMostNamespaces, "namespaces that hold each other nest deeper than ",
              kMostNamespaces, " levels");
  writer_.add("<Namespace {");
  std::string_view separator;
  for (const auto& [name, value] : object.members.entries()) {
    writer_.add(separator);
    write_quoted(writer_, name);
    writer_.add(": ");
    write(value);
    separator = ", ";
  }
  writer_.add("}>");
  --namespaces_;
}

class JsonWriter {
 public:
  JsonWriter(Interpreter& interpreter, const JsonFormat& format)
      : writer_(interpreter), format_(format) {}

  std::string run(const Value& value) {
    write(value, 0);
    return writer_.take();
  }

 private:
  void write(const Value& value, int level);
  void write_text(std::string_view text);
  void write_list(const List& list, int level);
  void write_dict(const Dict& dict, int level);
  void write_number(double value);
  void write_key(const Value& key);
  void line_break(int level);

  Writer writer_;
  const JsonFormat& format_;
};

void JsonWriter::write(const Value& value, int level) {
  if (value.is_none()) return writer_.add("null");
  if (const auto* boolean = value.get<bool>()) return writer_.add(*boolean ? "true" : "false");
  if (const auto* integer = value.get<std::int64_t>()) return writer_.add(std::to_string(*integer));
  if (const auto* real = value.get<double>()) return write_number(*real);
  if (const Text* text = value.as_text()) return write_text(text->bytes);
  if (const List* list = value.as_list()) return write_list(*list, level);
  const Dict* dict = value.as_dict();
  check_value(dict, "Object of type ", value.type_name(), " is not JSON serializable");
  write_dict(*dict, level);
}

void JsonWriter::write_number(double value) {
  if (std::isnan(value)) return writer_.add("NaN");
  if (std::isinf(value)) return writer_.add(value > 0 ? "Infinity" : "-Infinity");
  writer_.add(float_text(value));
}

void JsonWriter::write_text(std::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const auto code = static_cast<std::uint32_t>(next_code_point(text, at));
    constexpr std::string_view kSpecial = "\"\\\b\f\n\r\t";
    constexpr std::string_view kNames = "\"\\bfnrt";
    const auto special = code < 0x80 ? kSpecial.find(static_cast<char>(code)) : kSpecial.npos;
    if (special != kSpecial.npos) {
      out.append({'\\', kNames[special]});
    } else if (code >= 0x20 && (!format_.ensure_ascii || code < 0x7F)) {
      out += text.substr(begin, at - begin);
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    }
    writer_.add_some(out);
  }
  writer_.add(out + '"');
}

void JsonWriter::line_break(int level) {
  if (!format_.pretty) return;
  writer_.add("\n");
  for (int i = 0; i < level; ++i) writer_.add(format_.indent);
}

void JsonWriter::write_list(const List& list, int level) {
  if (list.items.empty()) return writer_.add("[]");
  writer_.add("[");
  std::string_view separator;
  for (const Value& item : list.items) {
    writer_.add(separator);
    line_break(level + 1);
    write(item, level + 1);
    separator = format_.item_separator;
  }
  line_break(level);
  writer_.add("]");
}

void JsonWriter::write_dict(const Dict& dict, int level) {
  if (dict.entries.empty()) return writer_.add("{}");
  auto entries = dict.entries;
  if (format_.sort_keys) {
    std::stable_sort(entries.begin(), entries.end(), [&](const auto& left, const auto& right) {
      return less(writer_.meter(), left.first, right.first);
    });
  }
  writer_.add("{");
  std::string_view separator;
  for (const auto& [key, value] : entries) {
    writer_.add(separator);
    line_break(level + 1);
    write_key(key);
    writer_.add(format_.key_separator);
    write(value, level + 1);
    separator = format_.item_separator;
  }
  line_break(level);
  writer_.add("}");
}

// JSON's keys are texts; Python writes the simple values as such.
void JsonWriter::write_key(const Value& key) {
  if (const Text* text = key.as_text()) return write_text(text->bytes);
  const bool simple = key.is_none() || key.as_number();
  check_value(simple, "keys must be str, int, float, bool or None, not ", key.type_name());
  writer_.add("\"");
  write(key, 0);
  writer_.add("\"");
}

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                    std::chars_format::scientific);
  std::string text(buffer.data(), result.ptr);
  const auto mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;
  std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : text.substr(0, mark)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) digits.append(whole + 1 - digits.size(), '0');
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string represent(Interpreter& interpreter, const Value& value) {
  return Representer(interpreter).run(value);
}

std::string to_text(Interpreter& interpreter, const Value& value) {
  if (value.is_undefined()) return {};
  if (const Text* text = value.as_text()) {
    interpreter.charge(value.cost());
    return text->bytes;
  }
  return represent(interpreter, value);
}

std::string to_json(Interpreter& interpreter, const Value& value, const JsonFormat& format) {
  return JsonWriter(interpreter, format).run(value);
}

}  // namespace kvcache::detail::jinja
