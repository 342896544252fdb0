// Prefixes that requests share: the longest match, what can be used of it, eviction, threads.
#include "kvcache/cache/prefix_store.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kAmple = std::int64_t{1} << 30;

// One layer that holds a text; a window of 0 is none.
DynamicCache holding(const Ids& ids, std::int64_t window = 0, std::int64_t rows = 1) {
  LayerSpec spec;
  if (window > 0) spec = {.type = std::string(kSlidingAttention), .window = window};
  DynamicCache cache(std::vector<LayerSpec>{spec});
  const auto tokens = static_cast<std::int64_t>(ids.size());
  Step step = cache.begin_step(
      {.tokens = tokens, .batch = rows, .ids = ids_tensor({ids}).repeat({rows, 1})});
  const at::Tensor states = at::ones({rows, 1, tokens, 2});
  step.append(0, states, states);
  step.commit();
  return cache;
}

std::int64_t found(PrefixStore& store, const Ids& ids) {
  const auto match = store.find(ids);
  if (!match) return 0;
  EXPECT_EQ(match->cache->get_seq_length(), match->tokens);
  const at::Tensor begins = ids_tensor({ids}).narrow(1, 0, match->tokens);
  EXPECT_TRUE(match->cache->history().ids().equal(begins));
  return match->tokens;
}

TEST(PrefixStore, TheLongestMatchIsForked) {
  PrefixStore store(kAmple);
  for (const Ids& ids : {Ids{1, 2}, Ids{1, 2, 3, 4, 5}, Ids{1, 2, 9}, Ids{7}}) {
    DynamicCache cache = holding(ids);
    EXPECT_TRUE(store.insert(cache));
  }
  EXPECT_EQ(store.size(), 4);
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5, 6}), 5);
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5}), 4);  // the last token's scores are to be computed
  EXPECT_EQ(found(store, {1, 2, 3, 8}), 3);
  EXPECT_EQ(found(store, {1, 2, 9, 8}), 3);
  EXPECT_EQ(found(store, {1, 8}), 1);
  EXPECT_EQ(found(store, {7}), 0);
  EXPECT_EQ(found(store, {8, 1, 2}), 0);
  EXPECT_EQ(found(store, {}), 0);
}

TEST(PrefixStore, WhatCannotBeCroppedIsNotUsed) {
  PrefixStore store(kAmple);
  DynamicCache shorter = holding({1, 2, 3}, 2), longer = holding({1, 2, 3, 4, 5, 6}, 2);
  store.insert(shorter);
  store.insert(longer);
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5, 9}), 3);  // the longer one's window has moved on
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5, 6, 7}), 6);
  EXPECT_EQ(found(store, {1, 2, 9}), 0);
}

TEST(PrefixStore, EntriesUsedLeastRecentlyGo) {
  DynamicCache a = holding({1, 1, 1}), b = holding({2, 2, 2}), c = holding({3, 3, 3});
  const std::int64_t bytes = a.fork()->allocated_bytes();
  PrefixStore store(2 * bytes);
  store.insert(a);
  store.insert(b);
  EXPECT_EQ(store.nbytes(), 2 * bytes);
  EXPECT_EQ(found(store, {1, 1, 1, 5}), 3);
  store.insert(c);  // b goes
  EXPECT_EQ(store.size(), 2);
  EXPECT_EQ(found(store, {2, 2, 2, 5}), 0);
  EXPECT_EQ(found(store, {1, 1, 1, 5}), 3);
  store.insert(c);  // there already: used now
  store.insert(b);  // a goes
  EXPECT_EQ(found(store, {1, 1, 1, 5}), 0);
  EXPECT_EQ(found(store, {3, 3, 3, 5}), 3);

  DynamicCache large = holding(Ids(4096, 4));
  EXPECT_FALSE(store.insert(large));
  EXPECT_EQ(store.size(), 2);
  store.clear();
  EXPECT_EQ(store.size(), 0);
  EXPECT_EQ(store.nbytes(), 0);
  EXPECT_EQ(found(store, {3, 3, 3, 5}), 0);
}

TEST(PrefixStore, RandomTextsAgreeWithATable) {
  std::mt19937 random(5);
  const std::int64_t bytes = holding({1}).fork()->allocated_bytes();
  for (int round = 0; round < 20; ++round) {
    PrefixStore store(bytes * 6);
    std::vector<Ids> table;  // the one used last first
    const auto use = [&](const Ids& ids) {
      std::erase(table, ids);
      table.insert(table.begin(), ids);
    };
    for (int turn = 0; turn < 60; ++turn) {
      Ids ids(1 + random() % 6);
      for (auto& id : ids) id = static_cast<std::int64_t>(random() % 2);
      if (random() % 2 == 0) {
        DynamicCache cache = holding(ids);
        ASSERT_TRUE(store.insert(cache));
        use(ids);
        while (store.size() < table.size()) table.pop_back();
        ASSERT_EQ(store.size(), table.size());
        continue;
      }
      std::size_t longest = 0;
      for (const Ids& held : table) {
        const auto end = std::mismatch(held.begin(), held.end(), ids.begin(), ids.end() - 1).first;
        longest = std::max(longest, static_cast<std::size_t>(end - held.begin()));
      }
      const auto match = store.find(ids);
      ASSERT_EQ(match ? match->tokens : 0, static_cast<std::int64_t>(longest));
      if (!match) continue;
      // Which of several it was is told by what goes next: any that has as much in common.
      table.clear();
      store.clear();
    }
  }
}

