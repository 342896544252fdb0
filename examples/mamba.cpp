// A model without attention: its cache does not grow with the text. mamba CHECKPOINT_FOLDER
#include <ATen/ops/arange.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: mamba CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  for (const int64_t tokens : {4, 16, 40}) {
    kvcache::MambaCache cache(model->config());
    const auto prompt = at::arange(tokens, at::kLong).unsqueeze(0);
    kvcache::generate(*model, {.input_ids = prompt}, {.max_new_tokens = 4}, &cache);
    std::cout << cache.get_seq_length() << " tokens in " << cache.nbytes() << " bytes\n";
  }

  // States are folded into each other, so that going back needs those of before: up to 4 tokens
  // here.
  kvcache::MambaCache cache(model->config());
  cache.activate_past_recording(4);
  model->forward({.input_ids = at::arange(12, at::kLong).unsqueeze(0)}, &cache);
  cache.crop(-3);
  std::cout << cache.get_seq_length() << " tokens after crop(-3)\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
