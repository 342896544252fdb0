// A file of a cache, read with messages that name what is wrong. Metadata "kvcache.cache" is JSON:
//   {"version": 2, "kind", "fingerprint", ...}, and of an encoder-decoder cache
//   "self_attention_cache": {...}, "cross_attention_cache": {...}, where ... is in cache_part.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "kvcache/io/safetensors.h"

namespace kvcache::detail {

inline constexpr std::int64_t kCacheFileVersion = 2;
inline constexpr const char* kCacheFileHeader = "kvcache.cache";
inline constexpr const char* kOwnSide = "self_attention_cache";
inline constexpr const char* kEncoderSide = "cross_attention_cache";

// The whole of a file, or the part of it that is one cache of a pair. Every call throws ValueError
// for what is not there or not as it must be.
class CacheFileSection {
 public:
  static CacheFileSection open(const std::filesystem::path& path);

  // The cache under `key`; its tensors have names that start with "<key>.".
  CacheFileSection part(const std::string& key) const;

  // For messages.
  const std::string& name() const { return name_; }

  std::string text(const char* key) const;
  std::int64_t integer(const char* key) const { return checked_integer(field(*fields_, key), key); }
  const nlohmann::json& layers() const;

  const nlohmann::json& field(const nlohmann::json& object, const char* key) const;
  std::int64_t checked_integer(const nlohmann::json& value, const std::string& key,
                               std::int64_t least = 0) const;

  // A tensor, read only and on the CPU; each is to be taken once.
  at::Tensor take(const std::string& tensor) const;
  // Refuses a file with tensors that none of its sections took.
  void check_all_taken() const;

 private:
  struct Whole {
    SafetensorsFile file;
    nlohmann::json root;
    std::set<std::string> taken = {};
  };

  CacheFileSection(std::shared_ptr<Whole> whole, const nlohmann::json& fields, std::string name,
                   std::string prefix);

  std::shared_ptr<Whole> whole_;
  const nlohmann::json* fields_;  // of whole_->root
  std::string name_;
  std::string prefix_;
};

}  // namespace kvcache::detail
