// Whether a file can be written, found out before the work whose result it takes.
#pragma once

#include <filesystem>
#include <string_view>

namespace generate_program {

// Throws kvcache::ValueError, beginning with `option`, unless `path` is a regular file or none yet,
// in a folder that takes new files. Leaves no file behind.
void check_output_file(std::string_view option, const std::filesystem::path& path);

}  // namespace generate_program
