// Older keys and values in few bits: quantized CHECKPOINT_FOLDER.
#include <ATen/ops/arange.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <memory>
#include <vector>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: quantized CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  const auto prompt = at::arange(1, 41).unsqueeze(0);

  const std::vector<kvcache::QuantizedCacheConfig> configs = {
      {.backend = "quanto", .nbits = 4, .residual_length = 8},
      {.backend = "quanto", .nbits = 2, .axis_key = -1, .q_group_size = 8, .residual_length = 8},
      {.backend = "hqq", .nbits = 3, .axis_key = 1, .axis_value = 1, .residual_length = 8},
      {.backend = "fp8"},
      // Beyond Transformers: see docs/quantization.md.
      {.axis_key = -1,
       .q_group_size = 8,
       .residual_length = 0,
       .key_nbits = 2,
       .rotate_keys = true,
       .pinned_tokens = 4,
       .first_dense_layers = 1}};
  for (const auto& config : configs) {
    kvcache::QuantizedCache cache(model->config(), {.config = config});
    kvcache::generate(*model, {.input_ids = prompt}, {.max_new_tokens = 6}, &cache);
    std::cout << config.backend << ": " << cache.get_seq_length() << " tokens in " << cache.nbytes()
              << " bytes\n";
    cache.crop(-20);  // also into what is packed
    std::unique_ptr<kvcache::Cache> fork = cache.fork();
    std::cout << "cropped to " << fork->get_seq_length() << '\n';
  }

  // Or by name, for a cache that generate() makes.
  const auto output = kvcache::generate(
      *model, {.input_ids = prompt},
      {.max_new_tokens = 6,
       .cache_implementation = "quantized",
       .cache_config = R"({"backend": "hqq", "nbits": 4, "axis_key": 1, "axis_value": 1})"});
  std::cout << "made: " << output.cache->kind() << '\n';
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
