// What the replays of all kinds of traces share (goldens/traces/README.md): the operations that
// every cache has, refusals, and the walk over a file.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/parity/trace_file.h"
#include "tests/support/stored.h"

namespace kvcache::testing::traces {

// The layers of a trace.
inline std::vector<LayerSpec> specs_of(const json& trace) {
  std::vector<LayerSpec> specs;
  for (const json& layer : trace.at("layers")) {
    const json& window = layer.at("window");
    specs.push_back({.type = layer.at("type").get<std::string>(),
                     .window = window.is_null() ? 0 : window.get<std::int64_t>(),
                     .states = layer.value("states", std::int64_t{1})});
  }
  return specs;
}

// A cache of these layers: of a fixed size where the trace has one under `size`.
inline std::unique_ptr<LayeredCache> cache_of(const json& trace,
                                              const std::vector<LayerSpec>& layers,
                                              const char* size = "max_cache_len") {
  if (!trace.contains(size)) return std::make_unique<DynamicCache>(layers);
  const std::int64_t most = trace.at(size);
  return std::make_unique<StaticCache>(layers, StaticCacheOptions{.max_cache_len = most});
}

// The numbers of an operation's tokens, float32 [rows, tokens].
inline at::Tensor tokens_of(const json& op) {
  const auto first = op.at("first").get<std::int64_t>();
  const auto count = op.at("count").get<std::int64_t>(), rows = op.at("rows").get<std::int64_t>();
  return ((at::arange(rows) * kRowStep).unsqueeze(1) + at::arange(first, first + count))
      .to(at::kFloat);
}

// [rows, tokens] as keys of one head of size 1.
inline at::Tensor keys_of(const at::Tensor& numbers) { return numbers.unsqueeze(1).unsqueeze(3); }

class Replay {
 public:
  virtual ~Replay() = default;

  void apply(const json& op) {
    if (!op.contains("raises")) {
      run(op);
    } else if (op.at("raises") == "ValueError") {
      EXPECT_THROW(run(op), ValueError);
    } else {
      EXPECT_THROW(run(op), RuntimeError);
    }
    check_state_after(op);
  }

 protected:
  explicit Replay(std::unique_ptr<Cache> cache) : made_(std::move(cache)) {}

  Cache& cache() { return *made_; }

  // What feeds the cache. False: there is no such operation.
  virtual bool feed(const json& op) = 0;
  virtual void record(std::optional<std::int64_t> max_tokens) {
    made_->activate_past_recording(max_tokens);
  }
  virtual void reorder(const at::Tensor& rows) { made_->reorder_cache(rows); }
  virtual void check_state_after(const json& op) = 0;

  // The live keys of a layer, and its values, are the numbers `rows`; no row or no number: it holds
  // none.
  static void expect_stored(const KeyValue& states, const Rows& rows) {
    if (rows.empty() || rows[0].empty()) {
      EXPECT_EQ(states.keys.numel(), 0);
      return;
    }
    EXPECT_EQ(numbers_of(states.keys), rows);
    EXPECT_EQ(numbers_of(states.values.neg()), rows);
  }

 private:
  void run(const json& op) {
    const std::string name = op.at("op");
    if (name == "crop") {
      const auto n = op.at("n").get<std::int64_t>();
      EXPECT_EQ(made_->can_crop(-n), !op.contains("raises"));
      made_->crop(n);
    } else if (name == "activate_past_recording") {
      record(op.contains("max_tokens") ? std::optional(op.at("max_tokens").get<std::int64_t>())
                                       : std::nullopt);
    } else if (name == "reset") {
      made_->reset();
    } else if (name == "reorder_cache") {
      reorder(at::tensor(op.at("indices").get<Numbers>(), at::kLong));
    } else if (name == "batch_select_indices") {
      made_->batch_select_indices(at::tensor(op.at("indices").get<Numbers>(), at::kLong));
    } else if (name == "batch_repeat_interleave") {
      made_->batch_repeat_interleave(op.at("repeats"));
    } else if (name == "get_max_length") {
      EXPECT_EQ(made_->get_max_length(), op.at("result").get<std::int64_t>());
      const auto each = op.at("layers").get<Numbers>();
      for (std::size_t i = 0; i < each.size(); ++i) {
        EXPECT_EQ(made_->get_max_length(static_cast<std::int64_t>(i)), each[i]);
      }
    } else if (!feed(op)) {
      FAIL() << "no such operation: " << name;
    }
  }

  std::unique_ptr<Cache> made_;
};

// Replays all traces of a group, up to the first operation that goes wrong.
template <typename Kind>
void replay_group(const char* group) {
  for (const json& trace : read_traces(group)) {
    SCOPED_TRACE(trace.at("name").get<std::string>());
    Kind replay(trace);
    std::size_t number = 0;
    for (const json& op : trace.at("ops")) {
      SCOPED_TRACE(c10::str("operation ", number++, ", ", op.at("op").get<std::string>()));
      replay.apply(op);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

template <typename Groups>
std::size_t count_traces(const Groups& groups) {
  std::size_t count = 0;
  for (const char* group : groups) count += read_traces(group).size();
  return count;
}

}  // namespace kvcache::testing::traces
