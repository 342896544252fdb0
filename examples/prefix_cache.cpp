// Prefixes, computed once, for several requests: prefix_cache CHECKPOINT_FOLDER.
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <initializer_list>
#include <iostream>
#include <vector>

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

  // Rows that go on from it, in one forward pass.
  const auto rows = prefix.fork();
  rows->expand(3);
  model->forward({.input_ids = at::tensor({35L, 9L, 32L}, at::kLong).unsqueeze(1)}, rows.get());
  std::cout << prefix.nbytes() << " bytes of prefix, " << rows->nbytes() << " with the tokens of "
            << rows->batch_size() << " rows\n";

  // Many of them, found by their tokens.
  kvcache::PrefixStore store(/*max_bytes=*/64 << 20);
  store.insert(prefix);
  const std::vector<int64_t> wanted{3, 14, 15, 9, 2, 6, 5, 20, 21};
  if (const auto match = store.find(wanted)) {
    const auto text = at::tensor(wanted, at::kLong).unsqueeze(0);
    kvcache::generate(*model, {.input_ids = text}, {.max_new_tokens = 5}, match->cache.get());
    std::cout << match->tokens << " of " << wanted.size() << " tokens found, "
              << match->cache->get_seq_length() << " held in the end\n";
  }
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
