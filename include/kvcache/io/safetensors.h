// Reading and writing safetensors files (https://github.com/huggingface/safetensors): a JSON header
// that names every tensor, then their bytes. Reading maps the file; nothing is copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <kvcache/io/mapped_file.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

// Text entries of a file's "__metadata__".
using SafetensorsMetadata = std::map<std::string, std::string>;

// One tensor of a file.
struct SafetensorsInfo {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::int64_t offset;  // of its first byte, counted from the start of the file
  std::int64_t nbytes;
};

// An open file. Everything its header says is checked before open() returns, so that no later call
// reads outside the file. Safe to read from several threads.
class SafetensorsFile {
 public:
  // Throws ValueError, with the path and the tensor concerned, for whatever the format forbids:
  // a header that is too long, not JSON, nested, or with a name twice; an unknown dtype; a shape
  // whose size overflows or is not that of the data; data that overlap, leave a hole, or end
  // before or after the file does.
  static SafetensorsFile open(const std::filesystem::path& path);

  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // Names of all tensors, sorted.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;
  // Throws ValueError if the file has no such tensor.
  const SafetensorsInfo& info(std::string_view name) const;
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return mapping_->path(); }

  // The tensor, of info(name)'s dtype and shape, on the CPU and contiguous. It lies in the mapping,
  // which lives as long as any tensor made from it, and is READ-ONLY: an in-place operation on it
  // is a segmentation fault; clone() it first. Only data whose address does not suit the dtype (a
  // header not padded to 8 bytes) are copied. Throws ValueError if the file has no such tensor, or
  // if a BOOL tensor has bytes other than 0 and 1.
  at::Tensor tensor(std::string_view name) const;

  // Lets the memory pages of a tensor's data go, e.g. once it was converted or copied to a device.
  // Throws ValueError if the file has no such tensor.
  void release_pages(std::string_view name) const;

 private:
  SafetensorsFile() = default;

  std::shared_ptr<const MappedFile> mapping_;
  std::map<std::string, SafetensorsInfo, std::less<>> infos_;
  SafetensorsMetadata metadata_;
};

// Writes `tensors` (any device, any strides; shapes and dtypes are kept) as the reference writer
// would: widest dtypes first, so that every tensor is aligned. The file appears whole or not at
// all: it is written beside `path`, synced, and renamed over it. Throws ValueError, before anything
// is written, for an undefined or sparse tensor, a dtype or name the format lacks, or a path that
// cannot be written; RuntimeError if writing fails later (a full disk).
void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, at::Tensor>& tensors,
                      const SafetensorsMetadata& metadata = {});

}  // namespace kvcache
