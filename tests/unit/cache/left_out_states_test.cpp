// A step that leaves out a state of a layer is refused, and nothing has changed.

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting_states.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::feed_text;
using ::testing::HasSubstr;
using testing::kFull;
using testing::kNothing;
using testing::Numbers;
using testing::outputs_of;
using testing::refusal;
using testing::taps_of;

constexpr std::int64_t kStates = 2;  // of each kind
constexpr std::int64_t kLayer = 1;   // which one has them

struct State {
  bool recurrent;
  std::int64_t index;

  std::string name() const {
    return c10::str(recurrent ? "recurrent" : "convolution", " state ", index);
  }
  friend bool operator==(const State&, const State&) = default;
};

const std::vector<State> kAll{{false, 0}, {false, 1}, {true, 0}, {true, 1}};

LayerSpec with_states(std::string_view type, bool sized) {
  LayerSpec spec{.type = std::string(type), .states = kStates};
  if (type == kHybridSliding) spec.window = 4;
  if (!sized) return spec;
  StateSizes sizes;
  for (std::int64_t i = 0; i < kStates; ++i) {
    sizes.convolutions.push_back({.channels = 2, .taps = taps_of(i)});
    sizes.recurrences.push_back({.shape = {1}});
  }
  spec.state_sizes = sizes;
  return spec;
}

void run_state(Step& step, const State& state, const at::Tensor& x) {
  state.recurrent ? testing::run_recurrence(step, kLayer, state.index, x)
                  : testing::run_convolution(step, kLayer, state.index, x);
}

class LeftOutStates : public ::testing::TestWithParam<const char*> {
 protected:
  // Every kind of layer with states, before another layer and as the last one.
  std::vector<std::vector<LayerSpec>> layers(bool sized) const {
    std::vector<std::vector<LayerSpec>> result;
    const std::string kind = GetParam();
    for (const auto type : {kLinearAttention, kHybrid, kHybridSliding}) {
      if (kind == "mamba" && type != kLinearAttention) continue;
      const LayerSpec other = kind == "mamba" ? kNothing : kFull;
      result.push_back({other, with_states(type, sized)});
      result.push_back({other, with_states(type, sized), other});
    }
    return result;
  }

  std::unique_ptr<LayeredCache> make(const std::vector<LayerSpec>& layers) const {
    const std::string kind = GetParam();
    if (kind == "mamba") return std::make_unique<MambaCache>(layers);
    if (kind == "dynamic") return std::make_unique<DynamicCache>(layers);
    return std::make_unique<StaticCache>(layers, StaticCacheOptions{.max_cache_len = 24});
  }

  // A step of all but the states left out.
  static void run_without(Step& step, const std::vector<LayerSpec>& layers,
                          const std::vector<State>& left_out, const at::Tensor& x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto layer = std::int64_t(i);
      if (layers[i].type != kLinearAttention && layers[i].type != kDummy) {
        testing::run_attention(step, layer, layers[i].window, x);
      }
      if (layer != kLayer) continue;
      for (const State& state : kAll) {
        if (std::find(left_out.begin(), left_out.end(), state) == left_out.end()) {
          run_state(step, state, x);
        }
      }
    }
    step.commit();
  }

  // After `text`. `given_late`: the step goes on with what it lacked; else it is dropped.
  void expect_refused(const std::vector<LayerSpec>& layers, const Numbers& text,
                      const std::vector<State>& left_out, const std::string& name,
                      bool given_late) {
    SCOPED_TRACE(c10::str(layers[kLayer].type, " of ", layers.size(), " after ", text.size(),
                          " tokens, without ", name));
    const auto cache = make(layers);
    if (!text.empty()) feed_text(*cache, text);
    const std::int64_t held = cache->nbytes();
    Numbers whole = text;
    {
      Step step = cache->begin_step({.tokens = 2, .batch = 1});
      const at::Tensor x = at::arange(5.0, 7.0).unsqueeze(0);
      EXPECT_THAT(refusal<RuntimeError>([&] { run_without(step, layers, left_out, x); }),
                  AllOf(HasSubstr("layer 1"), HasSubstr(name + " got nothing")));
      EXPECT_EQ(cache->get_seq_length(kLayer), std::int64_t(text.size()));
      if (given_late) {
        for (const State& state : left_out) run_state(step, state, x);
        if (layers.size() > 2 && layers[2].type != kDummy) {
          testing::run_attention(step, 2, layers[2].window, x);
        }
        step.commit();
        whole.insert(whole.end(), {5, 6});
      }
    }
    EXPECT_EQ(cache->get_seq_length(), std::int64_t(whole.size()));
    if (!given_late) {
      EXPECT_EQ(cache->nbytes(), held);
    }
    const auto seen = std::ptrdiff_t(whole.size());
    whole.insert(whole.end(), {7, 8, 9});
    const Numbers right = outputs_of(layers, whole);
    EXPECT_EQ(feed_text(*cache, {7, 8, 9}), Numbers(right.begin() + seen, right.end()));
  }
};

TEST_P(LeftOutStates, AreRefusedWhereTheSpecListsThem) {
  for (const auto& layers : layers(/*sized=*/true)) {
    for (const Numbers& text : {Numbers{}, Numbers{1, 2, 3}}) {
      for (const State& state : kAll) {
        for (const bool given_late : {false, true}) {
          expect_refused(layers, text, {state}, state.name(), given_late);
        }
      }
    }
  }
}

// Of a spec that gives their number alone, one or both of each number come with the first step, and
// those that came with every later one.
TEST_P(LeftOutStates, AreRefusedWhereTheSpecCountsThem) {
  for (const auto& layers : layers(/*sized=*/false)) {
    for (const bool given_late : {false, true}) {
      for (const State& state : kAll) {
        expect_refused(layers, {1, 2, 3}, {state}, state.name(), given_late);
      }
      for (const std::int64_t i : {0, 1}) {
        expect_refused(layers, {}, {{false, i}, {true, i}}, c10::str("state ", i), given_late);
      }
    }
    for (const State& unused : kAll) {
      const auto cache = make(layers);
      for (int i = 0; i < 2; ++i) {
        Step step = cache->begin_step({.tokens = 2, .batch = 1});
        run_without(step, layers, {unused}, at::arange(5.0, 7.0).unsqueeze(0));
      }
      EXPECT_EQ(cache->get_seq_length(), 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LeftOutStates, ::testing::Values("dynamic", "static", "mamba"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache
