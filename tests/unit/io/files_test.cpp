#include <fcntl.h>
#include <gmock/gmock.h>
#include <kvcache/io/mapped_file.h>
#include <kvcache/io/read_text_file.h>
#include <kvcache/io/safetensors.h>
#include <sys/stat.h>

#include <fstream>
#include <utility>

#include "io_test_support.h"
#include "tests/support/temp_folder.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::value_error;

std::string text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Resident bytes of mapped files in this process.
std::int64_t resident_file_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssFile:") {
      std::int64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
  }
  return -1;
}

int sum_of_pages(const MappedFile& file) {
  int sum = 0;
  for (std::size_t i = 0; i < file.bytes().size(); i += 4096) sum += int(file.bytes()[i]);
  return sum;
}

TEST(MappedFile, HoldsTheBytesAndMoves) {
  const TempFolder folder;
  MappedFile first(folder.write("a", "hello"));
  EXPECT_EQ(text_of(first), "hello");
  MappedFile second(std::move(first));
  EXPECT_EQ(text_of(second), "hello");
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): the contract
  MappedFile third(folder.write("b", "other"));
  third = std::move(second);
  EXPECT_EQ(text_of(third), "hello");
  EXPECT_EQ(third.path(), folder.path() / "a");
}

TEST(MappedFile, OutlivesTheRemovalOfItsFile) {
  const TempFolder folder;
  const MappedFile file(folder.write("a", "hello"));
  std::filesystem::remove(folder.path() / "a");
  EXPECT_EQ(text_of(file), "hello");
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const TempFolder folder;
  const auto message = [&](const std::filesystem::path& path) {
    return value_error([&] { MappedFile file(path); });
  };
  EXPECT_THAT(message(folder.path() / "none"),
              AllOf(HasSubstr("none"), HasSubstr("No such file or directory")));
  EXPECT_THAT(message(folder.path()), HasSubstr("is a directory"));
  EXPECT_THAT(message(folder.write("empty", "")), HasSubstr("empty"));
  EXPECT_THAT(message("/dev/null"), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message(folder.path() / "pipe"), HasSubstr("not a regular file"));
}

TEST(MappedFile, ReleasedPagesComeBack) {
  const TempFolder folder;
  const std::int64_t size = 32 << 20;
  const MappedFile file(folder.write("a", std::string(size, '\1')));
  const int sum = sum_of_pages(file);
  const std::int64_t before = resident_file_bytes();
  file.release_pages(1, size - 1);
  const std::int64_t after = resident_file_bytes();
  EXPECT_LT(after, before - size / 2);
  EXPECT_EQ(sum_of_pages(file), sum);
}

TEST(MappedFile, ReleasesOnlyWithinTheFile) {
  const TempFolder folder;
  const MappedFile file(folder.write("a", "hello"));
  file.release_pages(0, 5);
  file.release_pages(5, 0);
  for (const auto& [offset, length] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 1}, {0, -1}, {0, 6}, {6, 0}, {5, INT64_MAX}, {INT64_MAX, INT64_MAX}}) {
    EXPECT_THAT(value_error([&, from = offset, size = length] { file.release_pages(from, size); }),
                HasSubstr("the mapping has 5 bytes"));
  }
  EXPECT_EQ(text_of(file), "hello");
}

TEST(SaveSafetensors, ReplacesRegularFilesOnly) {
  const TempFolder folder;
  const auto pipe = folder.path() / "pipe", loop = folder.path() / "loop";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(value_error([&] { save_safetensors(pipe, {}); }), HasSubstr("not a regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_THAT(value_error([&] { save_safetensors("/dev/null", {}); }),
              HasSubstr("not a regular file"));
  std::filesystem::create_symlink(loop, loop);
  EXPECT_THAT(value_error([&] { save_safetensors(loop, {}); }), HasSubstr("symbolic links"));
  EXPECT_TRUE(std::filesystem::is_symlink(loop));
}

TEST(ReadTextFile, ReadsAllBytes) {
  const TempFolder folder;
  const std::string text("a\0b\xff\r\n", 6);
  EXPECT_EQ(read_text_file(folder.write("a", text)), text);
  EXPECT_EQ(read_text_file(folder.write("empty", "")), "");
}

TEST(ReadTextFile, RefusesLargeAndUnreadableFiles) {
  const TempFolder folder;
  const auto path = folder.write("a", "hello");
  EXPECT_EQ(read_text_file(path, 5), "hello");
  EXPECT_THAT(value_error([&] { read_text_file(path, 4); }),
              AllOf(HasSubstr("5 bytes"), HasSubstr("4 allowed"), HasSubstr(path.string())));
  EXPECT_THAT(value_error([&] { read_text_file(folder.path()); }), HasSubstr("is a directory"));
  EXPECT_THAT(value_error([&] { read_text_file(folder.path() / "none"); }),
              HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace kvcache
