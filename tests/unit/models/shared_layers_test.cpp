// A model whose layers read the keys of earlier ones, as families with shared layers do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/cache/uncached.h"
#include "kvcache/models/causal_lm.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

const LayerSpec kFull{};
const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};

LayerSpec shared(std::int64_t donor) { return {.type = std::string(kShared), .donor = donor}; }

// Width 32, 4 heads over 2 of keys, vocabulary 64; positions are added to the embeddings.
class SharingModel {
 public:
  static std::vector<LayerSpec> layers() { return {kFull, kWindow4, shared(0), shared(1)}; }

  SharingModel() {
    at::manual_seed(5);
    embeddings_ = at::randn({64, 32}) * 0.5;
    positions_ = at::randn({64, 32}) * 0.5;
    for (std::size_t i = 0; i < layers().size(); ++i) {
      weights_.push_back({at::randn({32, 32}) * 0.3, at::randn({32, 16}) * 0.3,
                          at::randn({32, 16}) * 0.3, at::randn({32, 32}) * 0.3});
    }
  }

  // Logits [batch, tokens, 64] of the ids; the step is committed, or let go.
  at::Tensor logits(Cache& cache, const at::Tensor& ids, bool commit = true) const {
    Step step = cache.begin_step({.tokens = ids.size(1), .batch = ids.size(0), .ids = ids});
    ForwardContext context(step, layers(), at::kCPU);
    at::Tensor hidden =
        at::embedding(embeddings_, ids) + at::embedding(positions_, context.positions());
    for (std::int64_t layer = 0; layer < std::int64_t(weights_.size()); ++layer) {
      const Weights& weights = weights_[std::size_t(layer)];
      const at::Tensor query = heads(hidden.matmul(weights.query));
      const at::Tensor read = layers()[std::size_t(layer)].donor
                                  ? context.attend_shared(layer, query)
                                  : context.attend(layer, query,
                                                   {heads(hidden.matmul(weights.key)),
                                                    heads(hidden.matmul(weights.value))});
      hidden = hidden + read.transpose(1, 2).flatten(2).matmul(weights.output);
    }
    if (commit) step.commit();
    return hidden.matmul(embeddings_.t());
  }

 private:
  struct Weights {
    at::Tensor query, key, value, output;
  };

  static at::Tensor heads(const at::Tensor& states) {
    return states.unflatten(-1, {-1, 8}).transpose(1, 2);
  }

  at::Tensor embeddings_, positions_;
  std::vector<Weights> weights_;
};

TEST(SharedLayers, F64_WithoutACacheTheLogitsAreTheSame) {
  const SharingModel model;
  const at::Tensor ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {3, 1, 4, 1, 5, 9, 2, 6, 5}});
  LayeredCache none = uncached(SharingModel::layers());
  const at::Tensor expected = model.logits(none, ids, /*commit=*/false);
  EXPECT_GT(expected.std().item<double>(), 1);
  for (const std::int64_t piece : {9, 1, 2, 4}) {
    DynamicCache growing(SharingModel::layers());
    StaticCache fixed(SharingModel::layers(), {.max_cache_len = 12});
    for (LayeredCache* cache :
         {static_cast<LayeredCache*>(&growing), static_cast<LayeredCache*>(&fixed)}) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& part : ids.split(piece, 1)) {
        parts.push_back(model.logits(*cache, part.contiguous()));
      }
      EXPECT_CLOSE(at::cat(parts, 1), expected, 1e-4) << cache->kind() << ", pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace kvcache::testing
