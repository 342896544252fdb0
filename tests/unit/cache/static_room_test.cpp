// How many slots a static cache's buffers have: its own setting, whatever a file, a mark or a
// recording bound says.

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/io/safetensors.h"
#include "tests/support/counting.h"
#include "tests/support/counting_states.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::buffers;
using testing::counting;
using testing::FailingMemory;
using testing::feed;
using testing::feed_text;
using ::testing::HasSubstr;
using testing::kBothSliding;
using testing::kLinear;
using testing::Numbers;
using testing::numbers;
using testing::refusal;
using testing::stored;

const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};
const LayerSpec kChunk4{.type = std::string(kChunkedAttention), .window = 4};
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

StaticCache sliding(std::int64_t slack, std::int64_t max_cache_len = 64) {
  return {{kWindow4}, {.max_cache_len = max_cache_len, .record_slack = slack}};
}

std::int64_t slots(LayeredCache& cache) { return buffers(cache)[0].keys.size(2); }

Numbers held(LayeredCache& cache) { return numbers(stored(cache)[0].keys); }

// A ring has room without end, but its cache could not end the round of updates.
TEST(StaticCache, F14UpdateAsksForRoomInEveryLayer) {
  StaticCache cache({kWindow4, LayerSpec{}}, {.max_cache_len = 6});
  for (const std::int64_t layer : {0, 1}) feed(cache, 6, layer);
  const at::Tensor one = counting(6, 1, {1, 1, 1});
  EXPECT_THAT(refusal<ValueError>([&] { cache.update(one, one, 0); }),
              AllOf(HasSubstr("layer 1 holds 6 of at most 6"), HasSubstr("max_cache_len")));
  EXPECT_EQ(cache.get_seq_length(0), 6);
  cache.crop(0);
  EXPECT_EQ(held(cache), (Numbers{3, 4, 5}));
}

class StaticRoom : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  // The saved file again, with other numbers of its first layer.
  void rewrite(const std::function<void(nlohmann::json&)>& change) const {
    const SafetensorsFile file = SafetensorsFile::open(path_);
    nlohmann::json header = nlohmann::json::parse(file.metadata().at("kvcache.cache"));
    change(header["layers"][0]["counts"]);
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : file.names()) tensors[name] = file.tensor(name).clone();
    save_safetensors(path_, tensors, {{"kvcache.cache", header.dump()}});
  }

  // Both ways of going to what `source` holds: its file and its mark.
  using Way = std::function<void(StaticCache& source, StaticCache& target)>;
  std::vector<Way> ways() const {
    return {[this](StaticCache& source, StaticCache& target) {
              save_cache(source, path_);
              load_cache(target, path_);
            },
            [](StaticCache& source, StaticCache& target) { target.restore(source.snapshot()); }};
  }

  std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                c10::str("kvcache_static_room_", ::getpid(), ".safetensors");
};

TEST_F(StaticRoom, SlackStaysWhateverTheSourceHad) {
  for (const Way& go_to : ways()) {
    for (const bool filled : {false, true}) {
      StaticCache slackless = sliding(0), source = sliding(0), target = sliding(3);
      feed(source, 9);
      if (filled) feed(target, 12);
      const void* before = filled ? buffers(target)[0].keys.const_data_ptr() : nullptr;
      go_to(source, target);
      EXPECT_EQ(slots(target), 4 + 3);
      EXPECT_TRUE(!filled || buffers(target)[0].keys.const_data_ptr() == before);
      EXPECT_EQ(held(target), (Numbers{6, 7, 8}));
      target.activate_past_recording();
      feed(target, 4);
      EXPECT_TRUE(target.can_crop(3));
      target.crop(-3);
      EXPECT_EQ(held(target), (Numbers{7, 8, 9}));
    }
  }
}

TEST_F(StaticRoom, NoSlackComesWithTheSource) {
  for (const Way& go_to : ways()) {
    for (const bool filled : {false, true}) {
      StaticCache source = sliding(3), target = sliding(0);
      feed(source, 9);
      if (filled) feed(target, 12);
      const void* before = filled ? buffers(target)[0].keys.const_data_ptr() : nullptr;
      go_to(source, target);
      EXPECT_EQ(slots(target), 4);
      EXPECT_TRUE(!filled || buffers(target)[0].keys.const_data_ptr() == before);
      EXPECT_EQ(feed(target, 2), (Numbers{6, 7, 8, 9, 10}));
    }
  }
}

