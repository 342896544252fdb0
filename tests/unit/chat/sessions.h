// Chat sessions of the tiny checkpoints, and what a session that has seen nothing answers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/chat/chat_session.h"
#include "tests/support/char_tokenizer.h"

namespace kvcache::testing {

inline constexpr std::string_view kTemplate =
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}<a>{% else %}<u>{% endif %}"
    "{{ m.content }}<e>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";

// For a reply: up to six tokens, or <e>.
inline const GenerationConfig kReplyConfig{.max_new_tokens = 6, .eos_token_id = {{63}}};

inline ChatSession session(const CausalLM& model, std::string_view source = kTemplate,
                           std::unique_ptr<Cache> cache = nullptr,
                           ChatSessionOptions options = {}) {
  if (!options.generation.max_new_tokens) options.generation = kReplyConfig;
  return {model, char_tokenizer(), ChatTemplate::from_string(source), std::move(options),
          std::move(cache)};
}

inline std::string fresh_reply(const CausalLM& model, const std::vector<ChatMessage>& messages,
                               std::string_view source = kTemplate,
                               const GenerationConfig& config = kReplyConfig) {
  ChatSession fresh = session(model, source, nullptr, {.generation = config});
  for (const ChatMessage& message : messages) fresh.add(message);
  return fresh.reply().text;
}

inline std::vector<ChatMessage> with(std::vector<ChatMessage> messages, const std::string& text) {
  messages.push_back({.role = "user", .content = text});
  return messages;
}

}  // namespace kvcache::testing
