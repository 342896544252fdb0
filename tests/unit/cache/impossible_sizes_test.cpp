// Buffers that no machine has the memory for.

#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::counting;
using testing::feed;
using ::testing::HasSubstr;
using testing::numbers;
using testing::refusal;
using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kMany = std::int64_t{1} << 40;  // tokens; the most that can be asked for

const LayerSpec kFull{};
const LayerSpec kSliding{.type = std::string(kSlidingAttention), .window = 4};

// 512 bytes a token: kMany of them are 2^49.
at::Tensor wide(std::int64_t first, std::int64_t tokens) {
  return counting(first, tokens, {1, 8, 16});
}

const auto kRefused = [](const auto& call) { return refusal<c10::OutOfMemoryError>(call); };

const auto kToldOf = [](const std::string& shape) {
  return AllOf(HasSubstr("more than 281474976710656 bytes"), HasSubstr("shape " + shape),
               HasSubstr("float32 on cpu"), HasSubstr("fewer rows or tokens"));
};

TEST(ImpossibleSizes, ReservedBehindTokens) {
  DynamicCache cache({kFull, kSliding, kFull});
  for (const std::int64_t layer : {0, 1, 2}) cache.update(wide(0, 3), wide(0, 3), layer);
  const std::int64_t held = cache.nbytes(), allocated = cache.allocated_bytes();
  EXPECT_THAT(kRefused([&] { cache.reserve(kMany); }), kToldOf("[1, 8, 1099511627776, 16]"));
  EXPECT_EQ(cache.nbytes(), held);
  EXPECT_EQ(cache.allocated_bytes(), allocated);
  for (const std::int64_t layer : {0, 1, 2}) {
    EXPECT_EQ(numbers(cache.update(wide(3, 1), wide(3, 1), layer).keys), Numbers({0, 1, 2, 3}));
  }
}

// The reservation holds until reset(), and so does the refusal.
TEST(ImpossibleSizes, ReservedBeforeTheFirstToken) {
  for (const std::vector<LayerSpec>& layers : {std::vector<LayerSpec>{}, {kFull}}) {
    DynamicCache cache(layers);
    cache.reserve(kMany);
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(kRefused([&] { cache.update(wide(0, 2), wide(0, 2), 0); }),
                  AllOf(kToldOf("[1, 8, 1099511627776, 16]"), HasSubstr("reset()")));
      EXPECT_EQ(cache.get_seq_length(), 0);
      EXPECT_EQ(cache.batch_size(), 0);
      EXPECT_EQ(cache.history().seen(), 0);
      EXPECT_EQ(cache.allocated_bytes(), 0);
    }
    cache.reset();
    feed(cache, 2);  // also of another shape
    EXPECT_EQ(feed(cache, 1), Numbers({0, 1, 2}));
  }
}

TEST(ImpossibleSizes, InTheMiddleOfAStep) {
  DynamicCache cache({kFull, kFull});
  cache.reserve(kMany / 256);  // little for narrow keys
  {
    Step step = cache.begin_step({.tokens = 2, .batch = 1});
    const at::Tensor one = at::ones({1}).expand({1, 1024, 2, 256});
    EXPECT_THAT(kRefused([&] { step.append(0, one, one); }), kToldOf("[1, 1024, 4294967296, 256]"));
  }
  cache.reset();
  Step step = cache.begin_step({.tokens = 2, .batch = 1});
  for (const std::int64_t layer : {0, 1}) step.append(layer, wide(0, 2), wide(0, 2));
  step.commit();
  EXPECT_EQ(cache.get_seq_length(1), 2);
}

TEST(ImpossibleSizes, OfStaticCaches) {
  StaticCache full({kFull, kFull}, {.max_cache_len = kMany});
  StaticCache ring({kSliding, kFull}, {.max_cache_len = kMany, .record_slack = kMany});
  const EarlyInitialization shapes{.kv_heads = {8}, .key_dims = {16}, .value_dims = {16}};
  for (StaticCache* cache : {&full, &ring}) {
    const std::string shape =
        cache == &full ? "[1, 8, 1099511627776, 16]" : "[1, 8, 1099511627780, 16]";
    EXPECT_THAT(kRefused([&] { cache->update(wide(0, 1), wide(0, 1), 0); }),
                AllOf(kToldOf(shape), HasSubstr("max_cache_len")));
    {
      Step step = cache->begin_step({.tokens = 1, .batch = 1});
      EXPECT_THAT(kRefused([&] { step.append(0, wide(0, 1), wide(0, 1)); }), kToldOf(shape));
    }
    EXPECT_THAT(kRefused([&] { cache->early_initialization(shapes); }), kToldOf(shape));
    EXPECT_EQ(cache->get_seq_length(), 0);
    EXPECT_EQ(cache->batch_size(), 0);
    EXPECT_EQ(cache->allocated_bytes(), 0);
    EXPECT_EQ(cache->get_mask_sizes(1, 1).first, kMany);
  }
}

// More bytes than an int64 can count.
TEST(ImpossibleSizes, ThatOverflow) {
  StaticCache fixed({kFull}, {.max_cache_len = kMany});
  DynamicCache growing({kFull});
  growing.reserve(kMany);
  const at::Tensor one = at::ones({1}).expand({1, 1 << 12, 1, 1 << 12});
  for (Cache* cache : {static_cast<Cache*>(&fixed), static_cast<Cache*>(&growing)}) {
    EXPECT_THAT(kRefused([&] { cache->update(one, one, 0); }),
                kToldOf("[1, 4096, 1099511627776, 4096]"));
    EXPECT_EQ(cache->get_seq_length(), 0);
    EXPECT_EQ(cache->allocated_bytes(), 0);
  }
  for (const std::vector<std::int64_t>& shape :
       {Numbers{kMany, kMany}, Numbers{1 << 30, 1 << 30, 16}, Numbers{INT64_MAX}}) {
    EXPECT_THAT(
        kRefused([&] { TorchMemory().allocate(shape, {.dtype = at::kFloat, .device = at::kCPU}); }),
        kToldOf(c10::str(at::IntArrayRef(shape))));
  }
}

// Refuses as LibTorch's own allocator does.
class NoMemory final : public c10::Allocator {
 public:
  NoMemory() : former_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~NoMemory() override { c10::SetCPUAllocator(former_); }

  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(false, "can't allocate memory: ", bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    former_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* former_;
};

TEST(ImpossibleSizes, ThatTheAllocatorRefuses) {
  DynamicCache cache({kFull});
  for (const std::int64_t first : {0, 8}) cache.update(wide(first, 8), wide(first, 8), 0);  // full
  const at::Tensor next = wide(16, 1);
  {
    const NoMemory none;
    EXPECT_THAT(kRefused([&] { cache.update(next, next, 0); }),
                AllOf(HasSubstr("17408 bytes"), HasSubstr("shape [1, 8, 34, 16]"),
                      HasSubstr("float32 on cpu"), HasSubstr("fewer rows or tokens"),
                      HasSubstr("(can't allocate memory: 17408)")));
  }
  EXPECT_EQ(cache.get_seq_length(), 16);
  EXPECT_EQ(numbers(cache.update(next, next, 0).keys).back(), 16);
}

// Other errors stay what they are.
TEST(ImpossibleSizes, AreNotWhatAMissingDeviceIs) {
  EXPECT_THROW(TorchMemory().allocate({1}, {.dtype = at::kFloat, .device = at::kXLA}),
               c10::NotImplementedError);
}

}  // namespace
}  // namespace kvcache
