// What the config.json files of families with recurrent states have in common.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvcache/models/config_reader.h"
#include "models/decoder_config.h"

namespace kvcache::detail {

inline constexpr std::int64_t kMaxStateSize = 65'536;
inline constexpr std::int64_t kMaxStateHeads = 65'536;

// The taps of a convolution over time.
std::int64_t read_kernel_size(const ConfigReader& json, std::string_view name,
                              std::int64_t fallback);

// The inner channels of a mixer: so many times hidden_size, 2 where absent.
std::int64_t read_inner_size(const ConfigReader& json, std::string_view name,
                             std::int64_t hidden_size);

// What is kept of mixers whose channels each have a state (mamba).
StateSizes channel_states(const RecurrentConfig& sizes);

// What is kept of mixers whose heads each have a matrix: values by keys. The convolution is over
// queries, keys and values.
StateSizes matrix_states(const RecurrentConfig& sizes);

// The rank of a projection to time steps; absent or "auto": a 16th of hidden_size, rounded up.
std::int64_t read_time_step_rank(const ConfigReader& json, std::string_view name,
                                 std::int64_t hidden_size);

}  // namespace kvcache::detail
