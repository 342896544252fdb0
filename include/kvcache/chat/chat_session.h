// A conversation with a model: messages, and a cache that goes on from turn to turn.
#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/chat/chat_template.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/output.h"
#include "kvcache/generation/stopping.h"
#include "kvcache/models/causal_lm.h"
#include "kvcache/text/tokenizer.h"

namespace kvcache {

struct ChatSessionOptions {
  // Of every reply, GenerationConfig::from_pretrained for example; but its cache is the session's.
  GenerationConfig generation = {};
  // Tools, variables and limits of the template. The session itself asks for the generation prompt.
  ChatTemplateOptions rendering = {};
  // true: a message that spells a special token ("<|im_end|>") means it. Not for text from outside.
  bool parse_special_tokens = false;
  // How many turns can be gone back to where a cache cannot be cropped (windows, states): each
  // costs what Cache::snapshot() does. At least 1.
  std::int64_t marks = 2;
};

// For one reply.
struct ChatReplyOptions {
  std::function<void(std::string_view text)> on_text = {};  // gets the reply as it is made
  StoppingCriteria stopping_criteria = {};  // beside the config's: a reply that one ends is kept
  std::optional<at::Generator> generator = {};  // for do_sample
};

struct ChatReply {
  // How the cache came to hold what the prompt begins with.
  enum class Reuse {
    kNothing,   // it held nothing of use
    kHeld,      // all that it held
    kCropped,   // what it held, but for its last tokens
    kSnapshot,  // what it had held before an earlier reply
  };

  std::string text = {};  // without the tokens that end it
  Reuse reuse = Reuse::kNothing;
  std::int64_t prompt_tokens = 0;  // of the whole conversation up to the reply
  std::int64_t reused_tokens = 0;  // of these, held by the cache
  std::int64_t new_tokens = 0;     // of the reply, its end included
  Timings timings = {};
};

// Each reply is what a fresh run over the whole conversation would give; only what the cache does
// not hold is computed. The cache is compared by tokens: where a rendered text goes on otherwise
// than it was generated (templates drop <think> parts, spellings merge), what is common stays. Not
// for several threads at once.
class ChatSession {
 public:
  // `model` must outlive the session. Without a cache, one of a DynamicCache. Throws ValueError for
  // a cache that does not fit, has several rows or does not know its tokens (Cache::update() alone
  // fed it), and for options out of range.
  ChatSession(const CausalLM& model, Tokenizer tokenizer, ChatTemplate chat_template,
              ChatSessionOptions options = {}, std::unique_ptr<Cache> cache = nullptr);

  const std::vector<ChatMessage>& messages() const { return messages_; }
  const Cache& cache() const { return *cache_; }

  // Adds a message without answering: a system prompt, a tool's result. Throws ValueError for a
  // role that is empty, texts that are no UTF-8, and fields that are no JSON object or nest deeper
  // than 100 levels; as do send() and edit().
  void add(ChatMessage message);

  // Answers the conversation as it stands, and adds the answer as the assistant's message. Throws
  // as the template and generate() do; the messages are then as before, and the session can go on.
  ChatReply reply(const ChatReplyOptions& options = {});

  // Adds a user's message and answers it: both, or nothing.
  ChatReply send(std::string text, const ChatReplyOptions& options = {});

  // Puts another answer in place of the last message, which must be the assistant's.
  ChatReply regenerate(const ChatReplyOptions& options = {});

  // Puts another text in place of message `index`'s, and forgets all messages after it.
  void edit(std::size_t index, std::string content);

  // Writes messages.json and cache.safetensors into a folder, which is made if need be; each
  // appears whole or not at all. Throws as save_cache().
  void save(const std::filesystem::path& folder);

  // Goes on with what save() wrote, with the same model and kind of cache. Throws ValueError for
  // files that are missing, damaged or of another model, messages that add() would refuse, and a
  // cache that the constructor would; the session is then as it was.
  void load(const std::filesystem::path& folder);

 private:
  struct Mark {
    std::vector<std::int64_t> ids;  // that it holds
    Snapshot state;
  };

  std::vector<std::int64_t> prompt_ids() const;
  ChatReply answer(const std::vector<std::int64_t>& prompt, const ChatReplyOptions& options);

  // Makes the cache hold as much of the prompt's beginning as it can, but its last token.
  ChatReply::Reuse go_back(const std::vector<std::int64_t>& prompt);
  void mark(const std::vector<std::int64_t>& prompt);

  const CausalLM& model_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  ChatSessionOptions options_;
  std::unique_ptr<Cache> cache_;
  std::vector<ChatMessage> messages_;
  std::vector<Mark> marks_;  // the newest last
};

}  // namespace kvcache
