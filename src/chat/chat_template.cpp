#include "kvcache/chat/chat_template.h"

#include <array>

#include "chat/conversation.h"
#include "chat/interpreter.h"
#include "chat/json_values.h"
#include "chat/templates.h"
#include "kvcache/core/errors.h"

namespace kvcache {

namespace {

using detail::jinja::Value;
using Variables = std::vector<std::pair<std::string, Value>>;

void check_options(const ChatTemplateOptions& options) {
  check_value(!(options.add_generation_prompt && options.continue_final_message),
              "add_generation_prompt and continue_final_message exclude each other: the first "
              "begins a new message, the second goes on with the last");
  const auto& limits = options.limits;
  check_value(
      limits.steps > 0 && limits.depth > 0 && limits.value_bytes > 0 && limits.output_bytes > 0,
      "the limits of a chat template must be positive");
}

// A JSON array of objects, or None where the text is empty.
Value objects_or_none(const std::string& json, std::string_view name) {
  if (json.empty()) return Value();
  Value value = detail::jinja::parse_json_value(json, name);
  if (value.is_none()) return value;
  check_value(value.as_list(), name, " must be a JSON array of objects");
  for (const Value& element : value.as_list()->items) {
    check_value(element.as_dict(), name, " must be a JSON array of objects");
  }
  return value;
}

Variables make_variables(const ChatTemplate::SpecialTokens& special_tokens,
                         const ChatTemplateOptions& options) {
  Variables variables;
  for (const auto& [name, token] : special_tokens) variables.emplace_back(name, Value::text(token));
  if (options.variables.empty()) return variables;
  const Value given = detail::jinja::parse_json_value(options.variables, "variables");
  check_value(given.as_dict(), "variables must be a JSON object");
  for (const auto& [key, value] : given.as_dict()->entries) {
    const auto& name = key.as_text()->bytes;
    for (const std::string_view own : {"messages", "tools", "documents", "add_generation_prompt"}) {
      check_value(name != own, "variables must not name ", own, ", which has an option of its own");
    }
    variables.emplace_back(name, value);
  }
  return variables;
}

std::string render_conversation(const detail::ChatTemplates& templates, Value messages,
                                const ChatTemplateOptions& options) {
  check_options(options);
  const Value tools = objects_or_none(options.tools, "tools");
  const auto& compiled = templates.find(options.name, !tools.is_none());
  Variables variables = make_variables(templates.special_tokens(), options);
  std::optional<detail::FinalMessage> last;
  if (options.continue_final_message) {
    last.emplace(messages, options.continue_field, compiled.source);
  }
  variables.emplace_back("messages", std::move(messages));
  variables.emplace_back("tools", tools);
  variables.emplace_back("documents", objects_or_none(options.documents, "documents"));
  variables.emplace_back("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  detail::jinja::Interpreter interpreter(options.limits, options.now, std::move(variables));
  std::string text = interpreter.run(compiled.block);
  return last ? last->cut(text) : text;
}

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<const detail::ChatTemplates> templates)
    : templates_(std::move(templates)) {}

ChatTemplate ChatTemplate::from_string(std::string_view source, SpecialTokens special_tokens) {
  const std::map<std::string, std::string> sources = {{"default", std::string(source)}};
  return ChatTemplate(
      std::make_shared<const detail::ChatTemplates>(sources, std::move(special_tokens)));
}

ChatTemplate ChatTemplate::from_folder(const std::filesystem::path& folder) {
  return ChatTemplate(detail::read_chat_templates(folder));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 const ChatTemplateOptions& options) const {
  return render_conversation(*templates_, detail::make_conversation(messages), options);
}

std::string ChatTemplate::render_json(std::string_view messages,
                                      const ChatTemplateOptions& options) const {
  return render_conversation(*templates_, detail::make_conversation(messages), options);
}

}  // namespace kvcache
