// Replays the traces of cache operations (goldens/traces/README.md) on DynamicCache and
// StaticCache.

#include <ATen/ops/arange.h>
#include <ATen/ops/neg.h>
#include <gtest/gtest.h>

#include <array>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/parity/trace_file.h"
#include "tests/support/stored.h"

namespace kvcache {
namespace {

using namespace testing::traces;

at::Tensor keys_of(const json& op) {
  const auto first = op.at("first").get<std::int64_t>();
  const auto rows = op.at("rows").get<std::int64_t>();
  const at::Tensor tokens = at::arange(first, first + op.at("count").get<std::int64_t>());
  const at::Tensor starts = at::arange(rows) * kRowStep;
  return (starts.view({-1, 1, 1, 1}) + tokens.view({1, 1, -1, 1})).to(at::kFloat);
}

at::Tensor indices_of(const json& op) {
  return at::tensor(op.at("indices").get<Numbers>(), at::kLong);
}

class Replay {
 public:
  explicit Replay(const json& trace)
      : made_(make(trace)),
        layers_(trace.value("layer_count", std::int64_t(trace.at("layers").size()))) {}

  void apply(const json& op) {
    if (!op.contains("raises")) {
      run(op, layers_);
    } else if (op.at("raises") == "ValueError") {
      EXPECT_THROW(run(op, 1), ValueError);
    } else {
      EXPECT_THROW(run(op, 1), RuntimeError);
    }
    check_state_after(op);
  }

 private:
  static std::unique_ptr<LayeredCache> make(const json& trace) {
    if (!trace.contains("max_cache_len")) return std::make_unique<DynamicCache>(specs_of(trace));
    const std::int64_t most = trace.at("max_cache_len");
    return std::make_unique<StaticCache>(specs_of(trace),
                                         StaticCacheOptions{.max_cache_len = most});
  }

  static std::vector<LayerSpec> specs_of(const json& trace) {
    std::vector<LayerSpec> specs;
    for (const json& layer : trace.at("layers")) {
      const json& window = layer.at("window");
      specs.push_back({.type = layer.at("type").get<std::string>(),
                       .window = window.is_null() ? 0 : window.get<std::int64_t>()});
    }
    return specs;
  }

  void run(const json& op, std::int64_t layers) {
    const std::string name = op.at("op");
    if (name == "update" && op.contains("raises")) {
      update(op, op.value("layer", 0), json(), json());
    } else if (name == "update") {
      for (std::int64_t i = 0; i < layers; ++i) {
        const auto at = static_cast<std::size_t>(i);
        update(op, i, op.at("mask")[at], op.at("keys")[at]);
      }
    } else if (name == "update_layer") {
      update(op, op.at("layer"), op.value("mask", json()), op.value("keys", json()));
    } else if (name == "crop") {
      cache_.crop(op.at("n"));
    } else if (name == "activate_past_recording") {
      cache_.activate_past_recording();
    } else if (name == "reset") {
      cache_.reset();
    } else if (name == "reorder_cache") {
      const std::vector<const void*> before = addresses();
      cache_.reorder_cache(indices_of(op));
      EXPECT_EQ(addresses(), before);
    } else if (name == "batch_select_indices") {
      cache_.batch_select_indices(indices_of(op));
    } else if (name == "batch_repeat_interleave") {
      cache_.batch_repeat_interleave(op.at("repeats"));
    } else if (name == "get_max_length") {
      EXPECT_EQ(cache_.get_max_length(), op.at("result").get<std::int64_t>());
      const auto each = op.at("layers").get<Numbers>();
      for (std::size_t i = 0; i < each.size(); ++i) {
        EXPECT_EQ(cache_.get_max_length(static_cast<std::int64_t>(i)), each[i]);
      }
    } else {
      FAIL() << "no such operation: " << name;
    }
  }

  void update(const json& op, std::int64_t layer, const json& mask, const json& expected) {
    const at::Tensor keys = keys_of(op);
    if (!mask.is_null()) {
      const auto sizes = cache_.get_mask_sizes(keys.size(2), layer);
      EXPECT_EQ(sizes.first, mask[0].get<std::int64_t>());
      EXPECT_EQ(sizes.second, mask[1].get<std::int64_t>());
    }
    const KeyValue returned = cache_.update(keys, keys.neg(), layer);
    if (expected.is_null()) return;
    EXPECT_EQ(returned.keys.size(2), mask[0].get<std::int64_t>());
    const Rows right = rows_written_out(expected);
    expect_filled(returned.keys, right);
    expect_filled(returned.values.neg(), right);
  }

  // `right` first, then zeros.
  static void expect_filled(const at::Tensor& states, const Rows& right) {
    const auto filled = static_cast<std::int64_t>(right.at(0).size());
    ASSERT_GE(states.size(2), filled);
    EXPECT_EQ(numbers_of(states.narrow(2, 0, filled)), right);
    EXPECT_TRUE(states.narrow(2, filled, states.size(2) - filled).eq(0).all().item<bool>());
  }

  std::vector<const void*> addresses() const {
    std::vector<const void*> result;
    for (const KeyValue& states : testing::buffers(cache_)) {
      result.push_back(states.keys.const_data_ptr());
      result.push_back(states.values.const_data_ptr());
    }
    return result;
  }

  void check_state_after(const json& op) const {
    const json& length = op.at("length");
    const auto layers = static_cast<std::size_t>(cache_.layer_count());
    for (std::size_t i = 0; i < layers; ++i) {
      const std::int64_t expected = length.is_array() ? length.at(i) : length;
      EXPECT_EQ(cache_.get_seq_length(static_cast<std::int64_t>(i)), expected) << "layer " << i;
    }
    const std::vector<KeyValue> stored = testing::stored(cache_);
    ASSERT_EQ(stored.size(), op.at("stored").size());
    for (std::size_t i = 0; i < layers; ++i) {
      const Rows expected = rows_written_out(op.at("stored")[i]);
      if (expected.empty()) {
        EXPECT_EQ(stored[i].keys.numel(), 0) << "layer " << i;
      } else {
        EXPECT_EQ(numbers_of(stored[i].keys), expected) << "layer " << i;
        EXPECT_EQ(numbers_of(stored[i].values.neg()), expected) << "layer " << i;
      }
    }
  }

  std::unique_ptr<LayeredCache> made_;
  LayeredCache& cache_ = *made_;
  std::int64_t layers_;
};

constexpr std::array kGroups = {"named",          "lazy",           "full",         "sliding",
                                "chunked",        "mixed",          "static_named", "static_full",
                                "static_sliding", "static_chunked", "static_mixed"};

class Traces : public ::testing::TestWithParam<const char*> {};

TEST_P(Traces, Replay) {
  for (const json& trace : read_traces(GetParam())) {
    SCOPED_TRACE(trace.at("name").get<std::string>());
    Replay replay(trace);
    std::size_t number = 0;
    for (const json& op : trace.at("ops")) {
      SCOPED_TRACE(c10::str("operation ", number++, ", ", op.at("op").get<std::string>()));
      replay.apply(op);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Traces, ::testing::ValuesIn(kGroups),
                         [](const auto& group) { return std::string(group.param); });

TEST(TraceFiles, AllAreThere) {
  std::size_t count = 0;
  for (const char* group : kGroups) count += read_traces(group).size();
  EXPECT_EQ(count, 686U);
}

}  // namespace
}  // namespace kvcache
