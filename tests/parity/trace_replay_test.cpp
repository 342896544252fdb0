// Replays the traces of cache operations (goldens/traces/README.md) on DynamicCache and
// StaticCache.

#include <ATen/ops/neg.h>

#include <array>

#include "tests/parity/trace_replay.h"

namespace kvcache {
namespace {

using namespace testing::traces;

class AttentionReplay : public Replay {
 public:
  explicit AttentionReplay(const json& trace)
      : Replay(cache_of(trace, specs_of(trace))),
        layers_(trace.value("layer_count", std::int64_t(trace.at("layers").size()))) {}

 private:
  bool feed(const json& op) override {
    const std::string name = op.at("op");
    if (name == "update" && op.contains("raises")) {
      update(op, op.value("layer", 0), json(), json());
    } else if (name == "update") {
      for (std::int64_t i = 0; i < layers_; ++i) {
        const auto at = static_cast<std::size_t>(i);
        update(op, i, op.at("mask")[at], op.at("keys")[at]);
      }
    } else if (name == "update_layer") {
      update(op, op.at("layer"), op.value("mask", json()), op.value("keys", json()));
    } else {
      return false;
    }
    return true;
  }

  void reorder(const at::Tensor& rows) override {
    const std::vector<const void*> before = addresses();
    cache_.reorder_cache(rows);
    EXPECT_EQ(addresses(), before);
  }

  void update(const json& op, std::int64_t layer, const json& mask, const json& expected) {
    const at::Tensor keys = keys_of(tokens_of(op));
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

  void check_state_after(const json& op) override {
    const json& length = op.at("length");
    const auto layers = static_cast<std::size_t>(cache_.layer_count());
    const std::vector<KeyValue> stored = testing::stored(cache_);
    ASSERT_EQ(stored.size(), op.at("stored").size());
    for (std::size_t i = 0; i < layers; ++i) {
      SCOPED_TRACE(c10::str("layer ", i));
      const std::int64_t expected = length.is_array() ? length.at(i) : length;
      EXPECT_EQ(cache_.get_seq_length(static_cast<std::int64_t>(i)), expected);
      expect_stored(stored[i], rows_written_out(op.at("stored")[i]));
    }
  }

  LayeredCache& cache_ = static_cast<LayeredCache&>(cache());
  std::int64_t layers_;
};

constexpr std::array kGroups = {"named",          "lazy",           "full",         "sliding",
                                "chunked",        "mixed",          "static_named", "static_full",
                                "static_sliding", "static_chunked", "static_mixed"};

class Traces : public ::testing::TestWithParam<const char*> {};

TEST_P(Traces, Replay) { replay_group<AttentionReplay>(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Parity, Traces, ::testing::ValuesIn(kGroups),
                         [](const auto& group) { return std::string(group.param); });

TEST(TraceFiles, AllAreThere) { EXPECT_EQ(count_traces(kGroups), 686U); }

}  // namespace
}  // namespace kvcache
