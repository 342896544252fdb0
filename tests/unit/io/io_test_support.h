// What the io tests share: a folder that goes away, and safetensors files put together by hand.
#pragma once

#include <gtest/gtest.h>
#include <kvcache/core/errors.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvcache-io-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Writes the file anew and gives its path. (Some file systems sync a file that is truncated and
  // written again, which makes thousands of them slow; hence the removal.)
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    const std::filesystem::path path = path_ / name;
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  std::vector<std::string> file_names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::filesystem::path path_;
};

// A safetensors file with this header, as it stands, and these data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = "") {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(header).append(data);
}

// The message of the ValueError that `action` throws; a test failure if it throws none.
template <typename Action>
std::string value_error(Action&& action) {
  try {
    action();
  } catch (const ValueError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected a ValueError, got: " << error.what();
    return "";
  }
  ADD_FAILURE() << "expected a ValueError, but nothing was thrown";
  return "";
}

}  // namespace kvcache::testing
