// What drafts leave of a cache's recording: a caller's bound is never lessened, and a cache without
// room to take drafts back is decoded over token by token.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "generation/draft_recording.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/counting.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using testing::ids_tensor;

// Counts forward passes.
class Counted final : public LanguageModel {
 public:
  explicit Counted(const LanguageModel& model)
      : LanguageModel(model.config(), model.dtype(), model.device()), model_(model) {}

  bool needs_whole_text(const ForwardInput& input, Cache& cache) const override {
    return model_.needs_whole_text(input, cache);
  }

  mutable int passes = 0;

 private:
  at::Tensor run(const ForwardInput& input, Cache* cache) const override {
    ++passes;
    return model_.forward(input, cache);
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }  // forward() has it

  const LanguageModel& model_;
};

at::Tensor prompt() { return ids_tensor({{3, 4, 5, 3, 4, 5, 3, 4, 5}}); }

GenerationConfig lookup(std::int64_t new_tokens, std::int64_t drafted) {
  return {.max_new_tokens = new_tokens, .prompt_lookup_num_tokens = drafted};
}

// Every step drafts as many tokens as it may, all of which are accepted.
Output assisted(const Counted& model, const CausalLM& own, const at::Tensor& ids,
                std::int64_t drafted, Cache& cache) {
  GenerationConfig config{.max_new_tokens = 13, .num_assistant_tokens = drafted};
  config.assistant_confidence_threshold = 0;
  return generate(model, {.input_ids = ids, .assistant_model = &own}, config, &cache);
}

// Whether the last of `tokens` more can be taken back.
bool takes_back(const CausalLM& model, Cache& cache, std::int64_t tokens) {
  const auto copy = cache.clone();
  model.forward({.input_ids = at::full({1, tokens}, 7, at::kLong)}, copy.get());
  return copy->can_crop(tokens);
}

struct Kind {
  std::string model;
  bool fixed;

  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) {
    return out << kind.model << (kind.fixed ? "_static" : "_dynamic");
  }
};

class DraftRecording : public ::testing::TestWithParam<Kind> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam().model); }
  std::unique_ptr<Cache> empty() const {
    if (!GetParam().fixed) return std::make_unique<DynamicCache>(model().config());
    return std::make_unique<StaticCache>(model().config(), StaticCacheOptions{.max_cache_len = 96});
  }
};

TEST_P(DraftRecording, ALargerBoundOfTheCallersStays) {
  for (const bool by_model : {false, true}) {
    const auto cache = empty();
    cache->activate_past_recording(20);
    GenerationConfig config{.max_new_tokens = 10};
    const Inputs inputs{.input_ids = prompt(), .assistant_model = by_model ? &model() : nullptr};
    if (by_model) {
      config.num_assistant_tokens = 3;
    } else {
      config.prompt_lookup_num_tokens = 3;
    }
    const at::Tensor made = generate(model(), inputs, config, cache.get()).sequences;
    EXPECT_TRUE(takes_back(model(), *cache, 15));
    EXPECT_FALSE(takes_back(model(), *cache, 21));
    const Output next = generate(model(), {.input_ids = made}, lookup(4, 3), cache.get());
    EXPECT_EQ(next.timings.prefill_tokens, 1);
    EXPECT_TRUE(takes_back(model(), *cache, 15));
  }
}

// Recorded tokens go with the first draft that is taken back, and not before.
TEST_P(DraftRecording, WhatACallerRecordedIsThereUntilThen) {
  const auto cache = empty();
  cache->activate_past_recording(20);
  model().forward({.input_ids = prompt()}, cache.get());
  const Inputs inputs{.input_ids = ids_tensor({{3, 4, 5, 3, 4, 5, 3, 4, 5, 6, 7}})};
  generate(model(), inputs, lookup(1, 3), cache.get());  // no token to draft
  EXPECT_EQ(cache->get_seq_length(), 11);
  EXPECT_TRUE(cache->can_crop(8));
}

TEST_P(DraftRecording, StaysOnWithRoomForTheLongestDraft) {
  const auto cache = empty();
  generate(model(), {.input_ids = prompt()}, lookup(10, 3), cache.get());
  EXPECT_TRUE(takes_back(model(), *cache, 3));
  EXPECT_FALSE(takes_back(model(), *cache, 4));
  const at::Tensor text = cache->history().ids();
  generate(model(), {.input_ids = text}, lookup(2, 2), cache.get());
  EXPECT_TRUE(takes_back(model(), *cache, 3));
}

TEST_P(DraftRecording, IsOfNoMoreThanTheTextCanStillTake) {
  const auto cache = empty();
  generate(model(), {.input_ids = prompt()}, lookup(4, 1000), cache.get());
  EXPECT_TRUE(takes_back(model(), *cache, 3));
  EXPECT_FALSE(takes_back(model(), *cache, 4));
}

