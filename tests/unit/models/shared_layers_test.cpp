// A model whose layers read the keys of earlier ones, as families with shared layers do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/any_layers_model.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

TEST(SharedLayers, F64_WithoutACacheTheLogitsAreTheSame) {
  const std::unique_ptr<LanguageModel> model = tiny_language_model("shared");
  const at::Tensor ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {3, 1, 4, 1, 5, 9, 2, 6, 5}});
  const at::Tensor expected = model->forward({.input_ids = ids});
  EXPECT_GT(expected.std().item<double>(), 1);
  for (const std::int64_t piece : {9, 1, 2, 4}) {
    DynamicCache growing(layers_of(*model));
    StaticCache fixed(layers_of(*model), {.max_cache_len = 12});
    for (LayeredCache* cache :
         {static_cast<LayeredCache*>(&growing), static_cast<LayeredCache*>(&fixed)}) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& part : ids.split(piece, 1)) {
        parts.push_back(model->forward({.input_ids = part.contiguous()}, cache));
      }
      EXPECT_CLOSE(at::cat(parts, 1), expected, 1e-4) << cache->kind() << ", pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace kvcache::testing
