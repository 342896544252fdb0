// Layers that read another layer's keys, and layers that keep nothing.

#include "kvcache/layers/shared_layer.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::FailingMemory;
using ::testing::HasSubstr;
using testing::refusal;
using testing::window;

const LayerSpec kFull{};
const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};
const LayerSpec kNothing{.type = std::string(kDummy)};

LayerSpec shared(std::int64_t donor) { return {.type = std::string(kShared), .donor = donor}; }

at::Tensor counting(std::int64_t first, std::int64_t tokens) {
  return testing::counting(first, tokens, {1, 1, 1});
}

// Keys that a shared layer reads in a step of `tokens` counting tokens.
std::vector<at::Tensor> run(LayeredCache& cache, std::int64_t tokens) {
  Step step = cache.begin_step({.tokens = tokens, .batch = 1});
  std::vector<at::Tensor> read;
  for (std::int64_t layer = 0; layer < cache.layer_count(); ++layer) {
    const LayerSpec& spec = cache.layer(layer).spec();
    if (spec.donor) {
      EXPECT_EQ(step.query_offset(layer), step.seen());  // its donor has appended by now
      const View view = step.view(layer);
      EXPECT_EQ(step.query_offset(layer), step.seen());
      EXPECT_EQ(view.visible, step.visible(layer));
      read.push_back(dense(view).keys.flatten().clone());
    } else if (spec.type != kDummy) {
      const at::Tensor states = counting(step.seen(), tokens) + 100 * layer;
      step.append(layer, states, states);
    }
  }
  step.commit();
  return read;
}

TEST(SharedLayer, F63_ReadsItsDonorsKeysAtTheDonorsOffset) {
  const std::vector<LayerSpec> layers{kFull, kWindow4, kNothing, shared(0), shared(1), shared(0)};
  DynamicCache whole(layers), one_by_one(layers);
  std::vector<at::Tensor> last;
  run(whole, 6);
  for (int i = 0; i < 6; ++i) run(one_by_one, 1);
  for (const std::int64_t tokens : {1, 3, 1, 2}) {
    const std::vector<at::Tensor> a = run(whole, tokens);
    const std::vector<at::Tensor> b = run(one_by_one, tokens);
    ASSERT_EQ(a.size(), 3U);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i]));
    EXPECT_EQ(a[0].size(0), whole.get_seq_length());
    EXPECT_EQ(a[1].size(0), 3 + tokens);
    EXPECT_EQ(a[1][-1].item<double>(), double(100 + whole.get_seq_length() - 1));
    EXPECT_TRUE(at::equal(a[0], a[2]));
  }
}

TEST(SharedLayer, FollowsARoundOfUpdatesOutsideAStep) {
  DynamicCache cache({kFull, shared(0), kWindow4, kNothing});
  const at::Tensor states = counting(0, 3);
  cache.update(states, states, 0);
  EXPECT_EQ(cache.get_seq_length(1), 0);
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.crop(-1); }), HasSubstr("differ in length"));
  cache.update(states, states, 2);
  for (const std::int64_t layer : {0, 1, 2, 3}) EXPECT_EQ(cache.get_seq_length(layer), 3);
  cache.crop(-1);
  EXPECT_EQ(run(cache, 2)[0].size(0), 4);
  EXPECT_EQ(cache.get_seq_length(3), 4);
}

TEST(SharedLayer, UpdateIsRefusedWhereALayerHasStates) {
  DynamicCache cache({kFull, {.type = std::string(kLinearAttention)}});
  const at::Tensor states = counting(0, 3);
  EXPECT_THAT(refusal<ValueError>([&] { cache.update(states, states, 0); }),
              AllOf(HasSubstr("layer 1"), HasSubstr("begin_step()")));
  EXPECT_EQ(cache.get_seq_length(0), 0);
  EXPECT_TRUE(cache.can_crop(0));
}

TEST(SharedLayer, FollowsItsCacheThroughCropAndReset) {
  DynamicCache cache({kFull, shared(0)});
  run(cache, 5);
  EXPECT_TRUE(cache.can_crop(2));
  cache.crop(-2);
  EXPECT_EQ(cache.get_seq_length(1), 3);
  EXPECT_EQ(run(cache, 1)[0].size(0), 4);
  EXPECT_EQ(cache.get_mask_sizes(2, 1), cache.get_mask_sizes(2, 0));
  cache.reset();
  EXPECT_EQ(run(cache, 2)[0].size(0), 2);
}

