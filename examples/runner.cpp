// Caches of a fixed size that serve one call after the other: runner CHECKPOINT_FOLDER.
#include <ATen/ops/arange.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <memory>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: runner CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  kvcache::Runner runner(*model);

  // Room for 24 tokens, which the first calls need not have; a longer text gets a larger cache.
  const kvcache::GenerationConfig config{
      .max_new_tokens = 6, .cache_implementation = "static", .max_cache_len = 24};
  std::weak_ptr<kvcache::Cache> last;
  for (const int64_t tokens : {4, 11, 19, 20, 7}) {
    const auto prompt = at::arange(tokens, at::kLong).unsqueeze(0);
    const auto output = runner.generate({.input_ids = prompt}, config);
    std::cout << tokens << " tokens of prompt, " << output.cache->allocated_bytes()
              << " bytes: " << (last.lock() == output.cache ? "the same cache" : "a new cache")
              << '\n';
    last = output.cache;
  }  // here the cache goes back to the runner

  // Whoever holds an answer holds its cache.
  const auto prompt = at::arange(8, at::kLong).unsqueeze(0);
  const auto held = runner.generate({.input_ids = prompt}, config);
  const auto other = runner.generate({.input_ids = prompt.flip(1)}, config);
  std::cout << (held.cache == other.cache ? "one cache" : "two caches") << " for two answers\n";
  const auto more = kvcache::generate(*model, {.input_ids = held.sequences}, {.max_new_tokens = 2},
                                      held.cache.get());
  std::cout << more.timings.prefill_tokens << " token computed to go on with the first\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
