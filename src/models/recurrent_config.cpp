#include "models/recurrent_config.h"

#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kMaxKernelSize = 1024;  // tokens
constexpr std::int64_t kMaxExpansion = 1024;

}  // namespace

std::int64_t read_kernel_size(const ConfigReader& json, std::string_view name,
                              std::int64_t fallback) {
  const std::int64_t size = json.size(name, kMaxKernelSize).value_or(fallback);
  check_value(size > 1, json.field(name), " is 1; a convolution over time needs at least 2 taps");
  return size;
}

std::int64_t read_inner_size(const ConfigReader& json, std::string_view name,
                             std::int64_t hidden_size) {
  return json.size(name, kMaxExpansion).value_or(2) * hidden_size;
}

StateSizes channel_states(const RecurrentConfig& sizes) {
  return {.convolutions = {{sizes.inner_size, sizes.conv_kernel}},
          .recurrences = {{.shape = {sizes.inner_size, sizes.state_size}}}};
}

StateSizes matrix_states(const RecurrentConfig& sizes) {
  const std::int64_t keys = sizes.key_heads * sizes.key_dim;
  return {.convolutions = {{sizes.inner_size + 2 * keys, sizes.conv_kernel}},
          .recurrences = {{.shape = {sizes.heads, sizes.value_dim, sizes.key_dim}}}};
}

std::int64_t read_time_step_rank(const ConfigReader& json, std::string_view name,
                                 std::int64_t hidden_size) {
  constexpr std::int64_t kShare = 16;
  const std::int64_t automatic = (hidden_size + kShare - 1) / kShare;
  if (!json.is_text(name)) return json.size(name).value_or(automatic);
  const std::string given = json.text(name).value();
  check_value(given == "auto", json.field(name), " is '", given,
              "'; it must be a number or 'auto'");
  return automatic;
}

}  // namespace kvcache::detail
