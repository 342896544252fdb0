// One model, eight threads, a cache each, of every kind: what they compute is what they compute one
// after another.
// Built with ThreadSanitizer (the preset tsan), it also shows that they touch nothing in common.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"

namespace kvcache::testing {
namespace {

constexpr std::size_t kThreads = 8;

std::vector<std::string> checkpoint_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(KVCACHE_TEST_DATA_DIR "/parity/checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  names.emplace_back("t5");
  return names;
}

// Threads take turns at the kinds of caches that there are for the model, so that each kind runs
// beside itself and beside the others.
std::unique_ptr<Cache> new_cache(const LanguageModel& model, std::size_t thread) {
  const std::vector<LayerSpec> layers = model.config().layer_specs();
  const StaticCacheOptions fixed{.max_cache_len = 40};  // a thread's text has up to 28 tokens
  if (model.is_encoder_decoder()) {
    if (thread % 2 == 0) return std::make_unique<EncoderDecoderCache>(model.config());
    return std::make_unique<EncoderDecoderCache>(
        StaticCache(layers, fixed), StaticCache(cross_attention_layers(layers), fixed));
  }
  const bool only_states = std::all_of(layers.begin(), layers.end(), [](const LayerSpec& layer) {
    return layer.type == kLinearAttention;
  });
  switch (thread % (only_states ? 3 : 2)) {
    case 0:
      return std::make_unique<DynamicCache>(layers);
    case 1:
      return std::make_unique<StaticCache>(layers, fixed);
    default:
      return std::make_unique<MambaCache>(layers);
  }
}

// Generates after `ids`, which a model's encoder reads, too.
Inputs inputs_of(const LanguageModel& model, const at::Tensor& ids) {
  Inputs inputs{.input_ids = ids};
  if (model.is_encoder_decoder()) inputs.decoder_input_ids = ids;
  return inputs;
}

// A text of its own for each thread, longer than the checkpoints' windows.
at::Tensor text_of(std::size_t thread, std::int64_t vocab_size) {
  return at::remainder(at::arange(9 + std::int64_t(thread)) * 7 + std::int64_t(thread), vocab_size)
      .unsqueeze(0);
}

// All that a thread does with its cache: a turn of greedy text, a rollback, a fork of the batch, a
// turn of sampled text.
std::vector<at::Tensor> work(const LanguageModel& model, std::size_t thread) {
  const std::unique_ptr<Cache> cache = new_cache(model, thread);
  cache->activate_past_recording();
  const at::Tensor text = text_of(thread, model.config().vocab_size);
  ForwardInput input{.input_ids = text};
  if (model.is_encoder_decoder()) input.encoder = EncoderInput{text};
  const auto logits = model.forward(input, cache.get());
  cache->crop(-3);
  const auto again = model.forward({.input_ids = text.narrow(1, text.size(1) - 3, 3)}, cache.get());
  cache->crop(-1);

  GenerationConfig greedy;
  greedy.max_new_tokens = 6;
  greedy.eos_token_id = std::vector<std::int64_t>{};
  Runner runner(model);
  const Output first = runner.generate(inputs_of(model, text), greedy, cache.get());

  cache->batch_repeat_interleave(2);
  GenerationConfig sampling = greedy;
  sampling.do_sample = true;
  Inputs both = inputs_of(model, first.sequences.repeat({2, 1}));
  both.generator = make_generator(thread);
  const Output second = runner.generate(both, sampling, cache.get());
  return {logits, again, first.sequences, second.sequences};
}

class Threads : public ::testing::TestWithParam<std::string> {};

TEST_P(Threads, ShareAModel) {
  const LanguageModel& model = checkpoint_of_either_sort(GetParam());
  std::vector<std::vector<at::Tensor>> expected, found(kThreads);
  for (std::size_t i = 0; i < kThreads; ++i) expected.push_back(work(model, i));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { found[i] = work(model, i); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kThreads; ++i) {
    ASSERT_EQ(found[i].size(), expected[i].size());
    for (std::size_t k = 0; k < found[i].size(); ++k) {
      EXPECT_TRUE(found[i][k].equal(expected[i][k])) << "thread " << i << ", result " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Threads, ::testing::ValuesIn(checkpoint_names()),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace kvcache::testing
