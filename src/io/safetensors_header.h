// The header of a safetensors file: parsing with every check, and writing.
#pragma once

#include <kvcache/io/safetensors.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvcache::detail {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsInfo, std::less<>> infos;
  SafetensorsMetadata metadata;
};

// Parses and checks the header of a file with these bytes. Throws ValueError, naming `path`.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::filesystem::path& path);

struct SafetensorsLayout {
  std::string header;              // length field, JSON, padding
  std::vector<std::string> order;  // in which the tensors' data follow
};

// The header for these tensors, of which only dtype and shape are read. Throws ValueError for what
// the format cannot express, naming `path`.
SafetensorsLayout make_safetensors_layout(const std::map<std::string, at::Tensor>& tensors,
                                          const SafetensorsMetadata& metadata,
                                          const std::filesystem::path& path);

}  // namespace kvcache::detail
