#include "cache/cache_file_section.h"

#include <utility>

#include "io/posix_file.h"
#include "io/strict_json.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {

using nlohmann::json;

namespace {

constexpr std::int64_t kMostNumber = std::int64_t{1} << 50;  // of any integer in a file

}  // namespace

CacheFileSection::CacheFileSection(std::shared_ptr<Whole> whole, const json& fields,
                                   std::string name, std::string prefix)
    : whole_(std::move(whole)),
      fields_(&fields),
      name_(std::move(name)),
      prefix_(std::move(prefix)) {}

CacheFileSection CacheFileSection::open(const std::filesystem::path& path) {
  auto whole = std::make_shared<Whole>(Whole{.file = SafetensorsFile::open(path), .root = {}});
  const std::string name = c10::str("cache file ", in_quotes(path.native()));
  const auto found = whole->file.metadata().find(kCacheFileHeader);
  check_value(found != whole->file.metadata().end(), name,
              " is not the file of a cache: it has no '", kCacheFileHeader, "' among its metadata");
  whole->root = parse_strict_json(found->second, name, /*max_depth=*/5);
  CacheFileSection root(whole, whole->root, name, "");
  check_value(root.integer("version") == kCacheFileVersion, name, " is of version ",
              root.integer("version"), ", but this library reads version ", kCacheFileVersion);
  return root;
}

CacheFileSection CacheFileSection::part(const std::string& key) const {
  return {whole_, field(*fields_, key.c_str()), c10::str(name_, ", ", key), prefix_ + key + "."};
}

std::string CacheFileSection::text(const char* key) const {
  const json& value = field(*fields_, key);
  check_value(value.is_string(), name(), ": '", key, "' must be a string");
  return value.get<std::string>();
}

const json& CacheFileSection::layers() const {
  const json& list = field(*fields_, "layers");
  check_value(list.is_array(), name(), ": 'layers' must be a list");
  return list;
}

const json& CacheFileSection::field(const json& object, const char* key) const {
  check_value(object.is_object() && object.contains(key), name(), ": there is no '", key, "'");
  return object.at(key);
}

std::int64_t CacheFileSection::checked_integer(const json& value, const std::string& key,
                                               std::int64_t least) const {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMostNumber)) &&
                    value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= kMostNumber;
  check_value(fits, name(), ": '", key, "' must be an integer from ", least, " to ", kMostNumber);
  return value.get<std::int64_t>();
}

at::Tensor CacheFileSection::take(const std::string& tensor) const {
  whole_->taken.insert(prefix_ + tensor);
  return whole_->file.tensor(prefix_ + tensor);
}

void CacheFileSection::check_all_taken() const {
  for (const std::string& tensor : whole_->file.names()) {
    check_value(whole_->taken.contains(tensor), name(), " has a tensor ", in_quotes(tensor),
                ", which none of the cache's layers holds");
  }
}

}  // namespace kvcache::detail
