// Files of caches in tests: a folder for them, and the same file again with something changed.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/cache/serialization.h"
#include "kvcache/io/safetensors.h"
#include "tests/contract/digest.h"
#include "tests/support/refusal.h"

namespace kvcache::testing {

class CacheFileTest : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, at::Tensor>;

  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / c10::str("kvcache_files_test_", ::getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path() const { return folder_ / "cache.safetensors"; }

  // The saved file again, with another header.
  void rewrite(const std::function<void(nlohmann::json&)>& change) const {
    const SafetensorsFile file = SafetensorsFile::open(path());
    nlohmann::json header = nlohmann::json::parse(file.metadata().at("kvcache.cache"));
    change(header);
    rewrite(
        file, [](auto&) {}, header.dump());
  }

  // The saved file again, with other tensors.
  void retensor(const std::function<void(Tensors&)>& change) const {
    const SafetensorsFile file = SafetensorsFile::open(path());
    rewrite(file, change, file.metadata().at("kvcache.cache"));
  }

 private:
  void rewrite(const SafetensorsFile& file, const std::function<void(Tensors&)>& change,
               const std::string& header) const {
    Tensors tensors;
    for (const std::string& name : file.names()) tensors[name] = file.tensor(name).clone();
    change(tensors);
    save_safetensors(path(), tensors, {{"kvcache.cache", header}});
  }

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
