// Dates as Python's datetime.strftime writes them, in English whatever the locale.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace kvcache::detail::jinja {

// `format` with its % directives replaced; absent: the machine's local time. Throws ValueError for
// a format that makes more than a few kB.
std::string format_time(std::string_view format, std::optional<std::chrono::local_seconds> time);

}  // namespace kvcache::detail::jinja
