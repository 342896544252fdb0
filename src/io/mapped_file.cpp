#include <kvcache/core/errors.h>
#include <kvcache/io/mapped_file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "io/posix_file.h"

namespace kvcache {

using detail::in_quotes;

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const detail::OpenedFile file = detail::open_regular_file(path);
  check_value(file.size > 0, "cannot map ", in_quotes(path.native()), ": the file is empty");
  const auto size = static_cast<std::size_t>(file.size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  check_value(address != MAP_FAILED, "cannot map ", in_quotes(path.native()), " (", file.size,
              " bytes): ", std::generic_category().message(errno));
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release_pages(std::int64_t offset, std::int64_t length) const {
  const auto size = static_cast<std::int64_t>(bytes_.size());
  check_value(offset >= 0 && length >= 0 && offset <= size && length <= size - offset,
              "cannot release bytes ", offset, " to ", offset, " + ", length, " of ",
              in_quotes(path_.native()), ": the mapping has ", size, " bytes");
  if (length == 0) return;
  // Whole pages, outward: a neighbour's bytes on the first or last page come back when read.
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t begin = offset / page * page;
  auto* address = const_cast<std::byte*>(bytes_.data()) + begin;
  // Only advice; it fails where the process has locked its memory, and then nothing is lost.
  ::madvise(address, static_cast<std::size_t>(offset + length - begin), MADV_DONTNEED);
}

}  // namespace kvcache
