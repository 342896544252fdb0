#include "kvcache/codec/quantized_cache_config.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/codec/fp8_codec.h"
#include "kvcache/codec/hqq_codec.h"
#include "kvcache/codec/int_codec.h"
#include "kvcache/codec/quanto_codec.h"
#include "kvcache/codec/rotated_codec.h"
#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  // of a window, and pinned ones
constexpr std::int64_t kMostLayers = 10'000;

using Number = std::optional<std::int64_t>;

struct Backend {
  std::string_view name;
  std::vector<std::int64_t> bits;       // none: of one width
  std::vector<std::int64_t> axes = {};  // none: there is one way to form groups
  std::int64_t over_tokens = 0;         // the axis that groups a channel of several tokens
  std::shared_ptr<const Codec> (*make)(const AffineCodecOptions& options) = nullptr;
};

template <typename C>
std::shared_ptr<const Codec> make(const AffineCodecOptions& options) {
  return std::make_shared<C>(options);
}

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {
      {"quanto", {2, 4}, {0, -1}, -1, make<QuantoCodec>},
      {"hqq", {1, 2, 3, 4, 8}, {0, 1}, 0, make<HqqCodec>},
      {.name = "fp8",
       .bits = {},
       .make = [](const AffineCodecOptions&) -> std::shared_ptr<const Codec> {
         return std::make_shared<Fp8Codec>();
       }},
      {.name = "int",
       .bits = {4, 8},
       .make = [](const AffineCodecOptions& options) -> std::shared_ptr<const Codec> {
         return std::make_shared<IntCodec>(IntCodecOptions{.bits = options.bits});
       }}};
  return all;
}

const Backend& backend_of(const QuantizedCacheConfig& config) {
  const auto found =
      std::find_if(backends().begin(), backends().end(),
                   [&](const Backend& backend) { return backend.name == config.backend; });
  check_value(found != backends().end(), "there is no backend \"", config.backend,
              "\" in cache_config; it can be \"quanto\", \"hqq\", \"fp8\" or \"int\"");
  return *found;
}

std::string listed(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return "[" + text + "]";
}

void check_one_of(const char* name, const Number& value, const std::vector<std::int64_t>& allowed,
                  std::string_view backend) {
  if (!value) return;
  check_value(std::find(allowed.begin(), allowed.end(), *value) != allowed.end(), "cache_config's ",
              name, " must be one of ", listed(allowed), " for ", backend, ", but is ", *value);
}

void check_between(const char* name, std::int64_t value, std::int64_t smallest,
                   std::int64_t largest) {
  check_value(value >= smallest, "cache_config's ", name, " must be an integer of at least ",
              smallest, ", but is ", value);
  check_value(value <= largest, "cache_config's ", name, " must be an integer of at most ", largest,
              ", but is ", value);
}

using Named = std::vector<std::pair<const char*, Number>>;

// Refuses numbers of `all` that are given and not among those that the backend takes, `taken`.
void check_none_given(const Named& all, std::string_view backend, const char* taken) {
  std::string names, given;
  for (const auto& [name, value] : all) {
    names += (names.empty() ? "" : ", ") + std::string(name);
    if (value) given += (given.empty() ? "" : ", ") + std::string(name);
  }
  check_value(given.empty(), "cache_config's ", given, " has no use: ", backend, " takes none of ",
              names, taken, "; leave it out, or take quanto or hqq");
}

void check_used(const QuantizedCacheConfig& config, const Backend& backend) {
  const Named of_groups = {{"axis_key", config.axis_key},
                           {"axis_value", config.axis_value},
                           {"q_group_size", config.q_group_size}};
  if (backend.bits.empty()) {
    Named all = {{"nbits", config.nbits}};
    all.insert(all.end(), of_groups.begin(), of_groups.end());
    all.insert(all.end(), {{"residual_length", config.residual_length},
                           {"key_nbits", config.key_nbits},
                           {"value_nbits", config.value_nbits}});
    check_none_given(all, backend.name, "");
  } else if (backend.axes.empty()) {
    check_none_given(of_groups, backend.name, ", as a token's head is its group");
  }
}

}  // namespace

QuantizedCodecs make_codecs(const QuantizedCacheConfig& config) {
  const Backend& backend = backend_of(config);
  check_used(config, backend);
  check_one_of("nbits", config.nbits, backend.bits, backend.name);
  check_one_of("key_nbits", config.key_nbits, backend.bits, backend.name);
  check_one_of("value_nbits", config.value_nbits, backend.bits, backend.name);
  check_one_of("axis_key", config.axis_key, backend.axes, backend.name);
  check_one_of("axis_value", config.axis_value, backend.axes, backend.name);
  const std::int64_t group_size = config.q_group_size.value_or(64);
  const std::int64_t residual_length =
      config.residual_length.value_or(backend.bits.empty() ? 0 : 128);
  check_between("q_group_size", group_size, 1, AffineCodec::kMostInGroup);
  check_between("residual_length", residual_length, 0, kMostTokens);
  check_between("pinned_tokens", config.pinned_tokens, 0, kMostTokens);
  check_between("first_dense_layers", config.first_dense_layers, 0, kMostLayers);
  check_between("last_dense_layers", config.last_dense_layers, 0, kMostLayers);
  const std::int64_t nbits = config.nbits.value_or(4);
  const auto codec = [&](const Number& bits, const Number& axis) {
    return backend.make({.bits = bits.value_or(nbits),
                         .group_size = group_size,
                         .over_tokens = axis.value_or(0) == backend.over_tokens});
  };
  QuantizedCodecs codecs{.keys = codec(config.key_nbits, config.axis_key),
                         .values = codec(config.value_nbits, config.axis_value),
                         .residual_length = residual_length,
                         .pinned_tokens = config.pinned_tokens};
  if (config.rotate_keys) codecs.keys = std::make_shared<RotatedCodec>(codecs.keys);
  return codecs;
}

}  // namespace kvcache
