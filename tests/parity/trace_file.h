// Reads traces of cache operations (goldens/traces/README.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/core/errors.h"

namespace kvcache::testing::traces {

using nlohmann::json;
using Numbers = std::vector<std::int64_t>;
using Rows = std::vector<Numbers>;

inline constexpr std::int64_t kRowStep = 10000;

inline json read_traces(const std::string& group) {
  const std::string path = KVCACHE_TEST_DATA_DIR "/parity/goldens/traces/" + group + ".json";
  std::ifstream file(path);
  if (!file) throw ValueError("cannot read " + path);
  return json::parse(file).at("traces");
}

// [first, count, first, count, ...] written out.
inline Numbers written_out(const json& runs) {
  Numbers result;
  for (std::size_t i = 0; i < runs.size(); i += 2) {
    const auto first = runs[i].get<std::int64_t>();
    for (std::int64_t j = 0; j < runs[i + 1].get<std::int64_t>(); ++j) result.push_back(first + j);
  }
  return result;
}

inline Rows rows_written_out(const json& rows) {
  Rows result;
  for (const json& row : rows) result.push_back(written_out(row));
  return result;
}

// [rows, ...], of one number a token -> numbers.
inline Rows numbers_of(const at::Tensor& states) {
  Rows result;
  for (std::int64_t row = 0; row < states.size(0); ++row) {
    const at::Tensor numbers = states[row].flatten().to(at::kLong).contiguous();
    const auto* data = numbers.const_data_ptr<std::int64_t>();
    result.emplace_back(data, data + numbers.numel());
  }
  return result;
}

}  // namespace kvcache::testing::traces
