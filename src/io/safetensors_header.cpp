#include "io/safetensors_header.h"

#include <kvcache/core/errors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "io/posix_file.h"
#include "io/strict_json.h"
#include "kvcache/core/dtype_name.h"

namespace kvcache::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

using Json = nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
constexpr int kMaxHeaderDepth = 3;                      // file, tensor, shape
constexpr std::size_t kMaxDimensions = 64;              // ATen's own limit
constexpr const char* kMetadataName = "__metadata__";

struct FileDtype {
  at::ScalarType type;
  const char* name;
};

// In the order in which the reference writer ranks them; it puts the last ones first.
constexpr std::array kDtypes = {
    FileDtype{at::kBool, "BOOL"},
    FileDtype{at::kByte, "U8"},
    FileDtype{at::kChar, "I8"},
    FileDtype{at::kFloat8_e5m2, "F8_E5M2"},
    FileDtype{at::kFloat8_e4m3fn, "F8_E4M3"},
    FileDtype{at::kShort, "I16"},
    FileDtype{at::kUInt16, "U16"},
    FileDtype{at::kHalf, "F16"},
    FileDtype{at::kBFloat16, "BF16"},
    FileDtype{at::kInt, "I32"},
    FileDtype{at::kUInt32, "U32"},
    FileDtype{at::kFloat, "F32"},
    FileDtype{at::kDouble, "F64"},
    FileDtype{at::kLong, "I64"},
    FileDtype{at::kUInt64, "U64"},
};

std::string known_dtypes() {
  std::string names;
  for (const FileDtype& dtype : kDtypes) names += c10::str(names.empty() ? "" : ", ", dtype.name);
  return names;
}

// `where` opens every message: the file and, where there is one, the tensor.
at::ScalarType parse_dtype(const Json& entry, const std::string& where) {
  const auto found = entry.find("dtype");
  check_value(found != entry.end() && found->is_string(), where, "\"dtype\" must be a string");
  const auto& name = found->get_ref<const std::string&>();
  const auto known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const FileDtype& dtype) { return name == dtype.name; });
  check_value(known != kDtypes.end(), where, "unknown dtype ", in_quotes(name), "; known are ",
              known_dtypes());
  return known->type;
}

std::int64_t parse_count(const Json& value, const std::string& where, const char* what) {
  constexpr auto kLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  check_value(value.is_number_unsigned() && value.get<std::uint64_t>() <= kLimit, where, what,
              " must be integers from 0 to 2^63 - 1");
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> parse_shape(const Json& entry, const std::string& where) {
  const auto found = entry.find("shape");
  check_value(found != entry.end() && found->is_array(), where, "\"shape\" must be an array");
  check_value(found->size() <= kMaxDimensions, where, "\"shape\" has ", found->size(),
              " dimensions; at most ", kMaxDimensions, " are supported");
  std::vector<std::int64_t> shape;
  for (const Json& size : *found) shape.push_back(parse_count(size, where, "sizes in \"shape\""));
  return shape;
}

// Bytes of a dense tensor. A size of 0 does not excuse the others: strides must not overflow.
std::int64_t checked_nbytes(at::IntArrayRef shape, at::ScalarType dtype, const std::string& where) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const std::int64_t size : shape) {
    empty = empty || size == 0;
    check_value(!__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes), where,
                "the size of shape ", shape, " overflows");
  }
  return empty ? 0 : bytes;
}

SafetensorsInfo parse_entry(const Json& entry, std::int64_t data_bytes, const std::string& where) {
  check_value(entry.is_object(), where, "its entry must be a JSON object");
  SafetensorsInfo info{parse_dtype(entry, where), parse_shape(entry, where), 0, 0};
  const auto offsets = entry.find("data_offsets");
  check_value(offsets != entry.end() && offsets->is_array() && offsets->size() == 2, where,
              "\"data_offsets\" must be an array of two integers");
  const std::int64_t begin = parse_count((*offsets)[0], where, "\"data_offsets\"");
  const std::int64_t end = parse_count((*offsets)[1], where, "\"data_offsets\"");
  check_value(begin <= end, where, "its data end at ", end, ", before they begin at ", begin);
  check_value(end <= data_bytes, where, "its data end at ", end, ", but the file has only ",
              data_bytes, " bytes of data; it is damaged or was not written whole");
  info.offset = begin;
  info.nbytes = checked_nbytes(info.shape, info.dtype, where);
  check_value(info.nbytes == end - begin, where, "shape ", at::IntArrayRef(info.shape), " of ",
              dtype_name(info.dtype), " takes ", info.nbytes, " bytes, but its data have ",
              end - begin);
  return info;
}

SafetensorsMetadata parse_metadata(const Json& entry, const std::string& file) {
  check_value(entry.is_object(), file, "\"__metadata__\" must be a JSON object");
  SafetensorsMetadata metadata;
  for (const auto& [name, value] : entry.items()) {
    check_value(value.is_string(), file, "the metadata entry ", in_quotes(name),
                " must be a string");
    metadata.emplace(name, value.get<std::string>());
  }
  return metadata;
}

