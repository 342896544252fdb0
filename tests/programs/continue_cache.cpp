// What another process makes of a saved cache:
//   continue_cache <checkpoint> <file> <new tokens> <id>... [-- <encoder's id>...]
// loads both, generates after the ids, whose start the cache holds, and prints all ids, then how
// many of the given ones, the encoder's included, had to be fed.

#include <ATen/ops/tensor.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/generation/runner.h"
#include "kvcache/models/registry.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const auto model = kvcache::load_language_model(argv[1]);
  std::vector<std::int64_t> text, encoder;
  bool of_encoder = false;
  for (int i = 4; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--") {
      of_encoder = true;
    } else {
      (of_encoder ? encoder : text).push_back(std::atoll(argv[i]));
    }
  }
  kvcache::Inputs inputs;
  (of_encoder ? inputs.decoder_input_ids : inputs.input_ids) =
      at::tensor(text, at::kLong).unsqueeze(0);
  std::unique_ptr<kvcache::Cache> cache;
  if (of_encoder) {
    inputs.input_ids = at::tensor(encoder, at::kLong).unsqueeze(0);
    cache = std::make_unique<kvcache::EncoderDecoderCache>(model->config());
  } else {
    cache = std::make_unique<kvcache::DynamicCache>(model->config());
  }
  kvcache::load_cache(*cache, argv[2],
                      {.fingerprint = model->fingerprint(), .dtype = model->dtype()});
  const kvcache::Output output =
      kvcache::generate(*model, inputs, {.max_new_tokens = std::atoll(argv[3])}, cache.get());
  const at::Tensor ids = output.sequences[0].contiguous();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    std::printf("%ld ", long(ids.const_data_ptr<std::int64_t>()[i]));
  }
  std::printf("\n%ld\n", long(output.timings.prefill_tokens));
  return 0;
}
