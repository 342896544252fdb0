#include "io/posix_file.h"

#include <fcntl.h>
#include <kvcache/core/errors.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace kvcache::detail {
namespace {

// Unlike strerror, safe to call from several threads.
std::string error_text(int error) { return std::generic_category().message(error); }

// Length in bytes of the printable UTF-8 character at the start of `text`; 0 if there is none.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const std::size_t length = lead >= 0xf5 ? 0 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

struct TemporaryFile {
  std::filesystem::path path;
  int fd;
};

// Renaming over anything but a regular file would take away what other programs hold on to.
void check_replaceable(const std::filesystem::path& path) {
  using std::filesystem::file_type;
  std::error_code error;
  const file_type type = std::filesystem::status(path, error).type();
  check_value(type != file_type::none, "cannot write ", in_quotes(path.native()), ": ",
              error.message());
  check_value(type != file_type::directory, "cannot write ", in_quotes(path.native()),
              ": it is a directory; give the name of a file");
  check_value(type == file_type::regular || type == file_type::not_found, "cannot write ",
              in_quotes(path.native()), ": it is a pipe, socket or device, not a regular file");
}

// mkstemp would make the file private to its owner; this one gets the usual permissions.
TemporaryFile make_temporary_beside(const std::filesystem::path& path) {
  check_replaceable(path);
  for (int attempt = 0;; ++attempt) {
    const std::string name = c10::str(".kvcache-", ::getpid(), "-", attempt, ".tmp");
    const std::filesystem::path temporary = folder_of(path) / name;
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return {temporary, fd};
    check_value(errno == EEXIST || errno == EINTR, "cannot write ", in_quotes(path.native()),
                ": no file can be made in its folder: ", error_text(errno));
  }
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLimit = 120;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  std::size_t at = 0;
  while (at < text.size() && at < kLimit) {
    const std::size_t length = printable_length(text.substr(at));
    if (length > 0) {
      out += text.substr(at, length);
    } else {
      const auto byte = static_cast<unsigned char>(text[at]);
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
    at += std::max<std::size_t>(length, 1);
  }
  out += '"';
  if (at < text.size()) out += c10::str("... (", text.size(), " bytes)");
  return out;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

bool is_present(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  check_value(!error || status.type() == std::filesystem::file_type::not_found, "cannot look up ",
              in_quotes(path.native()), ": ", error.message());
  return std::filesystem::exists(status);
}

void check_checkpoint_folder(const std::filesystem::path& folder) {
  std::error_code ignored;  // a folder that cannot be looked at counts as none
  check_value(std::filesystem::is_directory(folder, ignored), "'", folder.native(),
              "' is not a folder; name that of a checkpoint, which holds config.json and the "
              "weights (download one from a hub first)");
}

OpenedFile open_regular_file(const std::filesystem::path& path) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (fd < 0 && errno == EINTR);
  check_value(fd >= 0, "cannot open ", in_quotes(path.native()), ": ", error_text(errno));
  FileDescriptor owner(fd);
  struct stat status = {};
  check_value(::fstat(fd, &status) == 0, "cannot open ", in_quotes(path.native()), ": ",
              error_text(errno));
  check_value(!S_ISDIR(status.st_mode), "cannot read ", in_quotes(path.native()),
              ": it is a directory, not a file");
  check_value(S_ISREG(status.st_mode), "cannot read ", in_quotes(path.native()),
              ": it is a pipe, socket or device, not a regular file");
  return {std::move(owner), static_cast<std::int64_t>(status.st_size)};
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path), fd_(-1) {
  TemporaryFile made = make_temporary_beside(path);
  temporary_ = std::move(made.path);
  fd_ = FileDescriptor(made.fd);
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    check_state(written >= 0, "writing ", in_quotes(path_.native()),
                " failed: ", error_text(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  check_state(::fsync(fd_.get()) == 0, "writing ", in_quotes(path_.native()),
              " failed: ", error_text(errno));
  check_state(::rename(temporary_.c_str(), path_.c_str()) == 0, "renaming the finished file to ",
              in_quotes(path_.native()), " failed: ", error_text(errno));
  committed_ = true;
  // The file is whole under its name; syncing the folder makes the name survive a power cut. Some
  // file systems cannot do that, which is no fault of the file.
  const FileDescriptor folder(::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());
}

}  // namespace kvcache::detail
