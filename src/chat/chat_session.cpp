#include "kvcache/chat/chat_session.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "cache/cache_file_section.h"
#include "chat/conversation.h"
#include "chat/literal_text.h"
#include "chat/message_file.h"
#include "generation/draft_recording.h"
#include "generation/draft_source.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/chat/tokenizer_text.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/text_streamer.h"

namespace kvcache {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr DecodeOptions kDecode{.skip_special_tokens = true};
constexpr const char* kMessagesFile = "messages.json";
constexpr const char* kCacheFile = "cache.safetensors";

at::Tensor row_of(std::span<const std::int64_t> ids) {
  return at::tensor(at::ArrayRef<std::int64_t>(ids.data(), ids.size()), at::kLong).unsqueeze(0);
}

void check_options(const ChatSessionOptions& options) {
  const GenerationConfig& config = options.generation;
  config.validate();
  check_value(options.marks >= 1, "a chat session keeps at least one mark, not ", options.marks);
  check_value(config.num_return_sequences.value_or(1) == 1 && config.use_cache.value_or(true),
              "a chat session makes one reply and keeps a cache; leave num_return_sequences and "
              "use_cache out of its config");
  check_value(!options.rendering.add_generation_prompt && !options.rendering.continue_final_message,
              "a chat session begins the assistant's turns itself; leave add_generation_prompt and "
              "continue_final_message out of its rendering");
}

void check_session_cache(const Cache& cache) {
  check_value(cache.kind() != "encoder_decoder",
              "a chat session's model has no encoder, but the "
              "cache is of kind ",
              cache.kind(), "; pass another kind of cache");
  check_value(cache.batch_size() <= 1, "a chat session's cache has one row, but this one has ",
              cache.batch_size());
  check_value(cache.history().known(),
              "the cache does not know which tokens it holds (it was fed by update()), so no "
              "conversation can be compared with them; reset it, or pass one that a model fed");
}

// The same of a file, before it is loaded.
void check_session_cache(const std::filesystem::path& path) {
  const auto file = detail::CacheFileSection::open(path);
  if (file.text("kind") == "encoder_decoder") return;  // load_cache() says that it does not fit
  check_value(file.integer("batch") <= 1, file.name(), " holds a cache of ", file.integer("batch"),
              " rows, but a chat session's has one; give a file that ChatSession::save() wrote");
  check_value(file.integer("known") == file.integer("seen"), file.name(),
              " does not say which tokens it holds, so no conversation can be compared with them; "
              "give a file that ChatSession::save() wrote");
}

}  // namespace

ChatSession::ChatSession(const CausalLM& model, Tokenizer tokenizer, ChatTemplate chat_template,
                         ChatSessionOptions options, std::unique_ptr<Cache> cache)
    : model_(model),
      tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      options_(std::move(options)),
      cache_(std::move(cache)) {
  check_options(options_);
  options_.generation.cache_implementation
      .reset();  // a checkpoint's wish, for a cache of generate()
  options_.generation.cache_config.reset();
  options_.generation.max_cache_len.reset();
  if (cache_ == nullptr) cache_ = std::make_unique<DynamicCache>(model.config());
  cache_->check_fits(model.config().layer_specs(), model.dtype());
  check_session_cache(*cache_);
}

void ChatSession::add(ChatMessage message) {
  detail::check_message(message, messages_.size());
  messages_.push_back(std::move(message));
}

ChatReply ChatSession::reply(const ChatReplyOptions& options) {
  ChatReply reply = answer(prompt_ids(), options);
  messages_.push_back({.role = "assistant", .content = reply.text});
  return reply;
}

ChatReply ChatSession::send(std::string text, const ChatReplyOptions& options) {
  add({.role = "user", .content = std::move(text)});
  try {
    return reply(options);
  } catch (...) {
    messages_.pop_back();
    throw;
  }
}

ChatReply ChatSession::regenerate(const ChatReplyOptions& options) {
  check_state(!messages_.empty() && messages_.back().role == "assistant",
              "there is no reply to make again: the last message is not the assistant's");
  ChatMessage old = std::move(messages_.back());
  messages_.pop_back();
  try {
    return reply(options);
  } catch (...) {
    messages_.push_back(std::move(old));
    throw;
  }
}

void ChatSession::edit(std::size_t index, std::string content) {
  check_value(index < messages_.size(), "there is no message ", index, " to edit: there are ",
              messages_.size());
  ChatMessage edited{.role = messages_[index].role, .content = std::move(content)};
  detail::check_message(edited, index);
  messages_.resize(index + 1);
  messages_[index] = std::move(edited);
}

void ChatSession::save(const std::filesystem::path& folder) {
  const std::string messages = detail::text_of(messages_);
  detail::make_folder(folder);
  save_cache(*cache_, folder / kCacheFile, {.fingerprint = model_.fingerprint()});
  detail::write_messages(messages, folder / kMessagesFile);
}

