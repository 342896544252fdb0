// Linear and hybrid layers under what is done to a cache as a whole: forks, rows over one prefix,
// rows joined and split, marks, files. Each row goes on as it would alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting_states.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using testing::feed_rows;
using testing::feed_text;
using ::testing::HasSubstr;
using testing::kLinear;
using testing::kMixes;
using testing::Numbers;
using testing::outputs_of;
using testing::refusal;

const Numbers kPrefix{3, 1, 4, 1, 5, 9, 2, 6, 5};
const Numbers kShort{2, 7, 1, 8};
const std::vector<Numbers> kRest{{31, 41, 59}, {27, 18, 28}, {16, 18, 3}};

LayeredCache& layered(const std::unique_ptr<Cache>& cache) {
  return static_cast<LayeredCache&>(*cache);
}

// What `rest` gives after `text`.
Numbers after(const std::vector<LayerSpec>& layers, Numbers text, const Numbers& rest) {
  const auto seen = static_cast<std::ptrdiff_t>(text.size());
  text.insert(text.end(), rest.begin(), rest.end());
  const Numbers outputs = outputs_of(layers, text);
  return {outputs.begin() + seen, outputs.end()};
}

TEST(LinearOperations, ForksGoOnApart) {
  for (const auto& layers : kMixes) {
    DynamicCache cache(layers);
    feed_text(cache, kPrefix);
    const std::unique_ptr<Cache> first = cache.fork(), second = cache.fork();
    EXPECT_EQ(feed_text(layered(first), kRest[0]), after(layers, kPrefix, kRest[0]));
    EXPECT_EQ(feed_text(cache, kRest[1]), after(layers, kPrefix, kRest[1]));
    cache.reset();
    EXPECT_EQ(feed_text(layered(second), kRest[2]), after(layers, kPrefix, kRest[2]));
  }
}

TEST(LinearOperations, RowsOverOnePrefix) {
  for (const auto& layers : kMixes) {
    DynamicCache cache(layers);
    feed_text(cache, kPrefix);
    cache.expand(3);
    const std::vector<Numbers> outputs = feed_rows(cache, kRest);
    for (std::size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(outputs[row], after(layers, kPrefix, kRest[row]));
    }
  }
}

// Kinds of caches whose rows are joined, of room for the texts here.
using MakeCache = std::unique_ptr<LayeredCache> (*)(const std::vector<LayerSpec>&);

template <std::int64_t kSlack>
std::unique_ptr<LayeredCache> make_static(const std::vector<LayerSpec>& layers) {
  return std::make_unique<StaticCache>(
      layers, StaticCacheOptions{.max_cache_len = 16, .record_slack = kSlack});
}

const std::vector<MakeCache> kMakers{
    [](const std::vector<LayerSpec>& layers) -> std::unique_ptr<LayeredCache> {
      return std::make_unique<DynamicCache>(layers);
    },
    make_static<0>, make_static<3>};

void expect_joined_rows_go_on(const std::vector<LayerSpec>& layers, MakeCache make,
                              bool recording) {
  const auto a = make(layers), b = make(layers);
  if (recording) {
    a->activate_past_recording();
    b->activate_past_recording();
  }
  feed_text(*a, kPrefix);
  feed_text(*b, kShort);
  if (recording) {
    EXPECT_THAT(refusal<ValueError>([&] { a->concatenate({b.get()}); }), HasSubstr("crop(0)"));
  }
  a->crop(0);
  b->crop(0);
  const std::unique_ptr<Cache> joined = a->concatenate({b.get()});
  EXPECT_EQ(
      feed_rows(layered(joined), {kRest[0], kRest[1]}),
      std::vector<Numbers>({after(layers, kPrefix, kRest[0]), after(layers, kShort, kRest[1])}));
  const auto parts = joined->batch_split(1);
  Numbers text = kShort;
  text.insert(text.end(), kRest[1].begin(), kRest[1].end());
  EXPECT_EQ(feed_text(layered(parts[1]), kRest[2]), after(layers, text, kRest[2]));
}

TEST(LinearOperations, JoinedRowsGoOnAsAlone) {
  for (const auto& layers : kMixes) {
    for (const MakeCache make : kMakers) {
      for (const bool recording : {false, true}) {
        expect_joined_rows_go_on(layers, make, recording);
      }
    }
  }
}

TEST(LinearOperations, MarksAreGoneBackTo) {
  for (const auto& layers : kMixes) {
    DynamicCache cache(layers);
    feed_text(cache, kPrefix);
    const Snapshot mark = cache.snapshot();
    for (const Numbers& rest : kRest) {
      EXPECT_EQ(feed_text(cache, rest), after(layers, kPrefix, rest));
      cache.restore(mark);
    }
  }
}

// Recorded states and their bound are saved with the rest.
TEST(LinearOperations, LoadedCachesGoOn) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / c10::str("kvcache_linear_", ::getpid());
  for (const auto& layers : kMixes) {
    for (const std::int64_t recorded : {0, 3}) {
      DynamicCache source(layers), loaded(layers);
      if (recorded > 0) source.activate_past_recording(recorded);
      feed_text(source, kPrefix);
      feed_text(loaded, kShort);
      save_cache(source, path);
      load_cache(loaded, path, {.dtype = at::kFloat});
      EXPECT_EQ(loaded.nbytes(), source.nbytes());
      EXPECT_EQ(loaded.can_crop(recorded), source.can_crop(recorded));
      EXPECT_FALSE(loaded.can_crop(recorded + 1));
      loaded.crop(-recorded);
      const Numbers kept(kPrefix.begin(), kPrefix.end() - recorded);
      EXPECT_EQ(feed_text(loaded, kRest[0]), after(layers, kept, kRest[0]));
    }
  }
  MambaCache source({kLinear}), loaded({kLinear});
  feed_text(source, kPrefix);
  save_cache(source, path);
  load_cache(loaded, path);
  EXPECT_EQ(feed_text(loaded, kRest[0]), after({kLinear}, kPrefix, kRest[0]));
  DynamicCache dynamic({kLinear});
  EXPECT_THAT(refusal<ValueError>([&] { load_cache(dynamic, path); }), HasSubstr("kind 'mamba'"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvcache
