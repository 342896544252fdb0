// Inputs on the CPU, a model on any device: what grows by a token in each step stays on the CPU.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3)
    return std::cerr << "usage: cpu_tensors CHECKPOINT_FOLDER [DEVICE]\n", 2;
  const at::Device device(argc == 3 ? argv[2] : "cpu");  // for example cuda:0
  const auto model = kvcache::load_model(argv[1], {.device = device});
  const auto ids = at::tensor({5L, 8L, 9L, 10L}, at::kLong).unsqueeze(0);

  // Of the ids, each step moves its new ones; of what comes back, the scores of one position.
  const auto output = kvcache::generate(*model, {.input_ids = ids}, {.max_new_tokens = 6});
  std::cout << "model on " << model->device() << ", text of " << output.sequences.size(1)
            << " tokens on " << output.sequences.device() << '\n';

  // Inputs on the device: so is the loop, and the text.
  const auto there =
      kvcache::generate(*model, {.input_ids = ids.to(device)}, {.max_new_tokens = 6});
  std::cout << "inputs on " << device << ", text on " << there.sequences.device() << ", "
            << (there.sequences.to(at::kCPU).equal(output.sequences) ? "the same" : "another")
            << '\n';
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
