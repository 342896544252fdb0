// Buffers of a fixed size keep their addresses, and a shape that was fixed for good stays, whatever
// takes the place of what a cache held. Recording stays on likewise.

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/encoder_decoder.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::buffers;
using testing::counting;
using ::testing::ElementsAre;
using testing::encoder_input;
using testing::feed;
using ::testing::HasSubstr;
using testing::numbers;
using testing::refusal;
using testing::run;
using testing::stored;
using Numbers = std::vector<std::int64_t>;

const LayerSpec kFull{};
const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};

std::vector<const void*> addresses(LayeredCache& cache) {
  std::vector<const void*> result;
  for (const KeyValue& layer : buffers(cache)) {
    result.push_back(layer.keys.const_data_ptr());
    result.push_back(layer.values.const_data_ptr());
  }
  return result;
}

at::Tensor rows(const Numbers& indices) { return at::tensor(indices, at::kLong); }

EncoderDecoderCache static_pair() {
  return {StaticCache({kFull, kFull}, {.max_cache_len = 8}),
          StaticCache({kFull, kFull}, {.max_cache_len = 4})};
}

void feed_rows(LayeredCache& cache, std::int64_t batch, std::int64_t tokens) {
  for (std::int64_t layer = 0; layer < cache.layer_count(); ++layer) {
    const at::Tensor keys = counting(cache.get_seq_length(layer), tokens, {batch, 1, 1});
    cache.update(keys, keys, layer);
  }
}

// Every operation with as many rows as before, aborted steps and refusals; beside a ring without
// slack, which refuses to take tokens back, and one that records.
TEST(FixedAddresses, F20StorageStaysWhereItIs) {
  for (const std::int64_t slack : {0, 4}) {
    StaticCache cache({kFull, kWindow4}, {.max_cache_len = 32, .record_slack = slack});
    if (slack > 0) cache.activate_past_recording();
    const auto step = [&](std::int64_t tokens) {
      Step open = cache.begin_step({.tokens = tokens, .batch = 2});
      const at::Tensor states = counting(open.seen(), tokens, {2, 1, 1});
      for (const std::int64_t layer : {0, 1}) open.append(layer, states, states);
      return open;
    };
    step(5).commit();
    const std::vector<const void*> before = addresses(cache);
    const std::vector<std::function<void()>> operations = {
        [&] {
          cache.reorder_cache(rows({1, 0}));
        },
        [&] {
          cache.batch_select_indices(rows({1, 1}));
        },
        [&] { cache.batch_repeat_interleave(1); },
        [&] { step(1).commit(); },
        [&] { step(6).commit(); },
        [&] { step(3); },
        [&] { cache.crop(0); },
        [&] { step(1).commit(); },
        [&] {
          if (slack > 0) return cache.crop(-1);
          EXPECT_THROW(cache.crop(-1), RuntimeError);
        },
        [&] { EXPECT_EQ(cache.get_seq_length(), slack > 0 ? 12 : 13); },
        [&] { step(2).commit(); },
        [&] { EXPECT_THROW(step(30), ValueError); },
        [&] { cache.reset(); },
        [&] { step(2); },
        [&] { step(2).commit(); },
        [&] { cache.crop(-1); },
        [&] { step(1).commit(); },
    };
    for (std::size_t i = 0; i < operations.size(); ++i) {
      operations[i]();
      EXPECT_EQ(addresses(cache), before) << "after operation " << i << ", slack " << slack;
    }
    cache.reorder_cache(rows({1, 0}));
    EXPECT_EQ(numbers(stored(cache)[0].keys, 0), (Numbers{1000, 1001}));
    EXPECT_EQ(numbers(stored(cache)[1].keys, 1), (Numbers{0, 1}));
    cache.batch_repeat_interleave(2);  // other rows, new buffers
    EXPECT_EQ(numbers(stored(cache)[0].keys, 3), (Numbers{0, 1}));
  }
}

TEST(FixedAddresses, RowsOfAnEncoderDecoderCacheChangeInPlace) {
  EncoderDecoderCache cache = static_pair();
  run(cache, 3, 2, encoder_input(10, 3, 2));
  const auto self = addresses(cache.self_attention_cache());
  const auto cross = addresses(cache.cross_attention_cache());
  cache.batch_select_indices(rows({1, 0}));
  EXPECT_EQ(addresses(cache.self_attention_cache()), self);
  EXPECT_EQ(addresses(cache.cross_attention_cache()), cross);
  EXPECT_EQ(numbers(stored(cache.self_attention_cache())[1].keys, 0), (Numbers{1000, 1001, 1002}));
  EXPECT_EQ(numbers(stored(cache.cross_attention_cache())[1].keys, 0), (Numbers{60, 61, 62}));
}

