// Chat templates: a conversation as the text that a model was trained on. Renders what
// Transformers' apply_chat_template renders, in a sandbox: a template sees what it is given, and
// works within limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvcache {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant", "tool", ...
  std::string content;  // UTF-8
  // Further fields as the text of a JSON object, over those above; empty: none. For example
  // {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}, or
  // {"content": [{"type": "text", "text": "..."}]} where the content has parts.
  std::string fields{};
};

// What a template may use up before it is refused. Templates come with checkpoints, so their
// authors are not the program's.
struct ChatTemplateLimits {
  std::int64_t steps = 10'000'000;  // nodes evaluated, elements and 64 bytes of text touched
  int depth = 1000;                 // levels of blocks, expressions and macros within each other
  std::int64_t value_bytes = 64 * 1024 * 1024;   // one value, what it holds included
  std::int64_t output_bytes = 64 * 1024 * 1024;  // the rendered text
};

struct ChatTemplateOptions {
  // Ends with what begins the assistant's turn.
  bool add_generation_prompt = false;
  // Ends within the last message, for the model to go on with. Not with add_generation_prompt.
  bool continue_final_message = false;
  // The field of the last message that goes on: "content", or "reasoning_content".
  std::string continue_field = "content";
  // JSON arrays; empty: none given (the template sees none).
  std::string tools{};
  std::string documents{};
  // A JSON object of further variables, for example {"enable_thinking": false}. They go over
  // special tokens of the same name.
  std::string variables{};
  // Which of several named templates; empty: "tool_use" where there are tools and such a template,
  // else "default".
  std::string name{};
  // What strftime_now shows; absent: the machine's local time.
  std::optional<std::chrono::local_seconds> now{};
  ChatTemplateLimits limits{};
};

namespace detail {
class ChatTemplates;
}

// A compiled template, or several with names. Immutable once made, cheap to copy, and safe to use
// from any number of threads at once.
//
// Differs from Transformers on purpose: integers of more than 64 bits are refused; `{% include %}`,
// `{% import %}`, `{% extends %}`, `{% block %}` and recursive loops are refused; a macro cannot be
// called outside the block it was made in; special tokens are those that the checkpoint's files
// name, without defaults of a tokenizer's class. A template has at most 2 MiB, a name 1000 bytes.
class ChatTemplate {
 public:
  // Names of special tokens and their text: {"bos_token", "<s>"}.
  using SpecialTokens = std::map<std::string, std::string>;

  // Throws ValueError with the line where the text is no template.
  static ChatTemplate from_string(std::string_view source, SpecialTokens special_tokens = {});

  // Reads a checkpoint's folder: chat_template.jinja, and additional_chat_templates/*.jinja with
  // those files' names; else tokenizer_config.json's chat_template, one text or a list of named
  // ones. Special tokens are those that tokenizer_config.json names (or special_tokens_map.json, in
  // checkpoints whose tokenizer_config.json has no added_tokens_decoder). Throws ValueError naming
  // the file where there is no template or it cannot be read.
  static ChatTemplate from_folder(const std::filesystem::path& folder);

  // The conversation as text; tokenize it without adding special tokens. Throws ValueError with the
  // template's line where the template refuses the conversation (roles that do not alternate, ...),
  // fails, or exceeds a limit, which the message names.
  std::string render(std::span<const ChatMessage> messages,
                     const ChatTemplateOptions& options = {}) const;
  // As above, of the text of a JSON array of messages: [{"role": ..., "content": ...}, ...].
  std::string render_json(std::string_view messages, const ChatTemplateOptions& options = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const detail::ChatTemplates> templates);

  std::shared_ptr<const detail::ChatTemplates> templates_;
};

}  // namespace kvcache
