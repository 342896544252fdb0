// Memory that a cache gives back once it no longer holds what needed it, and that it does not ask
// for again and again.

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/counting_states.h"
#include "tests/support/failing_memory.h"
#include "tests/support/stored.h"

namespace kvcache {
namespace {

using testing::counting;
using testing::FailingMemory;
using testing::feed;
using testing::feed_text;
using testing::kBoth;
using testing::kBothSliding;
using testing::kLinear;
using testing::numbers;
using testing::Numbers;
using testing::outputs_of;
using testing::stored;

const LayerSpec kSliding{.type = std::string(kSlidingAttention), .window = 4};
const LayerSpec kChunked{.type = std::string(kChunkedAttention), .window = 4};

constexpr std::int64_t kToken = 2 * 4;  // bytes of a key and a value

Numbers long_text(std::size_t length) {
  Numbers text;
  for (std::size_t i = 0; i < length; ++i) text.push_back(1 + std::int64_t(i % 13));
  return text;
}

// What `layers` say after `text`, of which `fed` tokens were fed: the cache goes on exactly.
void expect_goes_on(DynamicCache& cache, const std::vector<LayerSpec>& layers, Numbers text) {
  const auto fed = std::ptrdiff_t(text.size());
  text.insert(text.end(), {3, 1, 4, 1, 5});
  const Numbers right = outputs_of(layers, text);
  EXPECT_EQ(feed_text(cache, {3, 1, 4, 1, 5}), Numbers(right.begin() + fed, right.end()));
}

TEST(FreedMemory, CropOfNothingFreesWhatWasRecorded) {
  for (const LayerSpec& spec : {kSliding, kChunked}) {
    const auto memory = std::make_shared<FailingMemory>();
    DynamicCache cache({spec}, {.memory = memory});
    cache.activate_past_recording();
    for (int i = 0; i < 4000; ++i) feed(cache, 1);
    EXPECT_GE(cache.allocated_bytes(), 4000 * kToken);
    cache.crop(0);
    EXPECT_EQ(cache.nbytes(), 3 * kToken);
    EXPECT_EQ(cache.allocated_bytes(), 16 * kToken);
    EXPECT_EQ(memory->live_bytes(), 16 * kToken);
    EXPECT_EQ(feed(cache, 1), (Numbers{3997, 3998, 3999, 4000}));
    cache.crop(-1);
    EXPECT_EQ(feed(cache, 1), (Numbers{3997, 3998, 3999, 4000}));
  }
}

TEST(FreedMemory, ALowerRecordingBoundFreesWhatLiesBeyond) {
  for (const LayerSpec& spec : {kSliding, kChunked}) {
    DynamicCache cache({spec});
    cache.activate_past_recording();
    for (int i = 0; i < 4000; ++i) feed(cache, 1);
    cache.activate_past_recording(2);
    for (int i = 0; i < 2; ++i) feed(cache, 1);
    EXPECT_LE(cache.allocated_bytes(), 16 * kToken);
    EXPECT_TRUE(cache.can_crop(2));
    EXPECT_FALSE(cache.can_crop(3));
    EXPECT_EQ(numbers(stored(cache)[0].keys), (Numbers{3997, 3998, 3999, 4000, 4001}));
  }
}

TEST(FreedMemory, StatesToo) {
  for (const auto& layers : std::vector<std::vector<LayerSpec>>{
           {kLinear}, {kBothSliding}, {kBoth, kLinear}, {kBothSliding, kSliding}}) {
    const Numbers text = long_text(200);
    DynamicCache plain(layers), cache(layers);
    for (const std::int64_t token : text) feed_text(plain, {token});
    cache.activate_past_recording(64);
    for (const std::int64_t token : text) feed_text(cache, {token});
    EXPECT_GT(cache.allocated_bytes(), plain.allocated_bytes());
    cache.crop(0);
    EXPECT_LE(cache.allocated_bytes(), plain.allocated_bytes());
    EXPECT_EQ(cache.nbytes(), plain.nbytes());
    expect_goes_on(cache, layers, text);
  }
}

TEST(FreedMemory, SixteenRecordedStatesAreFreed) {
  DynamicCache cache({kLinear});
  for (int i = 0; i < 40; ++i) feed_text(cache, {i});
  const std::int64_t before = cache.allocated_bytes();
  cache.activate_past_recording();
  for (int i = 0; i < 40; ++i) feed_text(cache, {i});
  EXPECT_GT(cache.allocated_bytes(), 4 * before);
  cache.crop(0);
  EXPECT_LE(cache.allocated_bytes(), before);
}

TEST(FreedMemory, AStaticHybridFreesItsStatesAndKeepsItsBuffers) {
  StaticCache cache({kBothSliding}, {.max_cache_len = 64, .record_slack = 8});
  cache.activate_past_recording(8);
  feed_text(cache, long_text(30));
  const std::int64_t before = cache.allocated_bytes();
  const void* keys = testing::buffers(cache)[0].keys.const_data_ptr();
  cache.crop(0);
  EXPECT_LT(cache.allocated_bytes(), before);
  EXPECT_EQ(testing::buffers(cache)[0].keys.const_data_ptr(), keys);
  EXPECT_EQ(testing::buffers(cache)[0].keys.size(2), 4 + 8);
}

// The parts of a fork keep a buffer alive that no one else reads any more.
TEST(FreedMemory, AlsoWhereItWasForked) {
  const auto memory = std::make_shared<FailingMemory>();
  DynamicCache cache({kSliding}, {.memory = memory});
  cache.activate_past_recording();
  for (int i = 0; i < 4000; ++i) feed(cache, 1);
  cache.fork().reset();
  cache.crop(0);
  EXPECT_LE(memory->live_bytes(), 16 * kToken);
  EXPECT_EQ(feed(cache, 1), (Numbers{3997, 3998, 3999, 4000}));
}

TEST(FreedMemory, WithoutMemoryForLessAllStays) {
  for (const auto& layers : std::vector<std::vector<LayerSpec>>{
           {kLinear}, {kSliding, kChunked}, {kBothSliding, kBoth}}) {
    const auto memory = std::make_shared<FailingMemory>();
    const Numbers text = long_text(200);
    DynamicCache cache(layers, {.memory = memory});
    cache.activate_past_recording(64);
    for (const std::int64_t token : text) feed_text(cache, {token});
    for (std::int64_t allowed = 0; allowed < 4; ++allowed) {
      const std::int64_t before = memory->live_bytes();
      memory->fail_after(allowed);
      EXPECT_NO_THROW(cache.crop(0));
      EXPECT_LE(memory->live_bytes(), before);
    }
    memory->fail_after(std::nullopt);
    expect_goes_on(cache, layers, text);
  }
}

// Speculative decoding takes tokens back over and over.
TEST(FreedMemory, RoundsOfStepsAndCropsAskForNoMore) {
  for (const auto& layers : std::vector<std::vector<LayerSpec>>{
           {kLinear}, {kSliding}, {kChunked}, {kBothSliding, kBoth}}) {
    const auto memory = std::make_shared<FailingMemory>();
    DynamicCache cache(layers, {.memory = memory});
    cache.reserve(1000);
    cache.activate_past_recording(6);
    const auto rounds = [&] {
      for (int i = 0; i < 40; ++i) {
        feed_text(cache, {1, 2, 3, 4, 5, 6});
        cache.crop(-3);
      }
    };
    rounds();
    const std::int64_t allocations = memory->allocations();
    rounds();
    // Convolutions and recurrences move their few states; attention asks for nothing.
    if (!has_states(layers[0])) {
      EXPECT_EQ(memory->allocations(), allocations);
    } else {
      EXPECT_LE(memory->allocations() - allocations, allocations);
    }
  }
}

TEST(FreedMemory, DecodingAfterwardsAsksForNoMore) {
  const auto memory = std::make_shared<FailingMemory>();
  DynamicCache cache({kSliding, kChunked}, {.memory = memory});
  cache.activate_past_recording();
  for (int i = 0; i < 1000; ++i) {
    for (const std::int64_t layer : {0, 1}) feed(cache, 1, layer);
  }
  cache.activate_past_recording(2);
  const auto decode = [&] {
    for (int i = 0; i < 100; ++i) {
      for (const std::int64_t layer : {0, 1}) feed(cache, 1, layer);
    }
  };
  decode();
  const std::int64_t before = memory->allocations();
  decode();
  cache.crop(0);
  cache.crop(0);
  decode();
  EXPECT_EQ(memory->allocations(), before);
}

TEST(FreedMemory, ReservedRoomStays) {
  DynamicCache cache({LayerSpec{}});
  cache.reserve(1000);
  feed(cache, 900);
  cache.crop(-890);
  cache.crop(0);
  feed(cache, 1);
  EXPECT_EQ(cache.allocated_bytes(), 1000 * kToken);
}

}  // namespace
}  // namespace kvcache
