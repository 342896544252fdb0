#include "models/fingerprint.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "io/strict_json.h"
#include "kvcache/io/read_text_file.h"

namespace kvcache::detail {
namespace {

constexpr int kMaxDepth = 32;

// Fields that say nothing of what the model computes.
constexpr std::string_view kPassedOver[] = {"_name_or_path", "architectures",        "dtype",
                                            "torch_dtype",   "transformers_version", "use_cache"};

// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/).
std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) {
    value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return value;
}

}  // namespace

std::string fingerprint(std::string_view model_type, const std::filesystem::path& config,
                        const StateDict& weights) {
  nlohmann::json fields = parse_strict_json(read_text_file(config), config.string(), kMaxDepth);
  for (const std::string_view name : kPassedOver) fields.erase(std::string(name));
  std::string text = fields.dump();  // names in alphabetical order
  for (const auto& [name, shape] : weights.shapes()) {
    text += c10::str("\n", name, " ", at::IntArrayRef(shape));
  }
  return fmt::format("{}-{:016x}", model_type, hash(text));
}

}  // namespace kvcache::detail
