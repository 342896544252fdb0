// Memory that ends: the next config that needs less is tried.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: resilient CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  const auto prompt = at::tensor({5L, 8L, 9L, 10L}, at::kLong).repeat({8, 1});

  // As it is best, and what to fall back to. The first asks for more than any machine has.
  const kvcache::GenerationConfig config{.max_new_tokens = 6};
  const auto roomy =
      kvcache::GenerationConfig{.cache_implementation = "static", .max_cache_len = 1LL << 40}.over(
          config);
  const auto pieces = kvcache::GenerationConfig{.prefill_chunk_size = 2}.over(config);
  const auto made =
      kvcache::resilient_generate(*model, {.input_ids = prompt}, {roomy, config, pieces});

  for (const auto& attempt : made.attempts) {
    std::cout << attempt.cache << ": " << (attempt.error.empty() ? "made the text" : attempt.error)
              << '\n';
  }
  std::cout << made.attempts.back().planned_bytes.value_or(0) << " bytes planned, "
            << made.output.cache->allocated_bytes() << " taken\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