TEST(PrefixStore, AMatchGoesOnToTheSameText) {
  const GenerationConfig config{.max_new_tokens = 6};
  for (const char* name : {"llama", "mistral", "gemma3_text", "lfm2", "mamba2", "phi3_longrope"}) {
    const CausalLM& model = checkpoint(name);
    PrefixStore store(kAmple);
    DynamicCache prefix(model.config());
    model.forward({.input_ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 12}})}, &prefix);
    store.insert(prefix);
    for (const Ids& ids : {Ids{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, Ids{5, 6, 7, 30, 31}}) {
      const Inputs inputs{.input_ids = ids_tensor({ids})};
      const at::Tensor expected = generate(model, inputs, config).sequences;
      auto match = store.find(ids);
      const at::Tensor made =
          generate(model, inputs, config, match ? match->cache.get() : nullptr).sequences;
      EXPECT_TRUE(made.equal(expected)) << name;
    }
  }
}

TEST(PrefixStore, SeveralThreadsShareIt) {
  const CausalLM& model = checkpoint("llama");
  const GenerationConfig config{.max_new_tokens = 4};
  PrefixStore store(kAmple);
  std::vector<at::Tensor> expected, made(4);
  std::vector<Inputs> inputs;
  for (std::int64_t i = 0; i < 4; ++i) {
    inputs.push_back({.input_ids = ids_tensor({{5, 6, 7, 8, 20 + i, 30}})});
    expected.push_back(generate(model, inputs.back(), config).sequences);
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 8; ++round) {
        const at::Tensor row = inputs[i].input_ids.select(0, 0).contiguous();
        const std::span ids(row.const_data_ptr<std::int64_t>(), std::size_t(row.numel()));
        auto match = store.find(ids);
        if (!match) match = PrefixMatch{std::make_unique<DynamicCache>(model.config()), 0};
        made[i] = generate(model, inputs[i], config, match->cache.get()).sequences;
        store.insert(*match->cache);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(made[i].equal(expected[i]));
  EXPECT_EQ(store.size(), 4);
}

// Runs on a thread of its own, whose stack is small.
void on_small_stack(const std::function<void()>& work) {
  pthread_attr_t attributes{};
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{160} * 1024), 0);
  pthread_t thread{};
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  void* argument = const_cast<std::function<void()>*>(&work);
  ASSERT_EQ(pthread_create(&thread, &attributes, run, argument), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// As a server makes it that keeps every turn of every step.
TEST(PrefixStore, EveryBeginningOfALongText) {
  constexpr std::int64_t kTokens = 2500;
  std::optional<PrefixStore> store(std::in_place, INT64_MAX);
  const auto fill = [&] {
    LayerSpec spec{.type = std::string(kSlidingAttention), .window = 2};
    DynamicCache cache(std::vector<LayerSpec>{spec});
    const at::Tensor states = at::ones({1, 1, 1, 1});
    for (std::int64_t i = 0; i < kTokens; ++i) {
      Step step =
          cache.begin_step({.tokens = 1, .batch = 1, .ids = at::full({1, 1}, i % 7, at::kLong)});
      step.append(0, states, states);
      step.commit();
      if (i >= 3) store->insert(cache);
    }
    EXPECT_EQ(store->size(), kTokens - 3);
  };
  fill();
  on_small_stack([&] {
    EXPECT_EQ(found(*store, {0, 1, 9}), 0);  // which each of them is asked for
    store->clear();
  });
  EXPECT_EQ(store->size(), 0);
  fill();
  on_small_stack([&] { store.reset(); });
}

TEST(PrefixStore, RefusesWhatIsNoPrefix) {
  PrefixStore store(kAmple);
  const auto refused = [&](Cache& cache) {
    return refusal<ValueError>([&] { store.insert(cache); });
  };
  DynamicCache empty(std::vector<LayerSpec>{LayerSpec{}}), two = holding({1, 2}, 0, 2);
  EXPECT_THAT(refused(empty), HasSubstr("0 rows and 0 tokens"));
  EXPECT_THAT(refused(two), HasSubstr("2 rows"));
  DynamicCache unknown;
  unknown.update(at::ones({1, 1, 3, 2}), at::ones({1, 1, 3, 2}), 0);
  EXPECT_THAT(refusal<RuntimeError>([&] { store.insert(unknown); }), HasSubstr("not known"));
  EncoderDecoderCache pair{DynamicCache(), DynamicCache()};
  EXPECT_THAT(refused(pair), HasSubstr("decoder's text alone"));
  EXPECT_EQ(store.size(), 0);
  EXPECT_THAT(refusal<ValueError>([] { PrefixStore(-1); }), HasSubstr("-1 bytes"));
}

}  // namespace
}  // namespace kvcache
