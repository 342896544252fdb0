// Makes a tree of a template's text.
#pragma once

#include <string_view>

#include "chat/statements.h"

namespace kvcache::detail::jinja {

// The longest template that is read: hundreds of times what checkpoints have.
inline constexpr std::size_t kMostSourceBytes = std::size_t{2} << 20;

// Throws ValueError with the line where the text is no template, uses what chat templates may not
// (include, import, extends, block) or nests too deep; and where it is too long.
Block parse(std::string_view source);

}  // namespace kvcache::detail::jinja
