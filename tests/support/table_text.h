// Text of tokens by a table: id i is the i-th string.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/generation/running_text.h"

namespace kvcache::testing {

inline MakeRunningText table_text(std::vector<std::string> table) {
  class TableText final : public RunningText {
   public:
    explicit TableText(std::vector<std::string> table) : table_(std::move(table)) {}

    std::string push(std::int64_t id) override { return table_.at(static_cast<std::size_t>(id)); }
    std::string finish() override { return {}; }

   private:
    std::vector<std::string> table_;
  };
  return [table = std::move(table)] { return std::make_unique<TableText>(table); };
}

// An id in brackets, and the text of the tiny models' ids so spelled.
inline std::string spelled(std::int64_t id) { return "<" + std::to_string(id) + ">"; }

inline MakeRunningText spelled_ids() {
  std::vector<std::string> table;
  for (std::int64_t id = 0; id < 64; ++id) table.push_back(spelled(id));
  return table_text(std::move(table));
}

}  // namespace kvcache::testing
