// A model of one's own under generate(): no weights, one layer that finds the places where the
// newest token stood before and looks what followed it. Its state in the cache is a convolution's
// (the token before each) beside keys and values, so it is a hybrid layer.
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

namespace {

class WhatFollowed final : public kvcache::CausalLM {
 public:
  explicit WhatFollowed(int64_t vocabulary)
      : CausalLM({.model_type = "what_followed",
                  .vocab_size = vocabulary,
                  .hidden_size = vocabulary,
                  .num_hidden_layers = 1,
                  .num_attention_heads = 1,
                  .num_key_value_heads = 1,
                  .head_dim = vocabulary,
                  .layer_types = {"hybrid"}},
                 at::kFloat, at::kCPU) {}

 protected:
  // ids [batch, tokens] -> [batch, tokens, vocabulary]. The context is the step's: it knows what
  // came before, and which tokens may see which.
  at::Tensor hidden_states(const at::Tensor& ids, kvcache::ForwardContext& context) const override {
    auto tokens = at::one_hot(ids, config().vocab_size).to(dtype());
    if (const auto& real = context.real_tokens()) tokens.mul_(real->unsqueeze(2));  // no padding
    const auto with_past = context.update_conv_state(0, tokens.transpose(1, 2), {.kernel_size = 2});
    const auto before = with_past.narrow(2, 0, ids.size(1)).transpose(1, 2);
    const auto as_head = [](const at::Tensor& x) { return x.unsqueeze(1); };
    return context.attend(0, as_head(tokens), {as_head(before), as_head(tokens)}, {.scale = 20})
        .squeeze(1);
  }

  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }
};

}  // namespace

int main() try {
  const WhatFollowed model(10);
  const auto prompt = at::tensor({3L, 1L, 4L, 5L, 9L, 2L, 6L, 3L, 1L}, at::kLong).unsqueeze(0);
  const auto output = kvcache::generate(model, {.input_ids = prompt}, {.max_new_tokens = 8});
  for (int64_t i = 0; i < output.sequences.size(1); ++i) {
    std::cout << output.sequences[0][i].item<int64_t>() << ' ';
  }
  std::cout << "\ncache " << output.cache->kind() << " of " << output.cache->get_seq_length()
            << " tokens\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
