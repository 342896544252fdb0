// What tells one model from another, short enough to be kept in files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "kvcache/io/state_dict.h"

namespace kvcache::detail {

// "<model_type>-<16 hexadecimal digits>": a hash of what config.json says, in whatever layout and
// order, apart from what says nothing of the computation (such as paths and versions), and of the
// weights' names and shapes. Throws ValueError for a file that is not JSON.
std::string fingerprint(std::string_view model_type, const std::filesystem::path& config,
                        const StateDict& weights);

}  // namespace kvcache::detail
