// Checkpoint folders: one file or shards with an index, and indexes that cannot be trusted.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <kvcache/io/safetensors.h>
#include <kvcache/io/state_dict.h>
#include <sys/stat.h>

#include <random>

#include "io_test_support.h"
#include "tests/support/temp_folder.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::value_error;

constexpr const char* kIndex = "model.safetensors.index.json";

at::Tensor numbered(int value) { return at::full({2}, value, at::kFloat); }

std::string load_error(const std::filesystem::path& folder) {
  const std::string text = value_error([&] { StateDict::from_checkpoint(folder); });
  EXPECT_THAT(text, HasSubstr(folder.string()));
  EXPECT_LT(text.size(), 1000U);
  return text;
}

// Two shards: "one" with weights a and b, "two" with c; and this weight_map.
class ShardedCheckpoint : public ::testing::Test {
 protected:
  ShardedCheckpoint() {
    save_safetensors(folder_.path() / "one", {{"a", numbered(1)}, {"b", numbered(2)}});
    save_safetensors(folder_.path() / "two", {{"c", numbered(3)}});
  }

  std::string error(const std::string& index) {
    folder_.write(kIndex, index);
    return load_error(folder_.path());
  }
  std::string map_error(const std::string& weight_map) {
    return error(R"({"metadata":{"total_size":24},"weight_map":)" + weight_map + "}");
  }

  TempFolder folder_;
};

TEST_F(ShardedCheckpoint, IsReadByItsIndex) {
  folder_.write(kIndex,
                R"({"metadata":{"total_size":24},"weight_map":{"a":"one","b":"one","c":"two"}})");
  const StateDict weights = StateDict::from_checkpoint(folder_.path());
  EXPECT_TRUE(at::equal(weights.take("a", {2}), numbered(1)));
  EXPECT_TRUE(at::equal(weights.take("b", {2}), numbered(2)));
  EXPECT_TRUE(at::equal(weights.take("c", {2}), numbered(3)));
  EXPECT_NO_THROW(weights.verify());
}

TEST_F(ShardedCheckpoint, ASingleFileComesFirst) {
  folder_.write(kIndex, "not JSON");
  save_safetensors(folder_.path() / "model.safetensors", {{"a", numbered(7)}});
  const StateDict weights = StateDict::from_checkpoint(folder_.path());
  EXPECT_TRUE(at::equal(weights.take("a", {2}), numbered(7)));
  EXPECT_NO_THROW(weights.verify());
}

TEST_F(ShardedCheckpoint, ShardsMayBeSymbolicLinks) {
  const TempFolder elsewhere;
  std::filesystem::rename(folder_.path() / "two", elsewhere.path() / "blob");
  std::filesystem::create_symlink(elsewhere.path() / "blob", folder_.path() / "two");
  folder_.write(kIndex, R"({"weight_map":{"a":"one","b":"one","c":"two"}})");
  EXPECT_TRUE(StateDict::from_checkpoint(folder_.path()).contains("c"));
}

TEST_F(ShardedCheckpoint, IndexAndShardsMustAgree) {
  EXPECT_THAT(map_error(R"({"a":"one","b":"one","c":"three"})"),
              HasSubstr("lacks the shard \"three\", which holds 1 weights"));
  EXPECT_THAT(map_error(R"({"a":"one","b":"one","c":"one"})"),
              AllOf(HasSubstr("one\" lacks weight \"c\""), HasSubstr("one download")));
  EXPECT_THAT(map_error(R"({"a":"one","c":"two"})"), HasSubstr("one\" holds weight \"b\""));
  EXPECT_THAT(map_error(R"({"a":"one","b":"two","c":"two"})"), HasSubstr("holds weight \"b\""));
}

TEST_F(ShardedCheckpoint, ShardsStayInTheFolder) {
  const TempFolder other;
  save_safetensors(other.path() / "secret", {{"c", numbered(3)}});
  const std::string absolute = (other.path() / "secret").string();
  const std::string relative = "../" + other.path().filename().string() + "/secret";
  std::filesystem::create_directories(folder_.path() / "sub");
  for (const std::string& name :
       {absolute, relative, std::string("sub/../two"), std::string("./two"), std::string("sub/two"),
        std::string("two/"), std::string("."), std::string(".."), std::string(),
        std::string("..\\\\two"), std::string("two\\u0000.safetensors")}) {
    SCOPED_TRACE(name);
    EXPECT_THAT(map_error(R"({"a":"one","b":"one","c":")" + name + "\"}"),
                AllOf(HasSubstr("weight \"c\""), HasSubstr("not the name of a file")));
  }
}

TEST_F(ShardedCheckpoint, ShardsMustBeFiles) {
  const std::string index = R"({"a":"one","b":"one","c":"bad"})";
  std::filesystem::create_directories(folder_.path() / "bad");
  EXPECT_THAT(map_error(index), HasSubstr("is a directory"));
  std::filesystem::remove(folder_.path() / "bad");
  ASSERT_EQ(::mkfifo((folder_.path() / "bad").c_str(), 0600), 0);
  EXPECT_THAT(map_error(index), HasSubstr("not a regular file"));
  std::filesystem::remove(folder_.path() / "bad");
  std::filesystem::create_symlink("bad", folder_.path() / "bad");
  EXPECT_THAT(map_error(index), HasSubstr("cannot look up"));
  folder_.write("one", "short");
  EXPECT_THAT(map_error(R"({"a":"one","b":"one","c":"two"})"), HasSubstr("only 5 bytes"));
}

TEST_F(ShardedCheckpoint, HostileIndexes) {
  EXPECT_THAT(error(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("\"weight_map\" must be a JSON object"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), HasSubstr("\"weight_map\" must be"));
  EXPECT_THAT(error(R"({"weight_map":{}})"), HasSubstr("\"weight_map\" is empty"));
  EXPECT_THAT(error(std::string(100'000, '[')), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(map_error(R"({"a":"one","a":"two"})"), HasSubstr("\"a\" occurs twice"));
  for (const char* shard : {"1", "null", "[\"one\"]", "{}", "1.5", "true"}) {
    EXPECT_THAT(map_error(R"({"a":)" + std::string(shard) + "}"),
                HasSubstr("the shard of weight \"a\" must be a string"));
  }
}

TEST_F(ShardedCheckpoint, FlippedBitsInTheIndex) {
  const std::string whole = R"({"metadata":{},"weight_map":{"a":"one","b":"one","c":"two"}})";
  std::mt19937 random(20260728);
  for (int round = 0; round < 1000; ++round) {
    std::string index = whole;
    index[random() % index.size()] ^= static_cast<char>(1U << random() % 8);
    folder_.write(kIndex, index);
    try {
      StateDict::from_checkpoint(folder_.path());
    } catch (const ValueError&) {
    }
  }
}

TEST(CheckpointFolder, MustHoldSafetensors) {
  const TempFolder folder;
  EXPECT_THAT(load_error(folder.path() / "none"), HasSubstr("is not a folder"));
  EXPECT_THAT(load_error(folder.write("file", "x")), HasSubstr("is not a folder"));
  EXPECT_THAT(load_error(folder.path()),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  std::filesystem::create_directories(folder.path() / "model.safetensors");
  EXPECT_THAT(load_error(folder.path()), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace kvcache
