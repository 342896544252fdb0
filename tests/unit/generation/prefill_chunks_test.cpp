// prefill_chunk_size: a prompt in pieces gives what it gives in one.
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache {
namespace {

using ::testing::ElementsAre;
using testing::ids_tensor;

// A model that notes how many tokens each forward pass takes.
class Watched final : public LanguageModel {
 public:
  explicit Watched(const LanguageModel& model)
      : LanguageModel(model.config(), model.dtype(), model.device()), model_(model) {}

  bool needs_whole_text(const ForwardInput& input, Cache& cache) const override {
    return model_.needs_whole_text(input, cache);
  }

  mutable std::vector<std::int64_t> tokens;

 protected:
  at::Tensor run(const ForwardInput& input, Cache* cache) const override {
    tokens.push_back(input.input_ids.size(1));
    return model_.forward(input, cache);
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }

 private:
  const LanguageModel& model_;
};

const at::Tensor kRows =
    ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {0, 0, 0, 0, 0, 0, 12, 13, 14}});
const at::Tensor kMask = ids_tensor({{1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 1, 1, 1}});

Inputs padded_batch() { return {.input_ids = kRows, .attention_mask = kMask}; }

GenerationConfig config(std::int64_t new_tokens) {
  return {.max_new_tokens = new_tokens, .pad_token_id = 0, .output_logits = true};
}

GenerationConfig in_pieces(std::int64_t new_tokens, std::int64_t most) {
  GenerationConfig made = config(new_tokens);
  made.prefill_chunk_size = most;
  return made;
}

void expect_equal(const Output& made, const Output& whole) {
  EXPECT_TRUE(made.sequences.equal(whole.sequences)) << made.sequences << whole.sequences;
  EXPECT_CLOSE(*made.logits, *whole.logits, 1e-4);
  EXPECT_EQ(made.timings.prefill_tokens, whole.timings.prefill_tokens);
}

// A model and a kind of cache.
class PrefillChunks : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(PrefillChunks, GiveWhatOnePieceGives) {
  const auto& [name, kind] = GetParam();
  const CausalLM& model = testing::checkpoint(name);
  GenerationConfig whole = config(8);
  whole.cache_implementation = kind;
  const Output expected = generate(model, padded_batch(), whole);
  for (const std::int64_t most : {1, 2, 3, 4, 5, 8, 9, 100}) {
    SCOPED_TRACE(most);
    GenerationConfig pieces = in_pieces(8, most);
    pieces.cache_implementation = kind;
    const Output made = generate(model, padded_batch(), pieces);
    expect_equal(made, expected);
    EXPECT_EQ(made.cache->get_seq_length(), 16);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PrefillChunks,
                         ::testing::Combine(::testing::Values("llama", "mistral", "qwen3_sliding",
                                                              "gemma3_text", "llama4_text", "lfm2",
                                                              "jamba", "mamba", "mamba2",
                                                              "qwen3_next"),
                                            ::testing::Values("dynamic", "static")),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" +
                                  std::get<1>(tested.param);
                         });

TEST(PrefillInPieces, HoldAtMostSoManyTokens) {
  const Watched model(testing::checkpoint("llama"));
  generate(model, padded_batch(), in_pieces(2, 4));
  EXPECT_THAT(model.tokens, ElementsAre(4, 4, 1, 1));
  model.tokens.clear();
  generate(model, padded_batch(), in_pieces(2, 9));
  EXPECT_THAT(model.tokens, ElementsAre(9, 1));
}

TEST(PrefillInPieces, BeginBehindWhatTheCacheHolds) {
  const CausalLM& inner = testing::checkpoint("llama");
  const Watched model(inner);
  const Output expected = generate(inner, padded_batch(), config(4));
  DynamicCache cache(inner.config());
  inner.forward({.input_ids = kRows.narrow(1, 0, 3), .attention_mask = kMask.narrow(1, 0, 3)},
                &cache);
  const Output made = generate(model, padded_batch(), in_pieces(4, 4), &cache);
  EXPECT_TRUE(made.sequences.equal(expected.sequences));
  EXPECT_CLOSE(*made.logits, *expected.logits, 1e-4);
  EXPECT_THAT(model.tokens, ElementsAre(4, 2, 1, 1, 1));
}

