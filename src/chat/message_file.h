// Messages as a file: a JSON array of objects, as `generate --messages` reads it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/chat/chat_template.h"

namespace kvcache::detail {

// Throws ValueError if there can be no folder.
void make_folder(const std::filesystem::path& folder);

// What the file is to hold. Throws ValueError as make_message() does.
std::string text_of(std::span<const ChatMessage> messages);

// The file appears whole or not at all. Throws ValueError for a path that cannot be written,
// RuntimeError for a full disk.
void write_messages(std::string_view text, const std::filesystem::path& path);

// Throws ValueError for a file that cannot be read, nests deeper than parse_json_value() goes, or
// holds something else than messages that check_message() takes.
std::vector<ChatMessage> read_messages(const std::filesystem::path& path);

}  // namespace kvcache::detail