TEST(SharedLayer, RefusesDonorsAndTurnsThatDoNotFit) {
  EXPECT_THAT(refusal<ValueError>([] {
                DynamicCache({kFull, {.type = std::string(kShared)}});
              }),
              HasSubstr("donor"));
  EXPECT_THAT(refusal<ValueError>([] { DynamicCache({shared(0), kFull}); }), HasSubstr("layer 0"));
  EXPECT_THAT(refusal<ValueError>([] {
                DynamicCache({kNothing, shared(0)});
              }),
              HasSubstr("keeps no keys"));
  EXPECT_THAT(refusal<ValueError>([] {
                DynamicCache({kFull, shared(0), shared(1)});
              }),
              HasSubstr("keeps no keys"));

  DynamicCache cache({kFull, kFull, shared(0)});
  const at::Tensor states = counting(0, 2);
  Step step = cache.begin_step({.tokens = 2, .batch = 1});
  EXPECT_THAT(refusal<RuntimeError>([&] { step.view(2); }),
              AllOf(HasSubstr("layer 0"), HasSubstr("layer 2")));
  step.append(0, states, states);
  EXPECT_THAT(refusal<ValueError>([&] { step.view(1); }), HasSubstr("layer 1"));
  step.append(1, states, states);
  EXPECT_THAT(refusal<RuntimeError>([&] { step.commit(); }),
              AllOf(HasSubstr("layer 2"), HasSubstr("donor")));
  EXPECT_THAT(refusal<ValueError>([&] { step.append(2, states, states); }),
              HasSubstr("keeps no keys"));
  step.view(2);
  step.commit();
  EXPECT_EQ(cache.get_seq_length(2), 2);
}

TEST(DummyLayer, NeedsNoTurn) {
  DynamicCache cache({kNothing, kFull, kNothing});
  run(cache, 3);
  EXPECT_EQ(cache.get_seq_length(0), 3);
  EXPECT_EQ(cache.get_max_length(0), -1);
  EXPECT_THROW(cache.update(counting(3, 1), counting(3, 1), 0), ValueError);
  EXPECT_THROW(cache.has_previous_state(), ValueError);
}

TEST(Recording, HoldsNoMoreThanItsBound) {
  DynamicCache cache({kWindow4});
  cache.activate_past_recording(3);
  EXPECT_THROW(cache.activate_past_recording(0), ValueError);
  run(cache, 40);
  for (int i = 0; i < 3; ++i) run(cache, 1);
  EXPECT_EQ(cache.nbytes(), 2 * 4 * (3 + 3));  // what the next query needs, and three more
  EXPECT_TRUE(cache.can_crop(3));
  EXPECT_FALSE(cache.can_crop(4));
  EXPECT_THROW(cache.crop(-4), RuntimeError);
  cache.crop(-3);
  const KeyValue states = cache.update(counting(40, 1), counting(40, 1), 0);
  EXPECT_TRUE(at::equal(states.keys.flatten(), counting(37, 4).flatten()));
}

// The prompt passes by the buffers. Those that grow have room for at most twice what stays, a ring
// for one token more; on a warm layer the old ones are there until the step is published.
TEST(Recording, ALongPrefillStaysWithinItsBound) {
  constexpr std::int64_t kToken = 2 * sizeof(float);  // bytes of a key and a value
  for (const std::int64_t bound : {1, 20, 100}) {
    const auto growing = std::make_shared<FailingMemory>();
    const auto fixed = std::make_shared<FailingMemory>();
    DynamicCache dynamic({window(64)}, {.memory = growing});
    StaticCache ring({window(64)}, {.max_cache_len = 7000, .memory = fixed});
    const std::int64_t kept = 63 + bound;
    for (const std::int64_t prompts : {1, 2}) {
      for (LayeredCache* cache :
           {static_cast<LayeredCache*>(&dynamic), static_cast<LayeredCache*>(&ring)}) {
        if (prompts == 1) cache->activate_past_recording(bound);
        run(*cache, 3000);
        EXPECT_EQ(cache->nbytes(), kToken * kept);
        EXPECT_TRUE(cache->can_crop(bound));
        EXPECT_FALSE(cache->can_crop(bound + 1));
      }
      EXPECT_LE(growing->peak_bytes(), prompts * kToken * 2 * kept) << "bound " << bound;
      EXPECT_LE(fixed->peak_bytes(), prompts * kToken * (kept + 1)) << "bound " << bound;
      EXPECT_EQ(ring.allocated_bytes(), kToken * (kept + 1));
    }
  }
}

}  // namespace
}  // namespace kvcache
