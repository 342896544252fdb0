// CausalLM::forward: what it refuses, what a refusal leaves, and the faults that users met.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/models/causal_lm.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;

const at::Tensor kPrompt = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}});
const at::Tensor kShort = ids_tensor({{12, 13, 14}});
// kPrompt and kShort, left padded.
const at::Tensor kBatch =
    ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {0, 0, 0, 0, 0, 0, 12, 13, 14}});
const at::Tensor kBatchMask =
    ids_tensor({{1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 1, 1, 1}});

at::Tensor last(const at::Tensor& logits) { return logits.select(1, -1); }

// A growing cache and one of a fixed size, empty.
std::vector<std::unique_ptr<Cache>> both_caches(const CausalLM& model, std::int64_t capacity) {
  std::vector<std::unique_ptr<Cache>> caches;
  caches.push_back(std::make_unique<DynamicCache>(model.config()));
  caches.push_back(
      std::make_unique<StaticCache>(model.config(), StaticCacheOptions{.max_cache_len = capacity}));
  return caches;
}

std::string refused(const CausalLM& model, const ForwardInput& input, Cache* cache = nullptr) {
  return refusal<ValueError>([&] { model.forward(input, cache); });
}

TEST(Forward, LogitsOfTheLastPositionsOnly) {
  const auto model = tiny_model("full");
  const at::Tensor all = model->forward({.input_ids = kPrompt});
  EXPECT_EQ(all.sizes(), (std::vector<std::int64_t>{1, 9, 64}));
  const at::Tensor two = model->forward({.input_ids = kPrompt, .logits_to_keep = 2});
  EXPECT_CLOSE(two, all.narrow(1, 7, 2), 1e-5);
  EXPECT_EQ(model->forward({.input_ids = kPrompt, .logits_to_keep = 50}).size(1), 9);
  EXPECT_THAT(refused(*model, {.input_ids = kPrompt, .logits_to_keep = -1}), HasSubstr("-1"));
}

TEST(Forward, TheLogitsMayBeWrittenTo) {
  const auto model = tiny_model("full");
  const at::Tensor logits = model->forward({.input_ids = kPrompt});
  EXPECT_FALSE(logits.requires_grad());
  EXPECT_NO_THROW(logits.fill_(0));
}

TEST(Forward, TakesInt32Ids) {
  const auto model = tiny_model("full");
  EXPECT_TRUE(model->forward({.input_ids = kPrompt.to(at::kInt)})
                  .equal(model->forward({.input_ids = kPrompt})));
}

TEST(Forward, F50_EmptyIdsAreRefusedClearly) {
  const auto model = tiny_model("full");
  DynamicCache cache(model->config());
  EXPECT_THAT(refused(*model, {.input_ids = at::empty({1, 0}, at::kLong)}), HasSubstr("empty"));
  EXPECT_THAT(refused(*model, {.input_ids = at::empty({0, 3}, at::kLong)}, &cache),
              HasSubstr("empty"));
  EXPECT_EQ(cache.get_seq_length(), 0);
}

TEST(Forward, RefusesWhatIsNoText) {
  const auto model = tiny_model("full");
  EXPECT_THAT(refused(*model, {.input_ids = ids_tensor({{3, 64}})}),
              HasSubstr("token id 64 in row 0, column 1 is outside the vocabulary of 64"));
  EXPECT_THAT(refused(*model, {.input_ids = ids_tensor({{-1}})}), HasSubstr("token id -1"));
  EXPECT_THAT(refused(*model, {.input_ids = kPrompt[0]}), HasSubstr("[batch, tokens]"));
  EXPECT_THAT(refused(*model, {.input_ids = kPrompt.to(at::kFloat)}), HasSubstr("integer"));
  EXPECT_THAT(refused(*model, {}), HasSubstr("undefined"));
  EXPECT_THAT(
      refused(*model, {.input_ids = kPrompt, .attention_mask = at::ones({1, 8}, at::kLong)}),
      HasSubstr("[1, 9]"));
  EXPECT_THAT(refused(*model, {.input_ids = kPrompt, .attention_mask = at::ones({1, 9})}),
              HasSubstr("integers or booleans"));
  EXPECT_THAT(
      refused(*model, {.input_ids = kPrompt, .attention_mask = at::full({1, 9}, 2, at::kLong)}),
      HasSubstr("0 for padding"));
}

