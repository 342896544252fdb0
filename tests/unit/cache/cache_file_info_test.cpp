// What a file says of its cache, and that a cache made by it takes the file in.
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/io/safetensors.h"
#include "tests/support/counting.h"
#include "tests/support/file_content.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using testing::counting;
using testing::FileContent;
using ::testing::HasSubstr;
using testing::refusal;

LayerSpec layer(std::string_view type, std::int64_t window = 0) {
  return {.type = std::string(type), .window = window};
}

void feed(LayeredCache& cache, std::int64_t tokens) {
  const std::int64_t seen = cache.get_seq_length();
  const at::Tensor ids = at::arange(seen, seen + tokens, at::kLong).expand({2, tokens});
  Step step = cache.begin_step({.tokens = tokens, .batch = 2, .ids = ids.contiguous()});
  const at::Tensor states = counting(seen, tokens, {2, 1, 1});
  for (std::int64_t i = 0; i < cache.layer_count(); ++i) {
    if (cache.layer(i).spec().type != kDummy) step.append(i, states, states);
  }
  step.commit();
}

class CacheFileInfoTest : public ::testing::Test {
 protected:
  CacheFileInfoTest()
      : path_(std::filesystem::temp_directory_path() /
              c10::str("kvcache_cache_file_info_", ::getpid())) {}
  ~CacheFileInfoTest() override { std::filesystem::remove(path_); }

  // The room that the file of a static cache asks for. One made so takes the file in and goes on
  // like it.
  std::int64_t room(const std::vector<LayerSpec>& layers, std::int64_t max_cache_len) const {
    StaticCache source(layers, {.max_cache_len = max_cache_len});
    feed(source, 4);
    save_cache(source, path_);
    const CacheFileInfo info = read_cache_file_info(path_);
    EXPECT_EQ(info.kind, "static");
    StaticCache cache(layers, {.max_cache_len = info.max_cache_len});
    load_cache(cache, path_);
    feed(source, 2);
    feed(cache, 2);
    EXPECT_EQ(cache.get_mask_sizes(1, 0), source.get_mask_sizes(1, 0));
    EXPECT_EQ(cache.get_max_length(), source.get_max_length());
    return info.max_cache_len;
  }

  // The file of a small cache, with another header.
  void expect_refused(const std::string& part,
                      const std::function<void(nlohmann::json&)>& change) const {
    DynamicCache cache({layer(kFullAttention)});
    feed(cache, 3);
    save_cache(cache, path_);
    FileContent content = FileContent::read(path_);
    change(content.header);
    content.write(path_);
    EXPECT_THAT(refusal<ValueError>([&] { read_cache_file_info(path_); }), HasSubstr(part));
  }

  std::filesystem::path path_;
};

TEST_F(CacheFileInfoTest, SaysWhatWasSaved) {
  DynamicCache cache({layer(kFullAttention), layer(kSlidingAttention, 4)});
  feed(cache, 7);
  save_cache(cache, path_, {.fingerprint = "tiny-1"});
  const CacheFileInfo info = read_cache_file_info(path_);
  EXPECT_EQ(info.kind, "dynamic");
  EXPECT_EQ(info.fingerprint, "tiny-1");
  EXPECT_EQ(info.batch, 2);
  EXPECT_EQ(info.tokens, 7);
}

TEST_F(CacheFileInfoTest, SaysTheRoomOfAStaticCache) {
  const LayerSpec full = layer(kFullAttention), sliding = layer(kSlidingAttention, 4);
  EXPECT_EQ(room({full}, 9), 9);
  EXPECT_EQ(room({sliding, full, layer(kDummy)}, 9), 9);
  EXPECT_EQ(room({layer(kSlidingAttention, 20)}, 9), 9);
}

// Rings alone bound no text, so any room above the windows makes the same layers. A full layer that
// holds as many tokens as its window goes on as a ring.
TEST_F(CacheFileInfoTest, RingsAloneNeedMoreThanTheirWindow) {
  EXPECT_EQ(room({layer(kSlidingAttention, 4)}, 50), 5);
  EXPECT_EQ(room({layer(kSlidingAttention, 4), layer(kChunkedAttention, 6)}, 50), 7);
  EXPECT_EQ(room({layer(kSlidingAttention, 4), layer(kChunkedAttention, 6)}, 6), 7);
}

TEST_F(CacheFileInfoTest, FaultsAreNamed) {
  using nlohmann::json;
  expect_refused("is of version 1", [](json& h) { h["version"] = 1; });
  expect_refused("there is no 'kind'", [](json& h) { h.erase("kind"); });
  expect_refused("'batch' must be an integer", [](json& h) { h["batch"] = -1; });
  expect_refused("'seen' must be an integer", [](json& h) { h["seen"] = "9"; });
  expect_refused("'layers' must be a list", [](json& h) { h["layers"] = 3; });
  expect_refused("there is no 'spec'", [](json& h) { h["layers"][0].erase("spec"); });
  expect_refused("there is no 'window'", [](json& h) { h["layers"][0]["spec"] = json::object(); });
  expect_refused("'max_length' must be an integer",
                 [](json& h) { h["layers"][0]["max_length"] = std::uint64_t(1) << 63; });
  expect_refused("'max_length' must be an integer",
                 [](json& h) { h["layers"][0]["max_length"] = ~std::uint64_t{0}; });
  save_safetensors(path_, {{"weight", at::arange(4)}});
  EXPECT_THAT(refusal<ValueError>([&] { read_cache_file_info(path_); }),
              HasSubstr("is not the file of a cache"));
  std::ofstream(path_) << "short";
  EXPECT_THAT(refusal<ValueError>([&] { read_cache_file_info(path_); }), HasSubstr(path_.string()));
}

}  // namespace
}  // namespace kvcache
