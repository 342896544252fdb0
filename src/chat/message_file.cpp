#include "chat/message_file.h"

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "io/posix_file.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"

namespace kvcache::detail {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const ChatMessage& message) {
  ordered_json json{{"role", message.role}, {"content", message.content}};
  if (message.fields.empty()) return json;
  const ordered_json fields = ordered_json::parse(message.fields, nullptr, false);
  check_value(fields.is_object(), "the fields of a message must be a JSON object, but are ",
              in_quotes(message.fields));
  json.update(fields);
  return json;
}

ChatMessage from_json(ordered_json json, const std::string& source) {
  const auto text = [&](const char* name) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_string()) return std::string();
    std::string value = found->get<std::string>();
    json.erase(name);
    return value;
  };
  check_value(json.is_object(), source, " must hold messages that are objects");
  ChatMessage message{.role = text("role"), .content = text("content")};
  check_value(!message.role.empty(), source, " has a message without a role");
  if (!json.empty()) message.fields = json.dump();
  return message;
}

}  // namespace

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check_value(!error && std::filesystem::is_directory(folder, error), "the folder ",
              folder.string(), " cannot be made: ", error.message());
}

void write_messages(std::span<const ChatMessage> messages, const std::filesystem::path& path) {
  ordered_json list = ordered_json::array();
  for (const ChatMessage& message : messages) list.push_back(to_json(message));
  const std::string text = list.dump(2) + "\n";
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::vector<ChatMessage> read_messages(const std::filesystem::path& path) {
  const ordered_json list = ordered_json::parse(read_text_file(path), nullptr, false);
  check_value(list.is_array(), path.string(), " must be a JSON array of messages");
  std::vector<ChatMessage> messages;
  for (const ordered_json& message : list) messages.push_back(from_json(message, path.string()));
  return messages;
}

}  // namespace kvcache::detail