// The format demands that the tensors cover the data exactly: no overlap, no hole, nothing after.
void check_cover(const SafetensorsHeader& header, std::int64_t data_bytes,
                 const std::string& file) {
  std::vector<std::pair<const std::string*, const SafetensorsInfo*>> by_offset;
  for (const auto& [name, info] : header.infos) by_offset.emplace_back(&name, &info);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset, a.second->nbytes) <
           std::pair(b.second->offset, b.second->nbytes);
  });
  std::int64_t covered = 0;
  for (const auto& [name, info] : by_offset) {
    check_value(info->offset >= covered, file, "tensor ", in_quotes(*name), " begins at ",
                info->offset, " and overlaps data that end at ", covered);
    check_value(info->offset <= covered, file, "no tensor covers the data bytes ", covered, " to ",
                info->offset, ", before tensor ", in_quotes(*name));
    covered += info->nbytes;
  }
  check_value(covered == data_bytes, file, "no tensor covers the last ", data_bytes - covered,
              " of ", data_bytes, " data bytes");
}

// Length of the JSON text, known to lie within the file.
std::uint64_t header_length(std::span<const std::byte> bytes, const std::string& file) {
  check_value(bytes.size() >= kLengthBytes, file, "it has only ", bytes.size(),
              " bytes, too few for a safetensors file");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  check_value(length <= kMaxHeaderBytes, file, "its header would have ", length,
              " bytes, more than the ", kMaxHeaderBytes,
              " allowed; it is damaged or not a safetensors file");
  check_value(length <= bytes.size() - kLengthBytes, file, "its header would have ", length,
              " bytes, but only ", bytes.size() - kLengthBytes,
              " follow; it is damaged or was not written whole");
  return length;
}

// The dtype's place in kDtypes, or null.
const FileDtype* find_dtype(at::ScalarType type) {
  const auto* known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                   [&](const FileDtype& dtype) { return type == dtype.type; });
  return known == kDtypes.end() ? nullptr : known;
}

void check_writable(const std::string& name, const at::Tensor& tensor, const std::string& file) {
  check_value(name != kMetadataName, file, "the name \"", kMetadataName, "\" is reserved");
  const std::string where = c10::str(file, "tensor ", in_quotes(name), " ");
  check_value(tensor.defined() && tensor.layout() == at::kStrided, where,
              "is undefined or not dense");
  check_value(!tensor.is_meta(), where, "has no data (it is on the meta device)");
  check_value(find_dtype(tensor.scalar_type()) != nullptr, where, "is of dtype ",
              dtype_name(tensor), "; the format knows ", known_dtypes());
}

std::string header_entry(const std::string& name, const at::Tensor& tensor, std::int64_t begin) {
  const Json offsets = {begin, begin + static_cast<std::int64_t>(tensor.nbytes())};
  return c10::str(Json(name).dump(), R"(:{"dtype":")", find_dtype(tensor.scalar_type())->name,
                  R"(","shape":)", Json(tensor.sizes().vec()).dump(), R"(,"data_offsets":)",
                  offsets.dump(), "}");
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           const std::filesystem::path& path) {
  const std::string file = c10::str("safetensors file ", in_quotes(path.native()), ": ");
  const std::uint64_t length = header_length(bytes, file);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  const Json json = parse_strict_json(text, file + "its header", kMaxHeaderDepth);
  check_value(json.is_object(), file, "its header must be a JSON object");

  const auto data_begin = static_cast<std::int64_t>(kLengthBytes + length);
  const auto data_bytes = static_cast<std::int64_t>(bytes.size()) - data_begin;
  SafetensorsHeader header;
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadataName) {
      header.metadata = parse_metadata(entry, file);
    } else {
      const std::string where = c10::str(file, "tensor ", in_quotes(name), ": ");
      header.infos.emplace(name, parse_entry(entry, data_bytes, where));
    }
  }
  check_cover(header, data_bytes, file);
  for (auto& [name, info] : header.infos) info.offset += data_begin;
  return header;
}

SafetensorsLayout make_safetensors_layout(const std::map<std::string, at::Tensor>& tensors,
                                          const SafetensorsMetadata& metadata,
                                          const std::filesystem::path& path) {
  const std::string file = c10::str("cannot write ", in_quotes(path.native()), ": ");
  SafetensorsLayout layout;
  for (const auto& [name, tensor] : tensors) {
    check_writable(name, tensor, file);
    layout.order.push_back(name);
  }
  std::stable_sort(layout.order.begin(), layout.order.end(), [&](const auto& a, const auto& b) {
    return find_dtype(tensors.at(a).scalar_type()) > find_dtype(tensors.at(b).scalar_type());
  });

  std::string text = "{";
  try {
    if (!metadata.empty()) text += c10::str("\"", kMetadataName, "\":", Json(metadata).dump());
    std::int64_t begin = 0;
    for (const std::string& name : layout.order) {
      const at::Tensor& tensor = tensors.at(name);
      text += c10::str(text.size() > 1 ? "," : "", header_entry(name, tensor, begin));
      begin += static_cast<std::int64_t>(tensor.nbytes());
    }
  } catch (const Json::exception&) {
    throw ValueError(file + "a tensor's name or a metadata entry is not UTF-8");
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check_value(text.size() <= kMaxHeaderBytes, file, "its header would have ", text.size(),
              " bytes, more than the ", kMaxHeaderBytes, " allowed");
  const std::uint64_t length = text.size();
  layout.header.resize(kLengthBytes);
  std::memcpy(layout.header.data(), &length, kLengthBytes);
  layout.header += text;
  return layout;
}

}  // namespace kvcache::detail
