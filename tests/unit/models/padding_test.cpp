// Padding that layers could not leave out of what new tokens see is refused by a forward pass, and
// the cache is then as it was.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/models/registry.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<CausalLM> model_named(const std::string& name) {
  const std::filesystem::path folder = KVCACHE_TEST_DATA_DIR "/parity/checkpoints/" + name;
  return std::filesystem::exists(folder) ? load_model(folder) : tiny_model(name);
}

at::Tensor last(const at::Tensor& logits) { return logits.select(1, -1); }

const at::Tensor kIds = ids_tensor({{5, 6, 7, 8, 9}, {10, 11, 7, 8, 12}});
const at::Tensor kNext = ids_tensor({{20}, {21}});

class Padding : public ::testing::TestWithParam<const char*> {
 protected:
  bool full() const { return GetParam() == std::string("full"); }

  std::unique_ptr<CausalLM> model_ = model_named(GetParam());
  DynamicCache cache_{model_->config()};

  // The next step under a mask of all columns is refused with `part`, and then goes on without it.
  void expect_refused(const at::Tensor& mask, const std::string& part) {
    const at::Tensor right = model_->forward({.input_ids = kNext}, cache_.clone().get());
    EXPECT_THAT(refusal<ValueError>([&] {
                  model_->forward({.input_ids = kNext, .attention_mask = mask}, &cache_);
                }),
                HasSubstr(part));
    EXPECT_EQ(cache_.get_seq_length(), kIds.size(1));
    EXPECT_TRUE(model_->forward({.input_ids = kNext}, cache_.clone().get()).equal(right));
  }
};

TEST_P(Padding, ThePastStaysAsItWasComputed) {
  const at::Tensor real = ids_tensor({{1, 1, 1, 1, 1}, {0, 0, 1, 1, 1}});
  model_->forward({.input_ids = kIds, .attention_mask = real}, &cache_);
  expect_refused(ids_tensor({{1, 1, 1, 1, 1, 1}, {0, 1, 1, 1, 1, 1}}),
                 "calls column 1 of row 1 a token, but it was fed as padding");
  expect_refused(ids_tensor({{0, 1, 1, 1, 1, 1}, {0, 0, 1, 1, 1, 1}}),
                 "calls column 0 of row 0 padding, but it was fed as a token");
  const at::Tensor same = ids_tensor({{1, 1, 1, 1, 1, 1}, {0, 0, 1, 1, 1, 1}});
  EXPECT_TRUE(model_->forward({.input_ids = kNext, .attention_mask = same}, cache_.clone().get())
                  .equal(model_->forward({.input_ids = kNext}, cache_.clone().get())));
}

// As after a loop that fed a row that had ended.
TEST_P(Padding, ARowsLastTokensMayBecomePaddingUnderFullLayersAlone) {
  model_->forward({.input_ids = kIds}, &cache_);
  const at::Tensor mask = ids_tensor({{1, 1, 1, 0, 0, 1}, {1, 1, 1, 1, 1, 1}});
  if (!full()) return expect_refused(mask, "column 3 of row 0 padding");
  const at::Tensor logits = model_->forward({.input_ids = kNext, .attention_mask = mask}, &cache_);
  const at::Tensor alone =
      at::cat({kIds.narrow(0, 0, 1).narrow(1, 0, 3), kNext.narrow(0, 0, 1)}, 1);
  EXPECT_CLOSE(last(logits)[0], last(model_->forward({.input_ids = alone}))[0], 1e-4);
}

TEST_P(Padding, BetweenTokensIsLeftOutOrRefused) {
  const at::Tensor ids = at::cat({kIds, kNext}, 1).narrow(0, 0, 1);
  const at::Tensor gap = ids_tensor({{1, 1, 1, 0, 0, 1}});
  const ForwardInput whole{.input_ids = ids, .attention_mask = gap};
  const ForwardInput padded{.input_ids = kIds.narrow(0, 0, 1),
                            .attention_mask = gap.narrow(1, 0, 5)};
  const ForwardInput next{.input_ids = kNext.narrow(0, 0, 1)};
  model_->forward(padded, &cache_);  // padding behind a row's tokens harms nobody yet
  if (full()) {
    const at::Tensor alone = ids.index_select(1, at::tensor({0, 1, 2, 5}));
    const at::Tensor right = last(model_->forward({.input_ids = alone}));
    EXPECT_CLOSE(last(model_->forward(whole)), right, 1e-4);
    EXPECT_CLOSE(last(model_->forward(next, &cache_)), right, 1e-4);
    return;
  }
  for (Cache* cache : {static_cast<Cache*>(nullptr), static_cast<Cache*>(&cache_)}) {
    EXPECT_THAT(
        refusal<ValueError>([&] { model_->forward(cache == nullptr ? whole : next, cache); }),
        AllOf(HasSubstr("row 0 has padding at column 3"), HasSubstr("padded on the left")));
  }
  EXPECT_EQ(cache_.get_seq_length(), 5);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Padding,
                         ::testing::Values("full", "sliding", "chunked", "mixed", "mamba", "jamba",
                                           "lfm2", "qwen3_next", "gemma3_text"),
                         [](const auto& suite) { return suite.param; });

// Tokens that were taken in without their ids have no known past to hold a mask against.
TEST(PaddingOfUnknownPasts, IsTheCallers) {
  const auto model = tiny_model("full");
  DynamicCache cache(model->config());
  const at::Tensor states = at::ones({1, 2, 3, 8});
  for (std::int64_t layer = 0; layer < 3; ++layer) cache.update(states, states, layer);
  EXPECT_NO_THROW(model->forward(
      {.input_ids = ids_tensor({{5}}), .attention_mask = ids_tensor({{0, 1, 1, 1}})}, &cache));
}

}  // namespace
}  // namespace kvcache::testing
