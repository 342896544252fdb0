#include "generate/output_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "kvcache/core/errors.h"

namespace generate_program {

using kvcache::check_value;
using std::filesystem::file_type;

void check_output_file(std::string_view option, const std::filesystem::path& path) {
  std::error_code error;
  const file_type type = std::filesystem::status(path, error).type();
  check_value(type != file_type::none, option, " ", path.string(), ": ", error.message());
  check_value(type != file_type::directory, option, " ", path.string(),
              " is a folder; give the name of a file");
  check_value(type == file_type::regular || type == file_type::not_found, option, " ",
              path.string(), " is a pipe, socket or device; give the name of a file");

  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  check_value(std::filesystem::is_directory(folder, error), option, " ", path.string(),
              ": there is no folder ", folder.string());
  std::string probe = (folder / ".kvcache-XXXXXX").string();
  const int fd = ::mkstemp(probe.data());
  check_value(fd >= 0, option, " ", path.string(), ": no file can be made in ", folder.string(),
              ": ", std::generic_category().message(errno));
  ::close(fd);
  ::unlink(probe.c_str());
}

}  // namespace generate_program
