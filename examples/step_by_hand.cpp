// A cache driven by hand: a decoder's layer of made-up weights, with a convolution, a recurrence
// and attention to an encoder's output, in steps of its own.
#include <ATen/ops/embedding.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <vector>

namespace {

struct Decoder {
  at::Generator random = kvcache::make_generator(1);
  at::Tensor words = at::randn({32, 8}, random), taps = at::randn({8, 1, 3}, random);
  at::Tensor query = at::randn({8, 8}, random), key = at::randn({8, 8}, random);
  int64_t encoded_tokens = 0;  // of the encoder, whose keys were computed

  // ids, source [1, tokens] -> [1, tokens, 8]. What throws before commit() has changed nothing.
  at::Tensor run(kvcache::Cache& cache, const at::Tensor& ids, const at::Tensor& source) {
    const int64_t tokens = ids.size(1);
    auto step =
        cache.begin_step({.tokens = tokens,
                          .batch = 1,
                          .ids = ids,
                          .cross = {{.tokens = source.size(1), .batch = 1, .ids = source}}});
    auto x = at::embedding(words, ids);

    // The convolution's new inputs come back behind those of before: [1, 8, 2 + tokens].
    const auto inputs = step.update_conv_state(0, x.transpose(1, 2), {.kernel_size = 3});
    const auto mixed = inputs.unfold(2, 3, 1).mul(taps).sum(3);  // [1, 8, tokens]

    // The recurrence goes on from the last state, and hands over as many new ones as are wanted.
    auto state = step.recurrent_state(0).value_or(at::zeros({1, 8}));
    std::vector<at::Tensor> states;
    for (int64_t i = 0; i < tokens; ++i) states.push_back(state = state * 0.5 + mixed.select(2, i));
    step.update_recurrent_state(0, at::stack(states).slice(0, -step.wanted_states(0)));
    x = x + at::stack(states, 1);

    // The encoder's keys go in where they are not held yet, and are read in every step.
    if (kvcache::Step* cross = step.cross()) {
      const auto encoded = at::embedding(words, source);
      cross->append(0, encoded.matmul(key).unsqueeze(1), encoded.unsqueeze(1));  // one head
      encoded_tokens += source.size(1);
    }
    x = x + kvcache::attention(x.matmul(query).unsqueeze(1), step.cross_view(0), {}).squeeze(1);
    step.commit();
    return x;
  }
};

}  // namespace

int main() try {
  const kvcache::LayerSpec own{.type = "linear_attention"}, cross{.type = "full_attention"};
  kvcache::EncoderDecoderCache cache(kvcache::MambaCache({own}), kvcache::DynamicCache({cross}));
  const auto source = at::tensor({20L, 21L, 22L, 23L}, at::kLong).unsqueeze(0);
  const auto text = at::tensor({1L, 2L, 3L, 4L, 5L}, at::kLong).unsqueeze(0);
  Decoder decoder;
  const auto whole = decoder.run(cache, text, source);

  // Two tokens are taken back, and come again one by one.
  cache.reset();
  cache.activate_past_recording(2);
  decoder.run(cache, text, source);
  cache.crop(-2);
  for (int64_t i = 3; i < 5; ++i) {
    const auto found = decoder.run(cache, text.narrow(1, i, 1), source);
    const bool same = found.allclose(whole.narrow(1, i, 1), 1e-4, 1e-5);
    std::cout << "token " << i << (same ? ": the same\n" : ": another\n");
  }
  std::cout << decoder.encoded_tokens << " encoder tokens computed in 4 steps\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
