// What another process makes of a saved cache:
//   continue_cache <checkpoint> <file> <new tokens> <id>...
// loads both, generates after the ids, whose start the cache holds, and prints all ids, then how
// many of the given ones had to be fed.

#include <ATen/ops/tensor.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/generation/runner.h"
#include "kvcache/models/registry.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const auto model = kvcache::load_model(argv[1]);
  kvcache::DynamicCache cache(model->config());
  kvcache::load_cache(cache, argv[2],
                      {.fingerprint = model->fingerprint(), .dtype = model->dtype()});
  std::vector<std::int64_t> text;
  for (int i = 4; i < argc; ++i) text.push_back(std::atoll(argv[i]));
  const kvcache::Output output =
      kvcache::generate(*model, {.input_ids = at::tensor(text, at::kLong).unsqueeze(0)},
                        {.max_new_tokens = std::atoll(argv[3])}, &cache);
  const at::Tensor ids = output.sequences[0].contiguous();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    std::printf("%ld ", long(ids.const_data_ptr<std::int64_t>()[i]));
  }
  std::printf("\n%ld\n", long(output.timings.prefill_tokens));
  return 0;
}