void ChatSession::load(const std::filesystem::path& folder) {
  std::vector<ChatMessage> messages = detail::read_messages(folder / kMessagesFile);
  check_session_cache(folder / kCacheFile);
  load_cache(
      *cache_, folder / kCacheFile,
      {.fingerprint = model_.fingerprint(), .dtype = model_.dtype(), .devices = {model_.device()}});
  messages_ = std::move(messages);
  marks_.clear();
}

std::vector<std::int64_t> ChatSession::prompt_ids() const {
  ChatTemplateOptions rendering = options_.rendering;
  rendering.add_generation_prompt = true;
  Ids ids;
  if (options_.parse_special_tokens) {
    ids = tokenizer_.encode(template_.render(messages_, rendering), {.add_special_tokens = false});
  } else {
    std::vector<ChatMessage> messages = messages_;
    for (ChatMessage& message : messages) {
      message = detail::mark_special_tokens(message, tokenizer_);
    }
    ids = detail::encode_marked(template_.render(messages, rendering), tokenizer_);
  }
  check_value(!ids.empty(), "the chat template makes no text of the messages");
  return ids;
}

ChatReply ChatSession::answer(const Ids& prompt, const ChatReplyOptions& options) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  ChatReply reply{.reuse = go_back(prompt), .prompt_tokens = length};
  reply.reused_tokens = cache_->history().seen();
  const auto start = std::chrono::steady_clock::now();
  // Before a mark feeds anything: a cache of a fixed size makes room for it while it is empty.
  if (const auto draft = detail::longest_draft(options_.generation, options.assistant_model)) {
    detail::record_drafts(*cache_, *draft);
  }
  mark(prompt);
  const std::chrono::duration<double> marking = std::chrono::steady_clock::now() - start;

  std::optional<TextStreamer> streamer;
  if (options.on_text) {
    streamer.emplace(running_text(tokenizer_, kDecode), options.on_text,
                     options_.generation.eos_token_id.value_or(Ids{}));
  }
  const Output output = generate(model_,
                                 {.input_ids = row_of(prompt),
                                  .generator = options.generator,
                                  .logits_processors = options.logits_processors,
                                  .stopping_criteria = options.stopping_criteria,
                                  .text = running_text(tokenizer_),
                                  .streamer = streamer ? &*streamer : nullptr,
                                  .assistant_model = options.assistant_model},
                                 options_.generation, cache_.get());
  reply.timings = output.timings;
  reply.timings.prefill_s += marking.count();
  reply.timings.prefill_tokens = length - reply.reused_tokens;

  const at::Tensor made = output.sequences[0].narrow(0, length, output.sequences.size(1) - length);
  reply.new_tokens = made.numel();
  std::span ids(made.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(made.numel()));
  if (!ids.empty() && options_.generation.ends_at(ids.back())) ids = ids.first(ids.size() - 1);
  reply.text = tokenizer_.decode(ids, kDecode);
  return reply;
}

ChatReply::Reuse ChatSession::go_back(const Ids& prompt) {
  const std::span beginning = std::span(prompt).first(prompt.size() - 1);
  const std::int64_t seen = cache_->history().seen();
  const std::int64_t keep = seen > 0 ? cache_->can_reuse(row_of(beginning)) : 0;
  std::erase_if(marks_, [&](const Mark& mark) {
    return mark.ids.size() > beginning.size() ||
           !std::equal(mark.ids.begin(), mark.ids.end(), beginning.begin());
  });
  if (!marks_.empty() && static_cast<std::int64_t>(marks_.back().ids.size()) > keep) {
    cache_->restore(marks_.back().state);
    return ChatReply::Reuse::kSnapshot;
  }
  if (keep == seen) return seen > 0 ? ChatReply::Reuse::kHeld : ChatReply::Reuse::kNothing;
  if (keep == 0) {
    cache_->reset();
    return ChatReply::Reuse::kNothing;
  }
  cache_->crop(keep - seen);
  return ChatReply::Reuse::kCropped;
}

void ChatSession::mark(const Ids& prompt) {
  if (!any_forgets(model_.config().layer_specs())) return;
  const std::span beginning = std::span(prompt).first(prompt.size() - 1);
  if (beginning.empty()) return;
  // go_back() has left marks of this prompt alone, so that one of its length is this one.
  if (!marks_.empty() && marks_.back().ids.size() == beginning.size()) return;
  const auto most = static_cast<std::size_t>(
      options_.generation.prefill_chunk_size.value_or(static_cast<std::int64_t>(prompt.size())));
  for (auto seen = static_cast<std::size_t>(cache_->history().seen()); seen < beginning.size();) {
    const c10::InferenceMode no_gradients;
    const auto piece = beginning.subspan(seen, std::min(most, beginning.size() - seen));
    const ForwardInput input{.input_ids = row_of(piece), .logits_to_keep = 1};
    if (model_.needs_whole_text(input, *cache_)) return;  // generate() computes all of it anew
    model_.forward(input, cache_.get());
    seen += piece.size();
  }
  marks_.push_back({Ids(beginning.begin(), beginning.end()), cache_->snapshot()});
  if (static_cast<std::int64_t>(marks_.size()) > options_.marks) marks_.erase(marks_.begin());
}

}  // namespace kvcache