TEST(FixedAddresses, AnotherEncoderInputMovesIn) {
  for (const bool early : {false, true}) {
    EncoderDecoderCache cache = static_pair();
    auto& cross = static_cast<StaticCache&>(cache.cross_attention_cache());
    if (early) cross.early_initialization({.kv_heads = {1}, .key_dims = {1}});
    run(cache, 3, 2, encoder_input(10, 3));
    const auto before = addresses(cross);
    cache.crop(-3);
    run(cache, 1, 2, encoder_input(20, 4), 1);  // is let go
    EXPECT_EQ(numbers(stored(cross)[0].keys), (Numbers{10, 11, 12}));
    EXPECT_EQ(addresses(cross), before);
    EXPECT_TRUE(run(cache, 2, 2, encoder_input(30, 4)).computed);
    EXPECT_THAT(run(cache, 1, 2, std::nullopt).cross[0], ElementsAre(30, 31, 32, 33));
    EXPECT_EQ(addresses(cross), before);
    EXPECT_EQ(cross.allocated_bytes(), 2 * 2 * 4 * 4);
    // Read, copied and joined before anything settles it.
    cache.crop(-3);
    run(cache, 2, 2, encoder_input(40, 2));
    EXPECT_THAT(
        run(dynamic_cast<EncoderDecoderCache&>(*cache.clone()), 1, 2, std::nullopt).cross[0],
        ElementsAre(40, 41));
    cache.crop(-2);
    const auto other_rows = [&] { run(cache, 1, 2, encoder_input(50, 2, 2)); };
    if (early) {
      EXPECT_THAT(refusal<ValueError>(other_rows),
                  AllOf(HasSubstr("layer 0"), HasSubstr("early_initialization() fixed")));
      EXPECT_EQ(numbers(stored(cross)[1].keys), (Numbers{40, 41}));
      EXPECT_EQ(addresses(cross), before);
    }
  }
}

TEST(FixedAddresses, AMarkFromBeforeTheFirstBuffers) {
  StaticCache cache({kFull, kWindow4}, {.max_cache_len = 8});
  const Snapshot empty = cache.snapshot();
  feed_rows(cache, 1, 5);
  const auto before = addresses(cache);
  const Snapshot filled = cache.snapshot();
  cache.restore(empty);
  feed_rows(cache, 1, 2);
  EXPECT_EQ(addresses(cache), before);
  EXPECT_EQ(numbers(stored(cache)[1].keys), (Numbers{0, 1}));
  cache.restore(filled);
  EXPECT_EQ(addresses(cache), before);
  EXPECT_EQ(numbers(stored(cache)[0].keys), (Numbers{0, 1, 2, 3, 4}));
  EXPECT_EQ(numbers(stored(cache)[1].keys), (Numbers{2, 3, 4}));
  cache.restore(filled);
  cache.restore(empty);
  EXPECT_EQ(addresses(cache), before);
}

// Layers that are made as keys come in were not there yet.
TEST(Marks, FromBeforeTheFirstLayers) {
  DynamicCache cache, other;
  const Snapshot empty = cache.snapshot();
  for (const std::int64_t layer : {0, 1}) feed(cache, 3, layer);
  const Snapshot filled = cache.snapshot();
  cache.restore(empty);
  EXPECT_EQ(cache.get_seq_length(1), 0);
  for (const std::int64_t layer : {0, 1, 2}) EXPECT_EQ(feed(cache, 2, layer), (Numbers{0, 1}));
  EXPECT_THROW(cache.restore(filled), ValueError);  // two layers are not three
  other.restore(filled);
  EXPECT_EQ(feed(other, 1, 1), (Numbers{0, 1, 2, 3}));
  StaticCache of_two({kFull, kFull}, {.max_cache_len = 4});
  EXPECT_THROW(of_two.restore(empty), ValueError);
}

