// Cached equals uncached over every small way to feed a text: the kind of layers, the prompt's
// length, its pieces, left padding, and a rollback with the same tokens fed again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/sweep.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

struct Feeding {
  std::int64_t prompt, piece, pads, crop;
};

std::vector<Feeding> all_feedings() {
  std::vector<Feeding> all;
  for (std::int64_t prompt = 1; prompt <= 12; ++prompt) {
    for (std::int64_t piece = 1; piece <= 6; ++piece) {
      for (std::int64_t pads = 0; pads <= 6; ++pads) {
        for (std::int64_t crop = 0; crop <= std::min<std::int64_t>(3, prompt - 1); ++crop) {
          all.push_back({prompt, piece, pads, crop});
        }
      }
    }
  }
  return all;
}

// A seeded sample by default.
std::vector<Feeding> chosen_feedings() {
  const std::vector<Feeding> all = all_feedings();
  std::vector<Feeding> chosen;
  std::mt19937 random(20240611);
  const auto full = static_cast<std::int64_t>(all.size());
  std::sample(all.begin(), all.end(), std::back_inserter(chosen), sweep_count(150, full), random);
  return chosen;
}

// The last logits of a text that is fed as `how` says: padded, in pieces, its last tokens taken
// back and fed again.
at::Tensor fed(const CausalLM& model, const at::Tensor& text, const Feeding& how) {
  const at::Tensor ids = at::cat({at::full({1, how.pads}, 40, at::kLong), text}, 1);
  const at::Tensor real = at::ones_like(ids);
  real.narrow(1, 0, how.pads).fill_(0);
  const std::int64_t length = ids.size(1);
  DynamicCache cache(model.config());
  cache.activate_past_recording();
  at::Tensor logits;
  const auto feed = [&](std::int64_t from) {
    for (std::int64_t at = from; at < length; at += how.piece) {
      const std::int64_t count = std::min(how.piece, length - at);
      logits = model.forward({.input_ids = ids.narrow(1, at, count),
                              .attention_mask = real.narrow(1, at, count),
                              .logits_to_keep = 1},
                             &cache);
    }
  };
  feed(0);
  if (how.crop > 0) {
    cache.crop(-how.crop);
    feed(length - how.crop);
  }
  return logits.select(1, 0);
}

class CachedEqualsUncached : public ::testing::TestWithParam<std::string> {};

TEST_P(CachedEqualsUncached, HoweverTheTextIsFed) {
  const auto model = tiny_model(GetParam());
  const at::Tensor text = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8, 12, 13, 14}});
  std::vector<at::Tensor> uncached;  // last logits of every length
  for (std::int64_t n = 1; n <= 12; ++n) {
    uncached.push_back(model->forward({.input_ids = text.narrow(1, 0, n)}).select(1, -1));
  }
  for (const Feeding& how : chosen_feedings()) {
    ASSERT_LE(difference(fed(*model, text.narrow(1, 0, how.prompt), how),
                         uncached[static_cast<std::size_t>(how.prompt - 1)]),
              1e-4)
        << "prompt " << how.prompt << ", pieces of " << how.piece << ", " << how.pads
        << " pads, crop " << how.crop;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CachedEqualsUncached,
                         ::testing::Values("full", "sliding", "chunked", "mixed"),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace kvcache::testing