TEST_P(DraftRecording, WithoutABoundLayersKeepTheirOwn) {
  const auto cache = empty();
  cache->activate_past_recording();
  generate(model(), {.input_ids = prompt()}, lookup(10, 3), cache.get());
  EXPECT_TRUE(takes_back(model(), *cache, 16));
  const at::Tensor plain =
      generate(model(), {.input_ids = prompt()}, {.max_new_tokens = 30}).sequences;
  const auto other = empty();
  other->activate_past_recording();
  const Output output = generate(model(), {.input_ids = prompt()}, lookup(30, 24), other.get());
  EXPECT_TRUE(output.sequences.equal(plain));
}

INSTANTIATE_TEST_SUITE_P(All, DraftRecording,
                         ::testing::Values(Kind{"mistral", false}, Kind{"mistral", true},
                                           Kind{"gemma3_text", false}, Kind{"gemma3_text", true},
                                           Kind{"mamba2", false}, Kind{"lfm2", false},
                                           Kind{"lfm2", true}, Kind{"qwen3_next", true}),
                         ::testing::PrintToStringParamName());

// By default a window records without bound, and states 16 tokens.
TEST(DraftRecordingOfLayers, NoneRecordsLessThanBefore) {
  DynamicCache cache({testing::window(4), {.type = std::string(kLinearAttention)}});
  cache.activate_past_recording();
  EXPECT_EQ(detail::record_drafts(cache, 3), 3);
  EXPECT_EQ(detail::record_drafts(cache, 16), 16);
  EXPECT_EQ(detail::record_drafts(cache, 20), 16);
  DynamicCache windows({testing::window(4), LayerSpec{}});
  EXPECT_EQ(detail::record_drafts(windows, 3), 3);
  EXPECT_EQ(detail::record_drafts(windows, 20), 20);
  EXPECT_EQ(detail::record_drafts(windows, 3), 3);
  testing::feed(windows, 30);
  testing::feed(windows, 30, 1);
  EXPECT_TRUE(windows.can_crop(20));
  EXPECT_FALSE(windows.can_crop(21));
}

TEST(DraftRecordingOfLayers, ADecodersOwnOnesCount) {
  EncoderDecoderCache cache(DynamicCache({testing::window(4)}), DynamicCache({LayerSpec{}}));
  cache.activate_past_recording(20);
  EXPECT_EQ(detail::record_drafts(cache, 3), 3);
  testing::feed(cache, 30);
  EXPECT_TRUE(cache.can_crop(20));
  EXPECT_FALSE(cache.can_crop(21));
}

// A ring that holds tokens has the slots that it was made with.
class RingsWithoutRoom : public ::testing::TestWithParam<const char*> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam()); }

  // Holds the prompt, and can record `slack` tokens.
  StaticCache filled(std::int64_t slack) const {
    StaticCache cache(model().config(), {.max_cache_len = 96, .record_slack = slack});
    if (slack > 0) cache.activate_past_recording();
    model().forward({.input_ids = prompt().narrow(1, 0, 8)}, &cache);
    return cache;
  }
};

TEST_P(RingsWithoutRoom, DecodeTokenByToken) {
  const at::Tensor expected =
      generate(model(), {.input_ids = prompt()}, {.max_new_tokens = 13}).sequences;
  StaticCache cache = filled(0);
  EXPECT_TRUE(
      generate(model(), {.input_ids = prompt()}, lookup(13, 3), &cache).sequences.equal(expected));
  EXPECT_FALSE(takes_back(model(), cache, 1));
  StaticCache other = filled(0);
  const Counted counted(model());
  const Output output = assisted(counted, model(), prompt(), 3, other);
  EXPECT_TRUE(output.sequences.equal(expected));
  EXPECT_EQ(counted.passes, 13);
  EXPECT_EQ(other.get_seq_length(), 9 + 12);

  other.reset();  // without tokens there is room
  const Counted again(model());
  EXPECT_TRUE(assisted(again, model(), prompt(), 3, other).sequences.equal(expected));
  EXPECT_EQ(again.passes, 1 + 12 / 4);
}

TEST_P(RingsWithoutRoom, DraftAsMuchAsTheyRecord) {
  const at::Tensor expected =
      generate(model(), {.input_ids = prompt()}, {.max_new_tokens = 13}).sequences;
  for (const auto& [slack, passes] : {std::pair{1, 1 + 12 / 2}, {2, 1 + 12 / 3}, {3, 1 + 12 / 4}}) {
    StaticCache cache = filled(slack);
    const Counted counted(model());
    EXPECT_TRUE(assisted(counted, model(), prompt(), 11, cache).sequences.equal(expected)) << slack;
    EXPECT_EQ(counted.passes, passes) << slack;
    EXPECT_TRUE(takes_back(model(), cache, slack));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RingsWithoutRoom, ::testing::Values("mistral", "gemma2"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace kvcache