// As activate_past_recording() does before the first token, and no more than max_cache_len needs.
TEST_F(StaticRoom, RecordingThatGoesOnHasItsRoomOrIsRefused) {
  for (const Way& go_to : ways()) {
    StaticCache source = sliding(0, 16), same = sliding(0, 16), small = sliding(0, 8);
    source.activate_past_recording();
    feed(source, 15);
    go_to(source, same);
    EXPECT_EQ(slots(same), slots(source));
    EXPECT_TRUE(same.can_crop(13));
    feed(small, 3);
    const void* before = buffers(small)[0].keys.const_data_ptr();
    EXPECT_THAT(
        refusal<ValueError>([&] { go_to(source, small); }),
        AllOf(HasSubstr("13 past tokens"), HasSubstr("can record 5"), HasSubstr("layer 0")));
    EXPECT_EQ(held(small), (Numbers{0, 1, 2}));
    EXPECT_EQ(buffers(small)[0].keys.const_data_ptr(), before);
    EXPECT_EQ(slots(small), 4);
  }
}

TEST_F(StaticRoom, AnEmptySourceEmptiesAndAddressesStay) {
  for (const Way& go_to : ways()) {
    StaticCache fresh = sliding(0), used = sliding(2), target = sliding(0);
    feed(used, 5);
    used.reset();
    feed(target, 5);
    for (StaticCache* source : {&fresh, &used}) {
      const void* before = buffers(target)[0].keys.const_data_ptr();
      go_to(*source, target);
      EXPECT_EQ(target.get_seq_length(), 0);
      EXPECT_EQ(buffers(target)[0].keys.const_data_ptr(), before);
      EXPECT_EQ(feed(target, 2), (Numbers{0, 1, 0, 0}));
    }
  }
}

TEST_F(StaticRoom, AFixedShapeStaysFixed) {
  for (const Way& go_to : ways()) {
    StaticCache source = sliding(0), target = sliding(0);
    feed(source, 5);
    target.early_initialization({.kv_heads = {1}, .key_dims = {1}});
    const void* before = buffers(target)[0].keys.const_data_ptr();
    go_to(source, target);
    EXPECT_EQ(buffers(target)[0].keys.const_data_ptr(), before);
    target.reset();
    const at::Tensor two_heads = counting(0, 1, {1, 2, 1});
    EXPECT_THROW(target.update(two_heads, two_heads, 0), ValueError);
  }
}

TEST_F(StaticRoom, HostileNumbersAreRefused) {
  const auto refused = [&](const LayerSpec& spec, const char* name, std::int64_t value) {
    const auto make = [&] {
      return std::make_unique<StaticCache>(std::vector{spec},
                                           StaticCacheOptions{.max_cache_len = 16});
    };
    const auto source = make(), target = make();
    source->activate_past_recording(2);
    feed_text(*source, {1, 2, 3, 4, 5, 6, 7});
    save_cache(*source, path_);
    rewrite([&](nlohmann::json& counts) { counts[name] = value; });
    feed_text(*target, {1, 2, 3});
    const std::int64_t bytes = target->allocated_bytes();
    EXPECT_THROW(load_cache(*target, path_), ValueError) << name << " " << value;
    EXPECT_EQ(target->get_seq_length(), 3);
    EXPECT_EQ(target->allocated_bytes(), bytes);
    feed_text(*target, {4});
  };
  const std::int64_t large = std::int64_t{1} << 40, largest = std::int64_t{1} << 50;
  for (const std::int64_t value : {large, largest}) {
    for (const LayerSpec& spec : {kWindow4, kChunk4, kBothSliding}) {
      for (const char* name : {"slots", "record", "held_first", "held_end", "seen"}) {
        refused(spec, name, value);
      }
    }
    for (const LayerSpec& spec : {kLinear, kBothSliding}) {
      for (const char* name : {"recorded_states", "convolution_0_taps", "recurrent_0_states"}) {
        refused(spec, name, value);
      }
    }
  }
  for (const LayerSpec& spec : {kLinear, kBothSliding}) {
    refused(spec, "record_states", largest);
    for (const std::int64_t value : {0, 1}) refused(spec, "recurrent_0_states", value);
  }
  refused(kWindow4, "held_first", 0);
}

TEST(StaticRecording, MakesRoomForWhatMaxCacheLenCanNeed) {
  for (const std::int64_t bound : {std::int64_t{100}, std::int64_t{1} << 40, kMost}) {
    for (const LayerSpec& spec : {kWindow4, kChunk4}) {
      StaticCache cache({spec}, {.max_cache_len = 16}), unbounded({spec}, {.max_cache_len = 16});
      cache.activate_past_recording(bound);
      unbounded.activate_past_recording();
      for (StaticCache* each : {&cache, &unbounded}) feed(*each, 16);
      EXPECT_EQ(slots(cache), 17);
      EXPECT_EQ(slots(cache), slots(unbounded));
      EXPECT_TRUE(cache.can_crop(16));
    }
  }
  StaticCache slack = sliding(30, 16);
  slack.activate_past_recording(kMost);
  feed(slack, 40);
  EXPECT_EQ(slots(slack), 34);
  EXPECT_TRUE(slack.can_crop(30));
}

