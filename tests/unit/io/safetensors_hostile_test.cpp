// Damaged and hostile files: each must give a ValueError that names the file (and the tensor, where
// there is one), never a crash, another exception or a read outside the file.
#include <gmock/gmock.h>
#include <kvcache/io/read_text_file.h>
#include <kvcache/io/safetensors.h>

#include <limits>
#include <random>

#include "io_test_support.h"
#include "tests/support/temp_folder.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TempFolder;
using testing::value_error;

const char* const kGolden = KVCACHE_TEST_DATA_DIR "/parity/goldens/io/dtypes.safetensors";

// Opens a file with these bytes and reads every byte of every tensor.
unsigned read_all(const TempFolder& folder, std::string_view bytes) {
  const SafetensorsFile file = SafetensorsFile::open(folder.write("file", bytes));
  unsigned sum = 0;
  for (const std::string& name : file.names()) {
    const at::Tensor tensor = file.tensor(name);
    const auto* data = static_cast<const unsigned char*>(tensor.const_data_ptr());
    for (std::size_t i = 0; i < tensor.nbytes(); ++i) sum += data[i];
  }
  return sum;
}

std::string message(std::string_view bytes) {
  const TempFolder folder;
  const std::string text = value_error([&] { read_all(folder, bytes); });
  EXPECT_THAT(text, HasSubstr((folder.path() / "file").string()));
  EXPECT_LT(text.size(), 1000U);
  return text;
}

// The error for a file of 8 data bytes with one tensor "x" of this entry.
std::string entry_error(const std::string& entry) {
  const std::string text = message(safetensors_bytes("{\"x\":" + entry + "}", "01234567"));
  EXPECT_THAT(text, HasSubstr("tensor \"x\""));
  return text;
}

std::string shape_error(const std::string& shape) {
  return entry_error(R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]})");
}

std::string offsets_error(const std::string& offsets) {
  return entry_error(R"({"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}");
}

// The error for a header of several tensors over `data_bytes` bytes.
std::string cover_error(const std::string& header, std::size_t data_bytes) {
  return message(safetensors_bytes(header, std::string(data_bytes, '\0')));
}

std::string u8_entry(const std::string& name, int begin, int end) {
  return "\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(end - begin) +
         R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(HostileSafetensors, TruncatedAnywhere) {
  const TempFolder folder;
  const std::string whole = read_text_file(kGolden);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    SCOPED_TRACE(length);
    value_error([&] { read_all(folder, std::string_view(whole).substr(0, length)); });
  }
  EXPECT_NO_THROW(read_all(folder, whole));
  value_error([&] { read_all(folder, whole + "x"); });
}

TEST(HostileSafetensors, AbsurdHeaderLength) {
  const std::vector<std::uint64_t> lengths = {3,          (1U << 27), 100'000'001,
                                              1ULL << 32, 1ULL << 63, (1ULL << 63) - 8,
                                              ~0ULL - 7,  ~0ULL,      ~0ULL - (1ULL << 20)};
  for (const std::uint64_t length : lengths) {
    std::string bytes = safetensors_bytes("{}");
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_THAT(message(bytes), HasSubstr("its header would have " + std::to_string(length)));
  }
  EXPECT_THAT(message("{}"), HasSubstr("only 2 bytes"));
}

TEST(HostileSafetensors, HeaderIsNoJsonObject) {
  for (const std::string& header :
       {std::string(), std::string(" "), std::string("{"), std::string("{]"), std::string("{}}"),
        std::string("{} x"), std::string("{,}"), std::string("{\"x\"}"), std::string("\"\xff\""),
        std::string("{\"\xc3\":1}"), std::string("{\"\\ud800\":1}"), std::string("{}\0x", 4),
        std::string("{\"x\":1e999}"), std::string("{\"x\":-}"), std::string("{/**/}"),
        std::string(1000, '\xff')}) {
    SCOPED_TRACE(header);
    EXPECT_THAT(message(safetensors_bytes(header)), HasSubstr("not valid JSON"));
  }
  for (const char* header : {"[]", "null", "1", "\"x\"", "true"}) {
    EXPECT_THAT(message(safetensors_bytes(header)), HasSubstr("must be a JSON object"));
  }
}

