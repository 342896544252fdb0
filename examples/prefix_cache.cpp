// One prefix, computed once, for several requests: prefix_cache CHECKPOINT_FOLDER.
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <initializer_list>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: prefix_cache CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  const auto ids = [](std::initializer_list<int64_t> row) {
    return at::tensor(row, at::kLong).unsqueeze(0);
  };

  kvcache::DynamicCache prefix(model->config());
  const auto system_prompt = ids({3, 14, 15, 9, 2, 6, 5});
  model->forward({.input_ids = system_prompt, .logits_to_keep = 1}, &prefix);

  for (const auto& request : {ids({35, 8}), ids({9, 7, 9}), ids({32})}) {
    const auto cache = prefix.fork();  // shares the prefix's keys and values, copies nothing
    const auto text = at::cat({system_prompt, request}, 1);
    const auto output =
        kvcache::generate(*model, {.input_ids = text}, {.max_new_tokens = 5}, cache.get());
    std::cout << output.timings.prefill_tokens << " of " << text.size(1) << " tokens computed, "
              << output.sequences.size(1) - text.size(1) << " made\n";
  }
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
