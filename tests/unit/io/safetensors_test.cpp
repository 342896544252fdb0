#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <kvcache/io/read_text_file.h>
#include <kvcache/io/safetensors.h>
#include <sys/resource.h>

#include <csignal>
#include <map>

#include "io_test_support.h"
#include "tests/support/temp_folder.h"

namespace kvcache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TempFolder;
using testing::value_error;

const char* const kGolden = KVCACHE_TEST_DATA_DIR "/parity/goldens/io/dtypes.safetensors";

const std::map<std::string, at::ScalarType> kGoldenDtypes = {{"float64", at::kDouble},
                                                             {"float32", at::kFloat},
                                                             {"float16", at::kHalf},
                                                             {"bfloat16", at::kBFloat16},
                                                             {"int64", at::kLong},
                                                             {"int32", at::kInt},
                                                             {"int16", at::kShort},
                                                             {"int8", at::kChar},
                                                             {"uint64", at::kUInt64},
                                                             {"uint32", at::kUInt32},
                                                             {"uint16", at::kUInt16},
                                                             {"uint8", at::kByte},
                                                             {"bool", at::kBool},
                                                             {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                             {"float8_e5m2", at::kFloat8_e5m2}};

// 0 to 5 as [2, 3], in a dtype that need not have arithmetic.
at::Tensor counting(at::ScalarType dtype) { return at::arange(6).reshape({2, 3}).to(dtype); }

void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  const at::Tensor dense = expected.contiguous();
  ASSERT_TRUE(actual.is_contiguous());
  if (actual.numel() == 0) return;
  EXPECT_EQ(std::memcmp(actual.const_data_ptr(), dense.const_data_ptr(), dense.nbytes()), 0);
}

// Writing past `bytes` fails while this lives, as it would on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &saved_);
    const rlimit lowered = {bytes, saved_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lowered);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &saved_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit saved_ = {};
};

TEST(Safetensors, ReadsEveryDtypeOfTheReferenceWriter) {
  const SafetensorsFile file = SafetensorsFile::open(kGolden);
  EXPECT_EQ(file.names().size(), kGoldenDtypes.size() + 3);
  for (const auto& [name, dtype] : kGoldenDtypes) {
    SCOPED_TRACE(name);
    EXPECT_EQ(file.info(name).dtype, dtype);
    EXPECT_THAT(file.info(name).shape, ElementsAre(2, 3));
    expect_same(file.tensor(name), counting(dtype));
  }
  expect_same(file.tensor("scalar"), at::full({}, 7.0, at::kFloat));
  expect_same(file.tensor("empty"), at::zeros({0, 4}));
  expect_same(file.tensor("na\u00efve \"name\""), at::arange(1, 3, at::kInt));
  EXPECT_THAT(file.metadata().at("made_with"), HasSubstr("safetensors"));
}

TEST(Safetensors, WritesTheBytesOfTheReferenceWriter) {
  const TempFolder folder;
  const SafetensorsFile file = SafetensorsFile::open(kGolden);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : file.names()) tensors[name] = file.tensor(name);
  const auto path = folder.path() / "again";
  save_safetensors(path, tensors, file.metadata());
  EXPECT_EQ(read_text_file(path), read_text_file(kGolden));
}

TEST(Safetensors, TensorsLieInTheMapping) {
  at::Tensor first;
  at::Tensor second;
  {
    const SafetensorsFile file = SafetensorsFile::open(kGolden);
    first = file.tensor("float32");
    second = file.tensor("float32");
    file.release_pages("float32");
  }
  // No copy was made, and the mapping outlives the file object.
  EXPECT_EQ(first.const_data_ptr(), second.const_data_ptr());
  expect_same(first, counting(at::kFloat));
}

TEST(Safetensors, CopiesDataThatAreNotAligned) {
  const TempFolder folder;
  const float value = 3.0F;
  const std::string data(reinterpret_cast<const char*>(&value), sizeof(value));
  const std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const auto path =
        folder.write("x", safetensors_bytes(header + std::string(padding, ' '), data));
    const at::Tensor tensor = SafetensorsFile::open(path).tensor("x");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % alignof(float), 0U);
    EXPECT_EQ(tensor.item<float>(), value);
  }
}

