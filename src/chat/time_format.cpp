#include "chat/time_format.h"

#include <locale.h>
#include <time.h>

#include <array>
#include <memory>

#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

std::tm broken_down(std::optional<std::chrono::local_seconds> time) {
  std::tm parts{};
  if (!time) {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &parts);
    return parts;
  }
  // A local time is counted as if it were UTC.
  const auto seconds = static_cast<std::time_t>(time->time_since_epoch().count());
  gmtime_r(&seconds, &parts);
  return parts;
}

// What Python fills in itself: a time without a zone has neither an offset nor a name, and whole
// seconds no microseconds. A lone % at the end stays.
std::string with_python_directives(std::string_view format) {
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char next = at + 1 < format.size() ? format[at + 1] : '\0';
    if (format[at] != '%') {
      out += format[at];
    } else if (next == 'f') {
      out += "000000";
      ++at;
    } else if (next == 'z' || next == 'Z') {
      ++at;
    } else if (next == '\0') {
      out += "%%";
    } else {
      out.append({'%', next});
      ++at;
    }
  }
  return out;
}

}  // namespace

std::string format_time(std::string_view format, std::optional<std::chrono::local_seconds> time) {
  constexpr std::size_t kMostFormat = 1024;
  check_value(format.size() <= kMostFormat, "strftime_now: a format of ", format.size(),
              " bytes is longer than ", kMostFormat);
  if (format.empty()) return {};
  const std::tm parts = broken_down(time);
  const auto close = [](locale_t held) { freelocale(held); };
  const std::unique_ptr<std::remove_pointer_t<locale_t>, decltype(close)> english(
      newlocale(LC_ALL_MASK, "C", nullptr), close);
  // The space tells an empty result from one that does not fit.
  const std::string spaced = with_python_directives(format) + " ";
  std::array<char, 64 * 1024> buffer{};
  const std::size_t size =
      strftime_l(buffer.data(), buffer.size(), spaced.c_str(), &parts, english.get());
  check_value(size > 0, "strftime_now: the result of '", format, "' is too long");
  return std::string(buffer.data(), size - 1);
}

}  // namespace kvcache::detail::jinja