TEST(HostileSafetensors, NestedJson) {
  for (const char* opening : {"[", "{\"x\":", "[{\"x\":"}) {
    std::string header = "{\"x\":";
    for (int i = 0; i < 1'000'000; ++i) header += opening;
    EXPECT_THAT(message(safetensors_bytes(header)), HasSubstr("nested deeper than 3"));
  }
  const std::string shape = R"({"x":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})";
  EXPECT_THAT(message(safetensors_bytes(shape, "01234567")), HasSubstr("nested deeper than 3"));
}

TEST(HostileSafetensors, DuplicateNames) {
  EXPECT_THAT(cover_error("{" + u8_entry("x", 0, 1) + "," + u8_entry("x", 1, 2) + "}", 2),
              HasSubstr("\"x\" occurs twice"));
  EXPECT_THAT(message(safetensors_bytes(R"({"x":{"dtype":"U8","dtype":"U8"}})")),
              HasSubstr("\"dtype\" occurs twice"));
  EXPECT_THAT(message(safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})")),
              HasSubstr("twice"));
}

TEST(HostileSafetensors, Entries) {
  for (const char* entry : {"1", "[]", "null", "\"F32\"", "-0.5"}) {
    EXPECT_THAT(entry_error(entry), HasSubstr("must be a JSON object"));
  }
  EXPECT_THAT(entry_error("{}"), HasSubstr("\"dtype\" must be a string"));
  EXPECT_THAT(entry_error(R"({"dtype":"F32"})"), HasSubstr("\"shape\" must be an array"));
  EXPECT_THAT(entry_error(R"({"dtype":"F32","shape":[2]})"), HasSubstr("\"data_offsets\""));
}

TEST(HostileSafetensors, Dtypes) {
  for (const char* dtype : {"F31", "", "f32", "torch.float32", "C64", "F32\\u0000"}) {
    EXPECT_THAT(
        entry_error(R"({"shape":[2],"data_offsets":[0,8],"dtype":")" + std::string(dtype) + "\"}"),
        AllOf(HasSubstr("unknown dtype"), HasSubstr("known are BOOL, U8")));
  }
  EXPECT_THAT(entry_error(R"({"shape":[2],"data_offsets":[0,8],"dtype":32})"),
              HasSubstr("\"dtype\" must be a string"));
}

TEST(HostileSafetensors, Shapes) {
  for (const char* shape : {"[-2]", "[2.0]", "[\"2\"]", "[null]", "[true]", "[2e0]",
                            "[9223372036854775808]", "[18446744073709551618]", "[1e300]"}) {
    EXPECT_THAT(shape_error(shape), HasSubstr("sizes in \"shape\" must be integers from 0"));
  }
  for (const char* shape : {"2", "\"2\"", "null", "{}"}) {
    EXPECT_THAT(shape_error(shape), HasSubstr("\"shape\" must be an array"));
  }
  for (const char* shape :
       {"[9223372036854775807]", "[4611686018427387906]", "[4294967296,4294967296]",
        "[0,4294967296,4294967296]", "[4294967296,4294967296,0]", "[3037000500,3037000500]"}) {
    EXPECT_THAT(shape_error(shape), HasSubstr("overflows"));
  }
  for (const char* shape : {"[]", "[0]", "[1]", "[3]", "[2,2]", "[1000000]"}) {
    EXPECT_THAT(shape_error(shape), HasSubstr("but its data have 8"));
  }
  std::string many = "[2";
  for (int i = 0; i < 64; ++i) many += ",1";
  EXPECT_THAT(shape_error(many + "]"), HasSubstr("65 dimensions"));
}

