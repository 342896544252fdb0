// Makes a tree of a template's text.
#pragma once

#include <string_view>

#include "chat/statements.h"

namespace kvcache::detail::jinja {

// Throws ValueError with the line where the text is no template, uses what chat templates may not
// (include, import, extends, block) or nests too deep.
Block parse(std::string_view source);

}  // namespace kvcache::detail::jinja