TEST(Forward, ARefusalLeavesTheCacheAsItWas) {
  const auto model = tiny_model("mixed");
  DynamicCache cache(model->config()), control(model->config());
  model->forward({.input_ids = kPrompt}, &cache);
  model->forward({.input_ids = kPrompt}, &control);
  refused(*model, {.input_ids = ids_tensor({{3, 64}})}, &cache);
  refused(*model, {.input_ids = kBatch}, &cache);
  refused(*model, {.input_ids = kShort, .attention_mask = at::ones({1, 5}, at::kLong)}, &cache);
  EXPECT_EQ(cache.get_seq_length(), 9);
  EXPECT_TRUE(model->forward({.input_ids = kShort}, &cache)
                  .equal(model->forward({.input_ids = kShort}, &control)));
}

// A model that fails after its second layer took its keys.
class FailingModel final : public CausalLM {
 public:
  FailingModel() : CausalLM(tiny_config("full"), at::kFloat, at::kCPU) {}

 protected:
  at::Tensor hidden_states(const at::Tensor& ids, ForwardContext& context) const override {
    const at::Tensor states = at::ones({ids.size(0), 2, ids.size(1), 8});
    context.attend(0, states, {states, states});
    context.attend(1, states, {states, states});
    throw std::bad_alloc();
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }
};

TEST(Forward, AFailureMidwayIsNoStep) {
  const auto model = tiny_model("full");
  DynamicCache cache(model->config());
  EXPECT_THROW(FailingModel().forward({.input_ids = kPrompt}, &cache), std::bad_alloc);
  EXPECT_EQ(cache.get_seq_length(0), 0);
  EXPECT_EQ(cache.batch_size(), 0);
  EXPECT_EQ(cache.history().seen(), 0);
  EXPECT_CLOSE(model->forward({.input_ids = kPrompt}, &cache),
               model->forward({.input_ids = kPrompt}), 1e-4);
}

// F05: rollback across the window's edge, for every total length and number of wrong tokens.
TEST(Forward, F05_RollbackAcrossTheWindowsEdge) {
  const auto model = tiny_model("sliding");
  for (const std::int64_t total : {2, 3, 4, 5, 6, 9}) {
    for (std::int64_t wrong = 1; wrong <= 3 && wrong < total; ++wrong) {
      const at::Tensor text = kPrompt.narrow(1, 0, total);
      DynamicCache cache(model->config());
      cache.activate_past_recording();
      model->forward({.input_ids = text.narrow(1, 0, total - wrong)}, &cache);
      cache.crop(0);
      model->forward({.input_ids = at::full({1, wrong}, 40, at::kLong)}, &cache);
      cache.crop(-wrong);
      const at::Tensor logits =
          model->forward({.input_ids = text.narrow(1, total - wrong, wrong)}, &cache);
      EXPECT_CLOSE(last(logits), last(model->forward({.input_ids = text})), 1e-4)
          << total << " tokens, " << wrong << " wrong";
    }
  }
}

constexpr int kNewTokens = 8;

// Greedy ids of kNewTokens tokens after a prompt, each from a run without a cache.
at::Tensor greedy_uncached(const CausalLM& model, at::Tensor ids) {
  for (int i = 0; i < kNewTokens; ++i) {
    ids = at::cat({ids, last(model.forward({.input_ids = ids})).argmax(-1, true)}, 1);
  }
  return ids;
}

struct PaddedPrompt {
  at::Tensor ids, mask;
};

