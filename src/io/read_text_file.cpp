#include <kvcache/core/errors.h>
#include <kvcache/io/read_text_file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/posix_file.h"

namespace kvcache {

using detail::in_quotes;

std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  const detail::OpenedFile file = detail::open_regular_file(path);
  check_value(file.size <= max_bytes, "cannot read ", in_quotes(path.native()), ": it has ",
              file.size, " bytes, more than the ", max_bytes, " allowed for such a file");
  std::string text(static_cast<std::size_t>(file.size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.fd.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    check_value(got >= 0, "cannot read ", in_quotes(path.native()), ": ",
                std::generic_category().message(errno));
    check_value(got > 0, "cannot read ", in_quotes(path.native()),
                ": it became shorter while being read");
    filled += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace kvcache
