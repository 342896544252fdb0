// What does a quantized cache cost a model in quality?
//
// quantization_loss CHECKPOINT_FOLDER IDS.json [GENERATION_CONFIG.json]: the negative
// log-likelihood of a text's ids (a list), in windows of 4,096 tokens fed in pieces of 64, each
// window to a fresh cache of the kind that generate() makes for the config, in float32. Prints a
// line a piece: the sum over its tokens and their number. quantization_loss.py makes a table of it.

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "generation/cache_choice.h"
#include "kvcache/io/read_text_file.h"
#include "kvcache/models/registry.h"

namespace {

constexpr std::int64_t kWindow = 4096;
constexpr std::int64_t kPiece = 64;

// Of the window's tokens but its first, ids [tokens].
void print_window(const kvcache::CausalLM& model, const at::Tensor& ids, kvcache::Cache& cache) {
  const std::int64_t length = ids.size(0);
  for (std::int64_t first = 0; first < length; first += kPiece) {
    const std::int64_t count = std::min(kPiece, length - first);
    const at::Tensor logits =
        model.forward({.input_ids = ids.narrow(0, first, count).unsqueeze(0)}, &cache);
    const std::int64_t known = std::min(count, length - 1 - first);
    const at::Tensor targets = ids.narrow(0, first + 1, known).unsqueeze(1);
    const at::Tensor chosen = at::log_softmax(logits[0].narrow(0, 0, known), -1).gather(1, targets);
    std::printf("%.8f %lld\n", -chosen.to(at::kDouble).sum().item<double>(),
                static_cast<long long>(known));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: quantization_loss CHECKPOINT_FOLDER IDS.json [CONFIG.json]\n");
    return 2;
  }
  const c10::InferenceMode guard;
  const auto model = kvcache::load_model(argv[1], {.dtype = at::kFloat});
  const auto numbers =
      nlohmann::json::parse(kvcache::read_text_file(argv[2])).get<std::vector<std::int64_t>>();
  const at::Tensor ids = at::tensor(numbers, at::kLong);
  kvcache::GenerationConfig config;
  if (argc == 4) {
    config = kvcache::GenerationConfig::from_json(kvcache::read_text_file(argv[3]), argv[3]);
  }
  for (std::int64_t first = 0; first < ids.size(0); first += kWindow) {
    const std::int64_t count = std::min(kWindow, ids.size(0) - first);
    const auto cache =
        kvcache::detail::new_cache(config, model->config(), {.rows = 1, .tokens = count});
    print_window(*model, ids.narrow(0, first, count), *cache);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