// The same with an empty cache, the prompt in pieces.
at::Tensor greedy_cached(const CausalLM& model, Cache& cache, PaddedPrompt prompt,
                         std::int64_t piece) {
  const std::int64_t length = prompt.ids.size(1);
  at::Tensor logits, ids = prompt.ids;
  for (std::int64_t at = 0; at < length; at += piece) {
    const std::int64_t n = std::min(piece, length - at);
    logits = model.forward(
        {.input_ids = ids.narrow(1, at, n), .attention_mask = prompt.mask.narrow(1, 0, at + n)},
        &cache);
  }
  for (int i = 0; i < kNewTokens; ++i) {
    const at::Tensor next = last(logits).argmax(-1, true);
    ids = at::cat({ids, next}, 1);
    logits = model.forward({.input_ids = next}, &cache);
  }
  return ids;
}

TEST(Forward, F10_ChunkedAttentionAcrossChunks) {
  for (const std::string kind : {"chunked", "mixed"}) {
    const auto model = tiny_model(kind);
    const at::Tensor alone = greedy_uncached(*model, kPrompt);
    const at::Tensor other = greedy_uncached(*model, kShort);
    for (const std::int64_t piece : {1, 2, 3, 4, 5, 6, 9}) {
      for (const auto& cache : both_caches(*model, 20)) {
        SCOPED_TRACE(c10::str(kind, ", pieces of ", piece, ", ", cache->kind()));
        const PaddedPrompt solo{kPrompt, at::ones_like(kPrompt)};
        EXPECT_TRUE(greedy_cached(*model, *cache, solo, piece).equal(alone));
      }
      for (const auto& cache : both_caches(*model, 20)) {
        SCOPED_TRACE(c10::str(kind, ", pieces of ", piece, ", ", cache->kind(), ", padded"));
        const at::Tensor both = greedy_cached(*model, *cache, {kBatch, kBatchMask}, piece);
        EXPECT_TRUE(both.narrow(0, 0, 1).equal(alone));
        EXPECT_TRUE(both.narrow(0, 1, 1).narrow(1, 6, 3 + kNewTokens).equal(other));
      }
    }
  }
}

// F11: single tokens through a chunk that is larger than what the buffer grows by at first.
TEST(Forward, F11_NothingIsDroppedWithinAChunk) {
  // Logits of about 1: 1e-5 is a hundred float32 roundings of them.
  const ModelConfig config = tiny_config("chunked", 8);
  std::map<std::string, at::Tensor> weights = tiny_weights(config);
  weights.at("lm_head.weight").mul_(0.05);
  const auto model = tiny_model_of(config, weights);
  const at::Tensor ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8, 12, 13, 14}});
  const at::Tensor expected = model->forward({.input_ids = ids});
  EXPECT_GT(expected.std().item<double>(), 0.1);
  for (const auto& cache : both_caches(*model, 12)) {
    for (std::int64_t i = 0; i < 12; ++i) {
      EXPECT_CLOSE(model->forward({.input_ids = ids.narrow(1, i, 1)}, cache.get()),
                   expected.narrow(1, i, 1), 1e-5)
          << cache->kind() << ", position " << i;
    }
  }
}

TEST(Forward, F13_ASecondPrefillPieceSeesTheFirst) {
  const auto model = tiny_model("full");
  const at::Tensor ids = at::randint(0, 64, {1, 256}, at::kLong);
  DynamicCache cache(model->config());
  model->forward({.input_ids = ids.narrow(1, 0, 128)}, &cache);
  EXPECT_CLOSE(model->forward({.input_ids = ids.narrow(1, 128, 128)}, &cache),
               model->forward({.input_ids = ids}).narrow(1, 128, 128), 1e-4);
}

// Feed 5, go back to nothing, feed 3: as in a fresh cache.
TEST(Forward, F27_RewindToNothing) {
  for (const std::string kind : {"full", "sliding", "chunked", "mixed"}) {
    const auto model = tiny_model(kind);
    const at::Tensor expected = model->forward({.input_ids = kShort});
    for (const auto& cache : both_caches(*model, 8)) {
      cache->activate_past_recording();
      model->forward({.input_ids = kPrompt.narrow(1, 0, 5)}, cache.get());
      cache->crop(-5);
      EXPECT_EQ(cache->get_mask_sizes(3, 0).second, 0);
      EXPECT_CLOSE(model->forward({.input_ids = kShort}, cache.get()), expected, 1e-4)
          << kind << ", " << cache->kind();
      EXPECT_EQ(cache->get_seq_length(), 3);
    }
  }
}

