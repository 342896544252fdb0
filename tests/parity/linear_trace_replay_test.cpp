// Replays the traces of linear and hybrid layers (goldens/traces/README.md): a step is given each
// layer's keys and states.

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <array>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/parity/trace_file.h"
#include "tests/support/stored.h"

namespace kvcache {
namespace {

using namespace testing::traces;

at::Tensor indices_of(const json& op) {
  return at::tensor(op.at("indices").get<Numbers>(), at::kLong);
}

class Replay {
 public:
  explicit Replay(const json& trace) : cache_(specs_of(trace)) {}

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

 private:
  static std::vector<LayerSpec> specs_of(const json& trace) {
    std::vector<LayerSpec> specs;
    for (const json& layer : trace.at("layers")) {
      const json& window = layer.at("window");
      specs.push_back({.type = layer.at("type").get<std::string>(),
                       .window = window.is_null() ? 0 : window.get<std::int64_t>(),
                       .states = layer.at("states").get<std::int64_t>()});
    }
    return specs;
  }

  void run(const json& op) {
    const std::string name = op.at("op");
    if (name == "step") {
      step(op);
    } else if (name == "crop") {
      const auto n = op.at("n").get<std::int64_t>();
      EXPECT_EQ(cache_.can_crop(-n), !op.contains("raises"));
      cache_.crop(n);
    } else if (name == "activate_past_recording") {
      most_ = op.contains("max_tokens") ? op.at("max_tokens").get<std::int64_t>() : 16;
      op.contains("max_tokens") ? cache_.activate_past_recording(most_)
                                : cache_.activate_past_recording();
    } else if (name == "reset") {
      cache_.reset();
    } else if (name == "reorder_cache") {
      cache_.reorder_cache(indices_of(op));
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

  void step(const json& op) {
    const auto first = op.at("first").get<std::int64_t>();
    const auto count = op.at("count").get<std::int64_t>(), rows = op.at("rows").get<std::int64_t>();
    const at::Tensor numbers =
        ((at::arange(rows) * kRowStep).unsqueeze(1) + at::arange(first, first + count))
            .to(at::kFloat);
    Step step = cache_.begin_step({.tokens = count, .batch = rows});
    for (std::int64_t layer = 0; layer < cache_.layer_count(); ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      if (!op.at("keys")[at].is_null()) {
        const at::Tensor keys = numbers.unsqueeze(1).unsqueeze(3);
        const View view = step.append(layer, keys, keys.neg());
        EXPECT_EQ((Numbers{view.visible.length, view.visible.offset}),
                  op.at("mask")[at].get<Numbers>());
        const Rows expected = rows_written_out(op.at("keys")[at]);
        EXPECT_EQ(numbers_of(dense(view).keys), expected);
        EXPECT_EQ(numbers_of(dense(view).values.neg()), expected);
      }
      std::int64_t index = 0;
      for (const json& window : op.at("windows")[at]) {
        give_states(step, {layer, index++}, numbers, rows_written_out(window));
      }
    }
    step.commit();
  }

  struct StateOf {
    std::int64_t layer, index;
  };

  void give_states(Step& step, StateOf state, const at::Tensor& numbers, const Rows& window) const {
    const at::Tensor inputs = step.update_conv_state(
        state.layer, numbers.unsqueeze(1), {.kernel_size = 3 + state.index, .index = state.index});
    EXPECT_EQ(numbers_of(inputs), window);
    const std::int64_t tokens = numbers.size(1), wanted = step.wanted_states(state.layer);
    EXPECT_EQ(wanted, std::min(tokens, most_ + 1));
    const at::Tensor states =
        numbers.narrow(1, tokens - wanted, wanted).transpose(0, 1).unsqueeze(2);
    step.update_recurrent_state(state.layer, states, state.index);
  }

  void check_state_after(const json& op) {
    const auto length = op.at("length").get<std::int64_t>();
    const std::vector<KeyValue> layers = testing::stored(cache_);
    std::size_t with_keys = 0;
    for (std::int64_t layer = 0; layer < cache_.layer_count(); ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      EXPECT_EQ(cache_.get_seq_length(layer), length);
      if (!op.at("stored")[at].is_null()) {
        const KeyValue& states = layers.at(with_keys++);
        const Rows expected = rows_written_out(op.at("stored")[at]);
        EXPECT_EQ(states.keys.numel() == 0 ? Rows{} : numbers_of(states.keys),
                  drop_empty(expected));
      }
      check_recurrent(layer, op.at("recurrent")[at].get<Rows>());
    }
  }

  // As a step would find it; that step is dropped.
  void check_recurrent(std::int64_t layer, const Rows& expected) {
    if (expected.empty()) return;
    const std::int64_t rows = std::max<std::int64_t>(cache_.batch_size(), 1);
    Step step = cache_.begin_step({.tokens = 1, .batch = rows});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      const auto state = step.recurrent_state(layer, index);
      EXPECT_EQ(cache_.has_previous_state(layer, index), !expected[i].empty());
      ASSERT_EQ(state.has_value(), !expected[i].empty());
      if (!state) continue;
      Numbers found;
      for (const Numbers& row : numbers_of(*state)) found.push_back(row.at(0));
      EXPECT_EQ(found, expected[i]);
    }
  }

  // Rows without a number count as none: so a layer of length 0 is written.
  static Rows drop_empty(const Rows& rows) {
    return rows.empty() || rows[0].empty() ? Rows{} : rows;
  }

  DynamicCache cache_;
  std::int64_t most_ = 0;  // tokens recorded
};

constexpr std::array kGroups = {"linear", "hybrid", "hybrid_sliding", "linear_mixed"};

class LinearTraces : public ::testing::TestWithParam<const char*> {};

TEST_P(LinearTraces, Replay) {
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

INSTANTIATE_TEST_SUITE_P(Parity, LinearTraces, ::testing::ValuesIn(kGroups),
                         [](const auto& group) { return std::string(group.param); });

TEST(LinearTraceFiles, AllAreThere) {
  std::size_t count = 0;
  for (const char* group : kGroups) count += read_traces(group).size();
  EXPECT_EQ(count, 160U);
}

}  // namespace
}  // namespace kvcache
