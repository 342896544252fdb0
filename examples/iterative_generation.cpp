// A conversation by hand, over one cache: each turn hands generate() all of it, and only what the
// cache does not hold is computed. ChatSession (chat.cpp) does this and more.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <span>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  if (argc < 3) return std::cerr << "usage: iterative_generation CHECKPOINT_FOLDER TEXT...\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  const auto tokenizer = kvcache::Tokenizer::from_folder(argv[1]);
  const auto chat_template = kvcache::ChatTemplate::from_folder(argv[1]);
  auto config = kvcache::GenerationConfig::from_pretrained(argv[1]);
  config.max_new_tokens = 32;
  config.do_sample = false;

  kvcache::DynamicCache cache(model->config());
  std::vector<kvcache::ChatMessage> messages;
  for (const char* text : std::span(argv + 2, argv + argc)) {
    messages.push_back({.role = "user", .content = text});
    const auto prompt =
        tokenizer.encode(chat_template.render(messages, {.add_generation_prompt = true}),
                         {.add_special_tokens = false});  // the template has them
    const auto ids = at::tensor(prompt, at::kLong).unsqueeze(0);
    const auto output = kvcache::generate(*model, {.input_ids = ids}, config, &cache);

    // The reply is what follows the prompt.
    const auto row = output.sequences[0].contiguous();
    const std::span made(row.data_ptr<int64_t>(), size_t(row.numel()));
    const auto reply = tokenizer.decode(made.subspan(prompt.size()), {.skip_special_tokens = true});
    messages.push_back({.role = "assistant", .content = reply});
    std::cout << reply << "\n[" << output.timings.prefill_tokens << " of " << prompt.size()
              << " tokens computed]\n";
  }
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
