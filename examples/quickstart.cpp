// The program of the README: loads a checkpoint and answers a prompt through a cache of its own.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <span>

int main(int argc, char** argv) try {
  if (argc != 3) return std::cerr << "usage: quickstart CHECKPOINT_FOLDER PROMPT\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  const auto tokenizer = kvcache::Tokenizer::from_folder(argv[1]);

  auto config = kvcache::GenerationConfig::from_pretrained(argv[1]);
  config.max_new_tokens = 40;
  config.do_sample = false;

  kvcache::DynamicCache cache(model->config());
  const auto ids = at::tensor(tokenizer.encode(argv[2]), at::kLong).unsqueeze(0);
  const auto output = kvcache::generate(*model, {.input_ids = ids}, config, &cache);

  const auto row = output.sequences[0].contiguous();
  const std::span ids_and_answer(row.data_ptr<int64_t>(), size_t(row.numel()));
  std::cout << tokenizer.decode(ids_and_answer, {.skip_special_tokens = true}) << '\n'
            << cache.get_seq_length() << " tokens in " << cache.nbytes() << " bytes of cache\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
