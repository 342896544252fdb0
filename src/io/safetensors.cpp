#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <kvcache/core/errors.h>
#include <kvcache/io/safetensors.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "io/posix_file.h"
#include "io/safetensors_header.h"

namespace kvcache {
namespace {

using detail::in_quotes;

bool is_aligned(const void* address, at::ScalarType dtype) {
  return reinterpret_cast<std::uintptr_t>(address) % c10::elementSize(dtype) == 0;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.mapping_ = std::make_shared<const MappedFile>(path);
  detail::SafetensorsHeader header = detail::parse_safetensors_header(file.mapping_->bytes(), path);
  file.infos_ = std::move(header.infos);
  file.metadata_ = std::move(header.metadata);
  return file;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(infos_.size());
  for (const auto& [name, info] : infos_) names.push_back(name);
  return names;
}

bool SafetensorsFile::contains(std::string_view name) const {
  return infos_.find(name) != infos_.end();
}

const SafetensorsInfo& SafetensorsFile::info(std::string_view name) const {
  const auto found = infos_.find(name);
  check_value(found != infos_.end(), "safetensors file ", in_quotes(path().native()),
              " has no tensor ", in_quotes(name), "; it has ", infos_.size(), " others");
  return found->second;
}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsInfo& info = this->info(name);
  const at::TensorOptions options = at::TensorOptions(info.dtype).device(at::kCPU);
  const auto data = mapping_->bytes().subspan(static_cast<std::size_t>(info.offset),
                                              static_cast<std::size_t>(info.nbytes));
  if (info.dtype == at::kBool) {
    const bool valid = std::all_of(data.begin(), data.end(),
                                   [](std::byte value) { return value <= std::byte{1}; });
    check_value(valid, "safetensors file ", in_quotes(path().native()), ": tensor ",
                in_quotes(name), " is of dtype BOOL but has bytes other than 0 and 1");
  }
  if (data.empty()) return at::empty(info.shape, options);
  if (!is_aligned(data.data(), info.dtype)) {
    at::Tensor copy = at::empty(info.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data.data(), data.size());
    mapping_->release_pages(info.offset, info.nbytes);
    return copy;
  }
  // ATen has no read-only tensors: from_blob wants a pointer to non-const.
  return at::from_blob(
      const_cast<std::byte*>(data.data()), info.shape, [mapping = mapping_](void*) {}, options);
}

void SafetensorsFile::release_pages(std::string_view name) const {
  const SafetensorsInfo& info = this->info(name);
  mapping_->release_pages(info.offset, info.nbytes);
}

void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, at::Tensor>& tensors,
                      const SafetensorsMetadata& metadata) {
  const detail::SafetensorsLayout layout = detail::make_safetensors_layout(tensors, metadata, path);
  detail::AtomicFile file(path);
  file.write(std::as_bytes(std::span(layout.header)));
  for (const std::string& name : layout.order) {
    const at::Tensor dense = tensors.at(name).cpu().resolve_neg().contiguous();
    file.write({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
  }
  file.commit();
}

}  // namespace kvcache
