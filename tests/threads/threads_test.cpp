// One model, eight threads, a cache each: what they compute is what they compute one after another.
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
  return names;
}

// A text of its own for each thread, longer than the checkpoints' windows.
at::Tensor text_of(std::size_t thread, std::int64_t vocab_size) {
  return at::remainder(at::arange(9 + std::int64_t(thread)) * 7 + std::int64_t(thread), vocab_size)
      .unsqueeze(0);
}

// All that a thread does with its cache: a turn of greedy text, a rollback, a fork of the batch, a
// turn of sampled text.
std::vector<at::Tensor> work(const CausalLM& model, std::size_t thread) {
  DynamicCache cache(model.config());
  cache.activate_past_recording();
  const at::Tensor text = text_of(thread, model.config().vocab_size);
  const auto logits = model.forward({.input_ids = text}, &cache);
  cache.crop(-3);
  const auto again = model.forward({.input_ids = text.narrow(1, text.size(1) - 3, 3)}, &cache);
  cache.crop(-1);

  GenerationConfig greedy;
  greedy.max_new_tokens = 6;
  greedy.eos_token_id = std::vector<std::int64_t>{};
  Runner runner(model);
  const Output first = runner.generate({.input_ids = text}, greedy, &cache);

  cache.batch_repeat_interleave(2);
  GenerationConfig sampling = greedy;
  sampling.do_sample = true;
  const Output second = runner.generate(
      {.input_ids = first.sequences.repeat({2, 1}), .generator = make_generator(thread)}, sampling,
      &cache);
  return {logits, again, first.sequences, second.sequences};
}

class Threads : public ::testing::TestWithParam<std::string> {};

TEST_P(Threads, ShareAModel) {
  const CausalLM& model = checkpoint(GetParam());
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