TEST(Recording, HugeBoundsAreNone) {
  for (const std::int64_t bound : {std::int64_t{1} << 41, std::int64_t{1} << 62, kMost}) {
    const auto memory = std::make_shared<FailingMemory>();
    DynamicCache cache({kWindow4, kChunk4, kLinear, kBothSliding}, {.memory = memory});
    cache.activate_past_recording(bound);
    cache.reserve(64);
    const Numbers text{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    feed_text(cache, text);
    for (int i = 0; i < 20; ++i) feed_text(cache, {i});
    EXPECT_LE(memory->live_bytes(), 1 << 15);
    EXPECT_TRUE(cache.can_crop(29));
    cache.crop(-20);
    const Numbers right = testing::outputs_of({kWindow4, kChunk4, kLinear, kBothSliding},
                                              {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    EXPECT_EQ(feed_text(cache, {11}), (Numbers{right.back()}));
  }
  for (const std::int64_t bound : {std::int64_t{0}, std::int64_t{-1}, -kMost}) {
    EXPECT_THROW(DynamicCache({kWindow4}).activate_past_recording(bound), ValueError);
  }
}

TEST(Recording, HugeWindowsReserveWhatWasAsked) {
  DynamicCache cache({{.type = std::string(kSlidingAttention), .window = kMost}});
  cache.reserve(100);
  feed(cache, 3);
  EXPECT_EQ(cache.allocated_bytes(), 100 * 2 * 4);
}

// Joining reads: the sources keep their buffers and the room that was reserved.
TEST(Concatenate, LeavesItsSourcesAlone) {
  const auto memory = std::make_shared<FailingMemory>();
  DynamicCache a({LayerSpec{}}, {.memory = memory}), b({LayerSpec{}});
  for (DynamicCache* cache : {&a, &b}) {
    cache->reserve(100);
    feed(*cache, 3);
  }
  const void* before = buffers(a)[0].keys.const_data_ptr();
  a.concatenate({&b});
  const std::int64_t allocations = memory->allocations();
  const at::Tensor next = counting(3, 1, {1, 1, 1});
  EXPECT_EQ(a.append(next, next, 0).segments.size(), 1U);
  EXPECT_EQ(memory->allocations(), allocations);
  EXPECT_EQ(buffers(a)[0].keys.const_data_ptr(), before);
  EXPECT_EQ(a.allocated_bytes(), 100 * 2 * 4);
}

TEST_F(StaticRoom, JoiningAndLoadingCopyNothingToResetIt) {
  const auto memory = std::make_shared<FailingMemory>();
  StaticCache a({LayerSpec{}}, {.max_cache_len = 1000, .memory = memory}),
      b({LayerSpec{}}, {.max_cache_len = 1000});
  for (StaticCache* cache : {&a, &b}) feed(*cache, 3);
  const std::int64_t own = a.allocated_bytes();
  const std::unique_ptr<Cache> both = a.concatenate({&b});
  EXPECT_EQ(memory->peak_bytes(), own + both->allocated_bytes());
  EXPECT_EQ(both->allocated_bytes(), 2 * own);
}

TEST(EncoderDecoderRows, OfTheEncoderAloneChangeToo) {
  const auto filled = [](std::int64_t rows) {
    EncoderDecoderCache cache(DynamicCache({LayerSpec{}}), DynamicCache({LayerSpec{}}));
    const at::Tensor keys = counting(0, 4, {rows, 1, 1});
    cache.cross_attention_cache().update(keys, keys, 0);
    EXPECT_EQ(cache.batch_size(), rows);
    return cache;
  };
  const auto rows = [](EncoderDecoderCache& cache) {
    const at::Tensor keys = stored(cache.cross_attention_cache())[0].keys;
    Numbers result;
    for (std::int64_t row = 0; row < keys.size(0); ++row) {
      result.push_back(numbers(keys, row)[0] / testing::kRowStep);
    }
    EXPECT_EQ(std::int64_t(result.size()), cache.batch_size());
    return result;
  };
  EncoderDecoderCache repeated = filled(2);
  repeated.batch_repeat_interleave(3);
  EXPECT_EQ(rows(repeated), (Numbers{0, 0, 0, 1, 1, 1}));
  EXPECT_THROW(repeated.batch_repeat_interleave(0), ValueError);
  repeated.reorder_cache(at::arange(5, -1, -1, at::kLong));
  EXPECT_EQ(rows(repeated), (Numbers{1, 1, 1, 0, 0, 0}));
  repeated.batch_select_indices(at::arange(2, 4, at::kLong));
  EXPECT_EQ(rows(repeated), (Numbers{1, 0}));
  EXPECT_THROW(repeated.expand(3), RuntimeError);
  EncoderDecoderCache one = filled(1);
  one.expand(3);
  EXPECT_EQ(rows(one), (Numbers{0, 0, 0}));
}

}  // namespace
}  // namespace kvcache
