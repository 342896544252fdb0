// A model with an encoder, T5, over a pair of caches: encoder_decoder CHECKPOINT_FOLDER.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: encoder_decoder CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_language_model(argv[1]);
  const auto article = at::tensor({7L, 21L, 9L, 30L, 4L, 1L}, at::kLong).unsqueeze(0);

  // Of any two kinds: here a growing one for the decoder and one of a fixed size for the encoder's
  // keys, which are computed once and never trimmed.
  const auto layers = model->config().layer_specs();
  kvcache::EncoderDecoderCache cache(
      kvcache::DynamicCache(layers),
      kvcache::StaticCache(kvcache::cross_attention_layers(layers), {.max_cache_len = 16}));
  const auto output =
      kvcache::generate(*model, {.input_ids = article}, {.max_new_tokens = 5}, &cache);

  std::cout << output.sequences.size(1) << " tokens of the decoder, "
            << cache.cross_attention_cache().get_seq_length() << " of the encoder, "
            << (cache.is_updated(0) ? "held" : "not held") << '\n';
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
