// Files of caches in tests: a folder for them, and the same file again with something changed.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/cache/serialization.h"
#include "tests/contract/digest.h"
#include "tests/support/file_content.h"
#include "tests/support/refusal.h"

namespace kvcache::testing {

class CacheFileTest : public ::testing::Test {
 protected:
  using Tensors = FileContent::Tensors;

  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / c10::str("kvcache_files_test_", ::getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path() const { return folder_ / "cache.safetensors"; }

  // The saved file again, with another header.
  void rewrite(const std::function<void(nlohmann::json&)>& change) const {
    FileContent content = FileContent::read(path());
    change(content.header);
    content.write(path());
  }

  // The saved file again, with other tensors than its header says.
  void retensor(const std::function<void(Tensors&)>& change) const {
    FileContent content = FileContent::read(path());
    change(content.tensors);
    content.write(path());
  }

  // The saved file again, with other tensors, of which its header says so.
  void craft(const std::function<void(Tensors&)>& change) const {
    FileContent content = FileContent::read(path());
    change(content.tensors);
    content.say_forms();
    content.write(path());
  }

 private:
  std::filesystem::path folder_;
};

// Loading is refused with a message that has `part`, and leaves the cache as it was.
inline void expect_load_refused(Cache& cache, const std::filesystem::path& path,
                                const std::string& part, const CacheFileOptions& options = {}) {
  const auto before = digest_of(cache);
  EXPECT_THAT(refusal<ValueError>([&] { load_cache(cache, path, options); }),
              ::testing::HasSubstr(part));
  EXPECT_EQ(difference(before, digest_of(cache)), "");
}

}  // namespace kvcache::testing