TEST(Safetensors, UnknownNamesAreRefused) {
  const SafetensorsFile file = SafetensorsFile::open(kGolden);
  EXPECT_TRUE(file.contains("scalar"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_THAT(value_error([&] { file.tensor("none"); }), HasSubstr("no tensor \"none\""));
  EXPECT_THAT(value_error([&] { file.info("none"); }), HasSubstr("dtypes.safetensors"));
  EXPECT_THAT(value_error([&] { file.release_pages("none"); }), HasSubstr("none"));
}

TEST(SaveSafetensors, RoundTripsStridesScalarsAndEmptyTensors) {
  const TempFolder folder;
  const std::map<std::string, at::Tensor> tensors = {
      {"transposed", counting(at::kFloat).t()},
      {"expanded", at::full({1}, 5, at::kLong).expand({4})},
      {"slice", at::arange(10).slice(0, 1, 8, 3)},
      {"negated", at::imag(at::arange(4).to(at::kComplexFloat).conj())},
      {"scalar", at::full({}, true)},
      {"empty", at::empty({3, 0, 2}, at::kBFloat16)},
      {"", at::arange(3)},
      {"quote\" \n \\ \u00e9", at::arange(2)}};
  const auto path = folder.path() / "x.safetensors";
  save_safetensors(path, tensors, {{"b", "2"}, {"a", "\u00e9\n"}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    expect_same(file.tensor(name), tensor.resolve_neg());
    EXPECT_EQ(file.info(name).offset % 8 % tensor.element_size(), 0);
  }
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"a", "\u00e9\n"}, {"b", "2"}}));
}

TEST(SaveSafetensors, AnEmptyFileHasNoTensors) {
  const TempFolder folder;
  save_safetensors(folder.path() / "x", {});
  EXPECT_TRUE(SafetensorsFile::open(folder.path() / "x").names().empty());
}

TEST(SaveSafetensors, ReplacesAFileWhoseTensorsAreInUse) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  save_safetensors(path, {{"x", at::zeros({3})}});
  const at::Tensor old = SafetensorsFile::open(path).tensor("x");
  save_safetensors(path, {{"x", at::full({3}, 1.0)}});
  expect_same(old, at::zeros({3}));
  expect_same(SafetensorsFile::open(path).tensor("x"), at::full({3}, 1.0));
  EXPECT_THAT(folder.file_names(), ElementsAre("x"));
}

TEST(SaveSafetensors, RefusesBeforeAnythingIsWritten) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const auto message = [&](const std::map<std::string, at::Tensor>& tensors,
                           const SafetensorsMetadata& metadata = {}) {
    return value_error([&] { save_safetensors(path, tensors, metadata); });
  };
  EXPECT_THAT(message({{"bad", at::Tensor()}}), HasSubstr("tensor \"bad\" is undefined"));
  EXPECT_THAT(message({{"bad", at::zeros({2, 2}).to_sparse()}}), HasSubstr("not dense"));
  EXPECT_THAT(message({{"bad", at::zeros({2}, at::kComplexFloat)}}), HasSubstr("complex64"));
  EXPECT_THAT(message({{"bad", at::empty({2}, at::device(at::kMeta))}}), HasSubstr("meta"));
  EXPECT_THAT(message({{"__metadata__", at::zeros({2})}}), HasSubstr("reserved"));
  EXPECT_THAT(message({{"\xff", at::zeros({2})}}), HasSubstr("UTF-8"));
  EXPECT_THAT(message({}, {{"a", "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_TRUE(folder.file_names().empty());
  EXPECT_THAT(value_error([&] { save_safetensors(folder.path(), {}); }), HasSubstr("directory"));
  EXPECT_THAT(value_error([&] { save_safetensors(folder.path() / "no" / "x", {}); }),
              HasSubstr("No such file or directory"));
}

TEST(SaveSafetensors, AFailedWriteLeavesTheOldFile) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  save_safetensors(path, {{"x", at::zeros({3})}});
  {
    const FileSizeLimit limit(1000);  // bytes
    EXPECT_THROW(save_safetensors(path, {{"x", at::zeros({1000})}}), RuntimeError);
  }
  EXPECT_THAT(folder.file_names(), ElementsAre("x"));
  expect_same(SafetensorsFile::open(path).tensor("x"), at::zeros({3}));
}

}  // namespace
}  // namespace kvcache