TEST(Forward, F32_PositionsCountRealTokens) {
  const auto model = tiny_model("full");
  DynamicCache cache(model->config());
  {
    Step step = cache.begin_step({.tokens = 9, .batch = 2, .ids = kBatch, .valid = kBatchMask});
    EXPECT_TRUE(step.positions()[0].equal(at::arange(9)));
    EXPECT_TRUE(step.positions()[1].narrow(0, 6, 3).equal(at::arange(3)));
  }
  model->forward({.input_ids = kBatch, .attention_mask = kBatchMask}, &cache);
  const Step step = cache.begin_step({.tokens = 1, .batch = 2});
  EXPECT_TRUE(step.positions().equal(ids_tensor({{9}, {3}})));
}

TEST(Forward, F32_PaddedRowsEqualTheirSoloRuns) {
  for (const std::string kind : {"full", "sliding", "chunked", "mixed"}) {
    const auto model = tiny_model(kind);
    DynamicCache cache(model->config());
    at::Tensor logits = model->forward({.input_ids = kBatch, .attention_mask = kBatchMask}, &cache);
    EXPECT_CLOSE(last(logits)[0], last(model->forward({.input_ids = kPrompt}))[0], 1e-4) << kind;
    EXPECT_CLOSE(last(logits)[1], last(model->forward({.input_ids = kShort}))[0], 1e-4) << kind;
    logits = model->forward({.input_ids = ids_tensor({{20}, {20}})}, &cache);
    const auto solo = [&](const at::Tensor& ids) {
      return last(model->forward({.input_ids = at::cat({ids, ids_tensor({{20}})}, 1)}))[0];
    };
    EXPECT_CLOSE(last(logits)[0], solo(kPrompt), 1e-4) << kind;
    EXPECT_CLOSE(last(logits)[1], solo(kShort), 1e-4) << kind;
  }
}

TEST(Forward, F33_PaddingIsNotGuessedFromIds) {
  const auto model = tiny_model("full");
  const at::Tensor ids = ids_tensor({{5, 0, 7, 8}});  // 0 is the usual padding id
  EXPECT_TRUE(model->forward({.input_ids = ids})
                  .equal(model->forward(
                      {.input_ids = ids, .attention_mask = at::ones({1, 4}, at::kLong)})));
  EXPECT_GT(
      difference(
          last(model->forward({.input_ids = ids})),
          last(model->forward({.input_ids = ids, .attention_mask = ids_tensor({{1, 0, 1, 1}})}))),
      0.1);
}

TEST(Forward, F51_ThreadsShareAModel) {
  const auto model = tiny_model("mixed");
  // Greedy text after one of four prompts, in the one or the other kind of cache.
  const auto text = [&](std::size_t number) {
    const auto first = 7 * static_cast<std::int64_t>(number);
    const std::unique_ptr<Cache> cache = std::move(both_caches(*model, 40).at(number % 2));
    at::Tensor ids = at::remainder(at::arange(first, first + 9), 64).unsqueeze(0);
    at::Tensor result = ids;
    for (int i = 0; i < 24; ++i) {
      ids = last(model->forward({.input_ids = ids}, cache.get())).argmax(-1, true);
      result = at::cat({result, ids}, 1);
    }
    return result;
  };
  std::vector<at::Tensor> expected, found(4);
  for (std::size_t i = 0; i < 4; ++i) expected.push_back(text(i));
  for (int round = 0; round < 4; ++round) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] { found[i] = text(i); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(found[i].equal(expected[i])) << "thread " << i;
  }
}

}  // namespace
}  // namespace kvcache::testing
