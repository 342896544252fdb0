// Several tokens a forward pass, the same text: assisted CHECKPOINT_FOLDER
// [DRAFT_CHECKPOINT_FOLDER].
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) {
    return std::cerr << "usage: assisted CHECKPOINT_FOLDER [DRAFT_CHECKPOINT_FOLDER]\n", 2;
  }
  const auto model = kvcache::load_model(argv[1]);
  const auto draft = kvcache::load_model(argv[argc - 1]);
  const kvcache::Inputs inputs{
      .input_ids = at::tensor({5L, 6L, 7L, 5L, 6L, 7L, 5L, 6L}, at::kLong).unsqueeze(0)};
  const auto plain = kvcache::generate(*model, inputs, {.max_new_tokens = 16});

  // Drafts from the text itself: what followed its last tokens when they came before.
  const auto lookup =
      kvcache::generate(*model, inputs, {.max_new_tokens = 16, .prompt_lookup_num_tokens = 4});

  // Drafts of another model with the same tokens.
  kvcache::Inputs with_draft = inputs;
  with_draft.assistant_model = draft.get();
  const auto assisted = kvcache::generate(*model, with_draft, {.max_new_tokens = 16});

  std::cout << "prompt lookup: " << (lookup.sequences.equal(plain.sequences) ? "same" : "other")
            << " text\nassisted: " << (assisted.sequences.equal(plain.sequences) ? "same" : "other")
            << " text\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