TEST(FixedShape, IsKeptWhateverComes) {
  const auto path = std::filesystem::temp_directory_path() /
                    c10::str("kvcache_shape_", ::getpid(), ".safetensors");
  const auto make = [] { return StaticCache({kFull, kWindow4}, {.max_cache_len = 8}); };
  StaticCache three = make(), cache = make();
  feed_rows(three, 3, 5);
  save_cache(three, path);
  cache.early_initialization({.batch = 2, .kv_heads = {1}, .key_dims = {1}});
  feed_rows(cache, 2, 3);
  const auto before = addresses(cache);
  const std::vector<std::function<void()>> refused = {[&] { load_cache(cache, path); },
                                                      [&] { cache.restore(three.snapshot()); },
                                                      [&] { feed_rows(cache, 3, 1); }};
  for (const auto& call : refused) {
    EXPECT_THAT(refusal<ValueError>(call), HasSubstr("early_initialization()"));
  }
  const std::vector<std::function<void()>> row_changes = {
      [&] { cache.batch_select_indices(rows({0})); },
      [&] {
        cache.batch_select_indices(rows({0, 1, 1}));
      },
      [&] { cache.batch_repeat_interleave(2); }};
  for (const auto& call : row_changes) {
    EXPECT_THAT(refusal<RuntimeError>(call), AllOf(HasSubstr("for 2"), HasSubstr("clone()")));
  }
  EXPECT_EQ(addresses(cache), before);
  EXPECT_EQ(numbers(stored(cache)[0].keys, 1), (Numbers{1000, 1001, 1002}));
  cache.batch_select_indices(rows({1, 1}));
  EXPECT_EQ(addresses(cache), before);
  cache.reset();
  EXPECT_THAT(refusal<ValueError>([&] { feed_rows(cache, 3, 1); }),
              HasSubstr("make another cache"));
  feed_rows(cache, 2, 1);
  EXPECT_EQ(addresses(cache), before);
  std::filesystem::remove(path);
}

TEST(FixedShape, IsTheCachesOwn) {
  StaticCache cache({kFull, kWindow4}, {.max_cache_len = 8});
  cache.early_initialization({.batch = 2, .kv_heads = {1}, .key_dims = {1}});
  feed_rows(cache, 2, 3);
  EXPECT_EQ(cache.concatenate({&cache})->batch_size(), 4);
  EXPECT_EQ(cache.batch_split(1)[1]->batch_size(), 1);
  for (const auto& copy : {cache.clone(), cache.fork(), cache.concatenate({&cache})}) {
    copy->batch_select_indices(rows({1, 0, 1}));
    EXPECT_EQ(copy->batch_size(), 3);
    copy->reset();
    feed_rows(static_cast<LayeredCache&>(*copy), 1, 2);
  }
  StaticCache one({kFull}, {.max_cache_len = 8});
  one.early_initialization({.kv_heads = {1}, .key_dims = {1}});
  feed_rows(one, 1, 3);
  EXPECT_THROW(one.expand(2), RuntimeError);
  EXPECT_EQ(one.batch_size(), 1);
}

TEST(KeptRecording, GoesOnAfterAMarkOrAFileFromBefore) {
  const auto path = std::filesystem::temp_directory_path() /
                    c10::str("kvcache_recording_", ::getpid(), ".safetensors");
  const auto expect_recording = [&](LayeredCache& cache, std::int64_t bound) {
    const Snapshot before = cache.snapshot();
    feed_rows(cache, 1, 2);
    save_cache(cache, path);
    cache.activate_past_recording(bound);
    const auto expect_kept = [&] {
      const std::int64_t from = cache.get_seq_length();
      for (int i = 0; i < 20; ++i) feed_rows(cache, 1, 1);
      EXPECT_TRUE(cache.can_crop(bound));
      EXPECT_FALSE(cache.can_crop(bound + 1));
      cache.crop(-bound);
      EXPECT_EQ(cache.get_seq_length(), from + 20 - bound);
    };
    cache.restore(before);
    expect_kept();
    load_cache(cache, path);
    expect_kept();
  };
  DynamicCache growing({kWindow4});
  expect_recording(growing, 6);
  StaticCache fixed({kWindow4}, {.max_cache_len = 64, .record_slack = 6});
  expect_recording(fixed, 6);
  std::filesystem::remove(path);
}

// A recurrence's states, and what was recorded at the mark itself.
TEST(KeptRecording, OfStatesAndOfMarks) {
  DynamicCache cache({{.type = std::string(kLinearAttention)}});
  const auto step = [&] {
    Step open = cache.begin_step({.tokens = 1, .batch = 1});
    open.update_conv_state(0, counting(0, 1, {1, 1, 1})[0], {.kernel_size = 3});
    open.commit();
  };
  step();
  const Snapshot before = cache.snapshot();
  cache.activate_past_recording(4);
  cache.restore(before);
  for (int i = 0; i < 6; ++i) step();
  EXPECT_TRUE(cache.can_crop(4));
  EXPECT_FALSE(cache.can_crop(5));
  const Snapshot recorded = cache.snapshot();
  cache.activate_past_recording(2);
  cache.restore(recorded);
  EXPECT_TRUE(cache.can_crop(4));
}

}  // namespace
}  // namespace kvcache
