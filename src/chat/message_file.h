// Messages as a file: a JSON array of objects, as `generate --messages` reads it.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "kvcache/chat/chat_template.h"

namespace kvcache::detail {

// Throws ValueError if there can be no folder.
void make_folder(const std::filesystem::path& folder);

// The file appears whole or not at all. Throws ValueError for fields that are no JSON object or a
// path that cannot be written, RuntimeError for a full disk.
void write_messages(std::span<const ChatMessage> messages, const std::filesystem::path& path);

// Throws ValueError for a file that cannot be read, or is something else.
std::vector<ChatMessage> read_messages(const std::filesystem::path& path);

}  // namespace kvcache::detail