TEST(HostileSafetensors, Offsets) {
  for (const char* offsets :
       {"[-8,0]", "[0.0,8.0]", "[\"0\",\"8\"]", "[null,8]", "[0,9223372036854775808]",
        "[9223372036854775808,9223372036854775816]", "[0,18446744073709551624]", "[0,1e30]"}) {
    EXPECT_THAT(offsets_error(offsets), HasSubstr("must be integers from 0"));
  }
  for (const char* offsets : {"[]", "[0]", "[0,4,8]", "8", "null", "{\"0\":8}"}) {
    EXPECT_THAT(offsets_error(offsets), HasSubstr("an array of two integers"));
  }
  EXPECT_THAT(offsets_error("[8,0]"), HasSubstr("before they begin"));
  for (const char* offsets : {"[0,9]", "[8,16]", "[0,9223372036854775807]",
                              "[9223372036854775799,9223372036854775807]"}) {
    EXPECT_THAT(offsets_error(offsets), HasSubstr("only 8 bytes of data"));
  }
}

TEST(HostileSafetensors, DataMustBeCoveredExactly) {
  const auto header = [](const std::string& a, const std::string& b) {
    return "{" + a + "," + b + "}";
  };
  EXPECT_THAT(cover_error(header(u8_entry("a", 0, 4), u8_entry("b", 3, 8)), 8),
              AllOf(HasSubstr("tensor \"b\""), HasSubstr("overlaps")));
  EXPECT_THAT(cover_error(header(u8_entry("a", 0, 8), u8_entry("b", 0, 8)), 8),
              HasSubstr("overlaps"));
  EXPECT_THAT(cover_error(header(u8_entry("a", 0, 8), u8_entry("b", 2, 4)), 8),
              HasSubstr("overlaps"));
  EXPECT_THAT(cover_error(header(u8_entry("a", 0, 8), u8_entry("b", 4, 4)), 8),
              HasSubstr("overlaps"));
  EXPECT_THAT(cover_error(header(u8_entry("a", 0, 3), u8_entry("b", 4, 8)), 8),
              HasSubstr("no tensor covers the data bytes 3 to 4"));
  EXPECT_THAT(cover_error(header(u8_entry("a", 1, 3), u8_entry("b", 3, 8)), 8),
              HasSubstr("no tensor covers the data bytes 0 to 1"));
  EXPECT_THAT(cover_error(header(u8_entry("a", 0, 3), u8_entry("b", 3, 7)), 8),
              HasSubstr("the last 1 of 8"));
  EXPECT_THAT(cover_error("{}", 1), HasSubstr("the last 1 of 1"));
}

TEST(HostileSafetensors, Metadata) {
  for (const char* metadata : {"1", "[]", "null", "\"x\""}) {
    EXPECT_THAT(message(safetensors_bytes(R"({"__metadata__":)" + std::string(metadata) + "}")),
                HasSubstr("\"__metadata__\" must be a JSON object"));
  }
  EXPECT_THAT(message(safetensors_bytes(R"({"__metadata__":{"a":1}})")),
              HasSubstr("metadata entry \"a\" must be a string"));
}

TEST(HostileSafetensors, BooleansOtherThanZeroAndOne) {
  const std::string header = R"({"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  EXPECT_THAT(message(safetensors_bytes(header, "\1\2")),
              AllOf(HasSubstr("tensor \"x\""), HasSubstr("other than 0 and 1")));
}

TEST(HostileSafetensors, LongAndUnprintableNamesAreShortened) {
  const std::string name = "\\u0007\\u001b[31m" + std::string(100'000, 'n');
  const std::string text = message(safetensors_bytes("{\"" + name + "\":1}"));
  EXPECT_THAT(text, AllOf(HasSubstr("\\x07\\x1b[31mnnn"), HasSubstr("(100006 bytes)")));
  EXPECT_EQ(text.find('\x1b'), text.npos);
}

TEST(HostileSafetensors, FlippedBits) {
  const TempFolder folder;
  const std::string whole = read_text_file(kGolden);
  std::mt19937 random(20260728);
  int refused = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = whole;
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < flips; ++i) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1U << random() % 8);
    }
    try {
      read_all(folder, bytes);
    } catch (const ValueError& error) {
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("file"));
    }
  }
  // The rest changed a name, metadata or data into something that is as valid.
  EXPECT_GT(refused, kRounds / 2);
}

}  // namespace
}  // namespace kvcache
