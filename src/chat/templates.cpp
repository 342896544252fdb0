#include "chat/templates.h"

#include "chat/json_values.h"
#include "chat/parser.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

using jinja::Dict;
using jinja::Text;
using jinja::Value;
using SpecialTokens = ChatTemplate::SpecialTokens;

constexpr const char* kDefaultName = "default";

// An object in a JSON file; empty where there is no file.
Value read_object(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return Value::dict({});
  Value value = jinja::parse_json_value(read_text_file(path), path.string());
  check_value(value.as_dict(), path.string(), " holds no JSON object");
  return value;
}

// A token is written as its content, or as an object with flags.
const Text* token_text(const Value& token) {
  const Dict* object = token.as_dict();
  const Value* content = object ? object->find("content") : &token;
  return content ? content->as_text() : nullptr;
}

void add_tokens(const Dict& config, SpecialTokens& tokens) {
  for (const auto& [key, token] : config.entries) {
    const std::string& name = key.as_text()->bytes;
    const Text* text = token_text(token);
    if (name.ends_with("_token") && text) tokens[name] = text->bytes;
    // Names of a model's own.
    const Dict* extra = name == "extra_special_tokens" ? token.as_dict() : nullptr;
    if (!extra) continue;
    for (const auto& [extra_name, extra_token] : extra->entries) {
      const Text* extra_text = token_text(extra_token);
      if (extra_text) tokens[extra_name.as_text()->bytes] = extra_text->bytes;
    }
  }
}

const std::string& text_field(const Dict& object, std::string_view name, const std::string& path) {
  const Value* value = object.find(name);
  check_value(value && value->as_text(), path, ": an element of chat_template has no text ", name);
  return value->as_text()->bytes;
}

std::map<std::string, std::string> configured_sources(const Dict& config, const std::string& path) {
  const Value* given = config.find("chat_template");
  if (!given || given->is_none()) return {};
  if (const Text* text = given->as_text()) return {{kDefaultName, text->bytes}};
  check_value(given->as_list(), path, ": chat_template must be a text or a list of named texts");
  std::map<std::string, std::string> sources;
  for (const Value& element : given->as_list()->items) {
    check_value(element.as_dict(), path, ": an element of chat_template is no object");
    sources[text_field(*element.as_dict(), "name", path)] =
        text_field(*element.as_dict(), "template", path);
  }
  return sources;
}

std::map<std::string, std::string> source_files(const std::filesystem::path& folder) {
  std::map<std::string, std::string> sources;
  const auto main = folder / "chat_template.jinja";
  if (std::filesystem::exists(main)) sources[kDefaultName] = read_text_file(main);
  const auto more = folder / "additional_chat_templates";
  if (!std::filesystem::is_directory(more)) return sources;
  for (const auto& entry : std::filesystem::directory_iterator(more)) {
    if (entry.path().extension() != ".jinja") continue;
    sources[entry.path().stem().string()] = read_text_file(entry.path());
  }
  return sources;
}

}  // namespace

ChatTemplates::ChatTemplates(const std::map<std::string, std::string>& sources,
                             SpecialTokens special_tokens)
    : special_tokens_(std::move(special_tokens)) {
  for (const auto& [name, source] : sources) {
    const auto invalid = find_invalid_utf8(source);
    check_value(invalid == std::string::npos, "the chat template is no UTF-8 at byte ", invalid);
    Compiled& compiled = templates_[name];
    compiled.source = source;
    try {
      compiled.block = jinja::parse(source);
    } catch (const ValueError& error) {
      // One that is never asked for may be faulty.
      if (sources.size() == 1) throw;
      compiled.error = error.what();
    }
  }
}

const ChatTemplates::Compiled& ChatTemplates::find(const std::string& name, bool has_tools) const {
  const std::string by_default =
      has_tools && templates_.contains("tool_use") ? "tool_use" : kDefaultName;
  const auto found = templates_.find(name.empty() ? by_default : name);
  if (found == templates_.end()) {
    std::string known;
    for (const auto& [other, compiled] : templates_) known += (known.empty() ? "" : ", ") + other;
    throw ValueError(c10::str("there is no chat template named '", name.empty() ? by_default : name,
                              "'; there are: ", known));
  }
  const std::string& error = found->second.error;
  check_value(error.empty(), error, " (the template named '", found->first, "')");
  return found->second;
}

std::shared_ptr<const ChatTemplates> read_chat_templates(const std::filesystem::path& folder) {
  const auto config_path = folder / "tokenizer_config.json";
  const Value config = read_object(config_path);
  auto sources = source_files(folder);
  if (sources.empty()) sources = configured_sources(*config.as_dict(), config_path.string());
  check_value(!sources.empty(), "the checkpoint ", folder.string(),
              " has no chat template: neither chat_template.jinja nor a chat_template in "
              "tokenizer_config.json");
  SpecialTokens tokens;
  add_tokens(*config.as_dict(), tokens);
  if (!config.as_dict()->find("added_tokens_decoder")) {
    const Value map = read_object(folder / "special_tokens_map.json");
    add_tokens(*map.as_dict(), tokens);
  }
  return std::make_shared<const ChatTemplates>(sources, std::move(tokens));
}

}  // namespace kvcache::detail
