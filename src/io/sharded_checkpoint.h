// Finds and opens the safetensors files of a checkpoint folder.
#pragma once

#include <kvcache/io/safetensors.h>

#include <filesystem>
#include <memory>
#include <vector>

namespace kvcache::detail {

// model.safetensors, or the shards of model.safetensors.index.json; no name is in two of them.
// Throws ValueError as StateDict::from_checkpoint says.
std::vector<std::shared_ptr<const SafetensorsFile>> open_checkpoint_files(
    const std::filesystem::path& folder);

}  // namespace kvcache::detail
