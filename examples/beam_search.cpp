// The best texts of all that several beams go through: beam_search CHECKPOINT_FOLDER.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: beam_search CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  const kvcache::Inputs inputs{
      .input_ids = at::tensor({5L, 6L, 7L, 8L, 9L, 10L, 11L}, at::kLong).unsqueeze(0)};
  const kvcache::GenerationConfig config{.max_new_tokens = 8,
                                         .num_beams = 5,
                                         .early_stopping = kvcache::EarlyStopping::yes,
                                         .length_penalty = 1.0,
                                         .num_return_sequences = 3,
                                         .eos_token_id = {{2}}};
  kvcache::DynamicCache cache(model->config());
  const auto output = kvcache::generate(*model, inputs, config, &cache);
  for (int64_t row = 0; row < output.sequences.size(0); ++row) {
    std::cout << (*output.sequences_scores)[row].item<float>() << ':';
    const auto made = output.sequences[row].narrow(0, 7, output.sequences.size(1) - 7);
    for (int64_t i = 0; i < made.numel(); ++i) std::cout << ' ' << made[i].item<int64_t>();
    std::cout << '\n';
  }
  std::cout << "held: " << cache.batch_size() << " rows of " << cache.get_seq_length()
            << " tokens\n";

  // The cache holds the texts that were returned. The best one goes on alone.
  cache.batch_select_indices(at::tensor({0L}, at::kLong));
  const auto more = kvcache::generate(*model, {.input_ids = output.sequences.narrow(0, 0, 1)},
                                      {.max_new_tokens = 4}, &cache);
  std::cout << more.timings.prefill_tokens << " token computed to go on\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