// Declared, or by a mask of the full length, which says what the past is.
TEST(PrefillInPieces, OfAContinuation) {
  const CausalLM& model = testing::checkpoint("mistral");
  const Output expected = generate(model, padded_batch(), config(4));
  const auto filled = [&] {
    DynamicCache cache(model.config());
    model.forward({.input_ids = kRows.narrow(1, 0, 2), .attention_mask = kMask.narrow(1, 0, 2)},
                  &cache);
    return cache;
  };
  const at::Tensor rest = kRows.narrow(1, 2, 7);
  for (const at::Tensor& mask : {kMask, kMask.narrow(1, 2, 7)}) {
    DynamicCache cache = filled();
    const Inputs inputs{.input_ids = rest, .attention_mask = mask, .continuation = true};
    const Output made = generate(model, inputs, in_pieces(4, 3), &cache);
    EXPECT_TRUE(made.sequences.equal(expected.sequences.narrow(1, 2, 11)));
    EXPECT_CLOSE(*made.logits, *expected.logits, 1e-4);
    EXPECT_EQ(cache.get_seq_length(), 12);
  }
}

TEST(PrefillInPieces, RunTheEncoderOnce) {
  const LanguageModel& model = testing::seq2seq_checkpoint("t5");
  const Inputs inputs{.input_ids = kRows.narrow(0, 0, 1),
                      .decoder_input_ids = ids_tensor({{0, 21, 7, 9, 3, 4}})};
  const Output expected = generate(model, inputs, config(5));
  for (const std::int64_t most : {1, 2, 5}) {
    expect_equal(generate(model, inputs, in_pieces(5, most)), expected);
  }
}

// Rope whose frequencies change behind 8 tokens: keys of the first pieces would no longer fit.
TEST(PrefillInPieces, GiveWayWhereOnlyTheWholeTextIsExact) {
  for (const char* type : {"dynamic", "longrope"}) {
    ModelConfig shape = testing::tiny_config("full");
    shape.rope = {.type = type,
                  .factor = 4,
                  .original_max_position_embeddings = 8,
                  .short_factor = {1, 1, 1, 1},
                  .long_factor = {1.5, 2, 4, 8}};
    const auto inner = testing::tiny_model_of(shape, testing::tiny_weights(shape));
    const Watched model(*inner);
    const Inputs inputs{.input_ids = kRows.narrow(0, 0, 1)};
    const Output expected = generate(*inner, inputs, config(3));
    expect_equal(generate(model, inputs, in_pieces(3, 4)), expected);
    EXPECT_THAT(std::vector(model.tokens.begin(), model.tokens.begin() + 3), ElementsAre(4, 4, 9));
    expect_equal(generate(model, inputs, in_pieces(3, 5)), expected);
  }
}

// Counts the bytes that tensors on the CPU take while it lives.
class PeakBytes final : public c10::Allocator {
 public:
  PeakBytes() : base_(c10::GetCPUAllocator()) {
    live_ = peak_ = 0;
    c10::SetCPUAllocator(this, kPriority);
  }
  ~PeakBytes() override { c10::SetCPUAllocator(base_, kPriority); }

  std::int64_t peak() const { return peak_; }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = base_->allocate(bytes);
    void* pointer = data.get();
    live_ += static_cast<std::int64_t>(bytes);
    peak_ = std::max(peak_.load(), live_.load());
    auto* block = new Block{std::move(data), static_cast<std::int64_t>(bytes)};
    return {pointer, block, &release, c10::kCPU};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr std::uint8_t kPriority = 200;

  struct Block {
    c10::DataPtr data;
    std::int64_t bytes;
  };

  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    live_ -= block->bytes;
  }

  c10::Allocator* base_;
  // Outlive it, as a tensor may.
  static inline std::atomic<std::int64_t> live_ = 0;
  static inline std::atomic<std::int64_t> peak_ = 0;
};

TEST(PrefillInPieces, TakeLessMemory) {
  ModelConfig shape = testing::tiny_config("sliding");
  shape.max_position_embeddings = 2048;
  const auto model = testing::tiny_model_of(shape, testing::tiny_weights(shape));
  const Inputs inputs{.input_ids = at::arange(1024).remainder(64).unsqueeze(0)};
  const auto peak = [&](std::optional<std::int64_t> most) {
    GenerationConfig asked{.max_new_tokens = 1, .prefill_chunk_size = most};
    const PeakBytes bytes;
    generate(*model, inputs, asked);
    return bytes.peak();
  };
  const std::int64_t whole = peak(std::nullopt), pieces = peak(32);
  EXPECT_LT(pieces * 4, whole) << pieces << " of " << whole;
}

}  // namespace
}  // namespace kvcache
