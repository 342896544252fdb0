// A cache of a fixed size, used again and again: static_cache CHECKPOINT_FOLDER.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: static_cache CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  kvcache::StaticCache cache(model->config(), {.max_cache_len = 32});

  for (const int64_t first : {5, 6, 7}) {
    const auto prompt = at::tensor({first, 8L, 9L, 10L}, at::kLong).unsqueeze(0);
    cache.reset();  // the buffers stay where they are
    kvcache::generate(*model, {.input_ids = prompt}, {.max_new_tokens = 6}, &cache);
    std::cout << cache.get_seq_length() << " tokens in " << cache.allocated_bytes() << " bytes\n";
  }

  // Too long a text is refused before anything is written.
  const auto prompt = at::tensor({5L, 8L}, at::kLong).unsqueeze(0);
  try {
    kvcache::generate(*model, {.input_ids = prompt}, {.max_new_tokens = 40}, &cache);
  } catch (const kvcache::ValueError& error) {
    std::cout << "refused: " << error.what() << '\n';
  }

  // Or by name, for a cache that generate() makes.
  const auto output = kvcache::generate(*model, {.input_ids = prompt},
                                        {.max_new_tokens = 6, .cache_implementation = "static"});
  std::cout << "made: " << output.cache->kind() << '\n';
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
