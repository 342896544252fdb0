#include "chat/message_file.h"

#include <cstddef>
#include <system_error>
#include <utility>

#include "chat/conversation.h"
#include "chat/json_text.h"
#include "chat/json_values.h"
#include "io/posix_file.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"

namespace kvcache::detail {
namespace {

using jinja::Value;

// An object of a file as a message: its role and content, where they are texts, and the rest.
ChatMessage read_message(const Value& object) {
  ChatMessage message;
  std::vector<std::pair<Value, Value>> rest;
  for (const auto& [key, value] : object.as_dict()->entries) {
    const std::string& name = key.as_text()->bytes;
    const auto* text = value.as_text();
    if (name == "role" && text) {
      message.role = text->bytes;
    } else if (name == "content" && text) {
      message.content = text->bytes;
    } else {
      rest.emplace_back(key, value);
    }
  }
  if (!rest.empty()) message.fields = jinja::json_text(Value::dict(std::move(rest)));
  return message;
}

}  // namespace

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check_value(!error && std::filesystem::is_directory(folder, error), "the folder ",
              folder.string(), " cannot be made: ", error.message());
}

std::string text_of(std::span<const ChatMessage> messages) {
  std::vector<Value> list;
  for (std::size_t i = 0; i < messages.size(); ++i) list.push_back(make_message(messages[i], i));
  return jinja::json_text(Value::list(std::move(list)), /*indent=*/2) + "\n";
}

void write_messages(std::string_view text, const std::filesystem::path& path) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::vector<ChatMessage> read_messages(const std::filesystem::path& path) {
  const std::string file = path.string();
  const Value list = jinja::parse_json_value(read_text_file(path), file);
  check_value(list.as_list(), file, " must be a JSON array of messages");
  std::vector<ChatMessage> messages;
  for (const Value& object : list.as_list()->items) {
    check_value(object.as_dict(), file, " must hold messages that are objects, but messages[",
                messages.size(), "] is none");
    messages.push_back(read_message(object));
    try {
      check_message(messages.back(), messages.size() - 1);
    } catch (const ValueError& error) {
      throw ValueError(c10::str(file, ": ", error.what()));
    }
  }
  return messages;
}

}  // namespace kvcache::detail
