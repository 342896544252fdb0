#include "io/sharded_checkpoint.h"

#include <kvcache/core/errors.h>
#include <kvcache/io/read_text_file.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "io/posix_file.h"
#include "io/strict_json.h"

namespace kvcache::detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::int64_t kMaxIndexBytes = 100'000'000;  // as for a safetensors header
constexpr int kMaxIndexDepth = 32;                    // "metadata" may hold anything

// Each shard's weights, by the shard's file name.
using ShardNames = std::map<std::string, std::set<std::string>>;

// Shards lie in the folder itself, so a plain name is all that is ever needed. (A shard may be a
// symbolic link, as in a hub's download cache: the owner of the folder made it, not the index.)
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

ShardNames parse_index(const fs::path& path) {
  const std::string file = c10::str("weight index ", in_quotes(path.native()));
  const nlohmann::json json =
      parse_strict_json(read_text_file(path, kMaxIndexBytes), file, kMaxIndexDepth);
  check_value(json.is_object(), file, ": it must be a JSON object");
  const auto weight_map = json.find("weight_map");
  check_value(weight_map != json.end() && weight_map->is_object(), file,
              ": \"weight_map\" must be a JSON object");
  check_value(!weight_map->empty(), file, ": \"weight_map\" is empty");
  ShardNames shards;
  for (const auto& [name, shard] : weight_map->items()) {
    check_value(shard.is_string(), file, ": the shard of weight ", in_quotes(name),
                " must be a string");
    const auto& shard_name = shard.get_ref<const std::string&>();
    check_value(is_plain_name(shard_name), file, ": weight ", in_quotes(name), " is mapped to ",
                in_quotes(shard_name), ", which is not the name of a file in the same folder");
    shards[shard_name].insert(name);
  }
  return shards;
}

void check_shard(const SafetensorsFile& shard, const std::set<std::string>& expected,
                 const fs::path& index) {
  const std::string where = c10::str("checkpoint shard ", in_quotes(shard.path().native()));
  for (const std::string& name : expected) {
    check_value(shard.contains(name), where, " lacks weight ", in_quotes(name), ", which ",
                in_quotes(index.native()), " maps to it; are they of one download?");
  }
  for (const std::string& name : shard.names()) {
    check_value(expected.contains(name), where, " holds weight ", in_quotes(name), ", which ",
                in_quotes(index.native()), " does not map to it; are they of one download?");
  }
}

}  // namespace

std::vector<std::shared_ptr<const SafetensorsFile>> open_checkpoint_files(const fs::path& folder) {
  check_checkpoint_folder(folder);
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  if (is_present(folder / kSingleFile)) {
    files.push_back(
        std::make_shared<const SafetensorsFile>(SafetensorsFile::open(folder / kSingleFile)));
    return files;
  }
  const fs::path index = folder / kIndexFile;
  check_value(is_present(index), "checkpoint folder ", in_quotes(folder.native()), " has neither ",
              kSingleFile, " nor ", kIndexFile, "; weights in other formats are not read");
  for (const auto& [shard, names] : parse_index(index)) {
    check_value(is_present(folder / shard), "checkpoint folder ", in_quotes(folder.native()),
                " lacks the shard ", in_quotes(shard), ", which holds ", names.size(),
                " weights according to ", kIndexFile);
    files.push_back(std::make_shared<const SafetensorsFile>(SafetensorsFile::open(folder / shard)));
    check_shard(*files.back(), names, index);
  }
  return files;
}

}  // namespace kvcache::detail
