// A model whose layers read the keys of earlier ones, as families with shared layers do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/cache/uncached.h"
#include "kvcache/models/causal_lm.h"
#include "kvcache/models/rope.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

const LayerSpec kFull{};
const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};

LayerSpec shared(std::int64_t donor) { return {.type = std::string(kShared), .donor = donor}; }

// Width 32, 4 heads over 2 of keys, vocabulary 64. Queries and keys are turned by their positions,
// of which a layer's first is its offset in the step.
class SharingModel {
 public:
  static std::vector<LayerSpec> layers() { return {kFull, kWindow4, shared(0), shared(1)}; }

  // `late`: queries of shared layers are turned as far as if their donor's new tokens were past.
  explicit SharingModel(bool late = false)
      : late_(late), rope_(RopeConfig{.theta = 100}, kHeadDim, at::kCPU) {
    at::manual_seed(5);
    embeddings_ = at::randn({64, 32}) * 0.5;
    for (std::size_t i = 0; i < layers().size(); ++i) {
      weights_.push_back({at::randn({32, 32}) * 0.3, at::randn({32, 16}) * 0.3,
                          at::randn({32, 16}) * 0.3, at::randn({32, 32}) * 0.1});
    }
  }

  // Logits [batch, tokens, 64] of the ids; the step is committed, or let go.
  at::Tensor logits(Cache& cache, const at::Tensor& ids, bool commit = true) const {
    Step step = cache.begin_step({.tokens = ids.size(1), .batch = ids.size(0), .ids = ids});
    ForwardContext context(step, layers(), at::kCPU);
    at::Tensor hidden = at::embedding(embeddings_, ids);
    for (std::int64_t layer = 0; layer < std::int64_t(weights_.size()); ++layer) {
      const Weights& weights = weights_[std::size_t(layer)];
      const bool shares = layers()[std::size_t(layer)].donor.has_value();
      const std::int64_t late = late_ && shares ? step.tokens() : 0;
      const at::Tensor positions = at::arange(step.tokens()) + step.query_offset(layer) + late;
      const Rotation rotation = rope_.at(positions.expand_as(ids), at::kFloat);
      const auto turned = [&](const at::Tensor& weight) {
        return rotate(heads(hidden.matmul(weight)), rotation).transpose(1, 2);
      };
      const at::Tensor query = turned(weights.query);
      const at::Tensor read =
          shares ? context.attend_shared(layer, query)
                 : context.attend(
                       layer, query,
                       {turned(weights.key), heads(hidden.matmul(weights.value)).transpose(1, 2)});
      hidden = hidden + read.transpose(1, 2).flatten(2).matmul(weights.output);
    }
    if (commit) step.commit();
    return hidden.matmul(embeddings_.t());
  }

 private:
  struct Weights {
    at::Tensor query, key, value, output;
  };

  static constexpr std::int64_t kHeadDim = 8;

  // [batch, tokens, heads, 8]
  static at::Tensor heads(const at::Tensor& states) { return states.unflatten(-1, {-1, kHeadDim}); }

  bool late_;
  Rope rope_;
  at::Tensor embeddings_;
  std::vector<Weights> weights_;
};

const Rows kTexts = {{5, 6, 7, 8, 9, 10, 11, 7, 8}, {3, 1, 4, 1, 5, 9, 2, 6, 5}};

// Logits of a text that comes in pieces of so many tokens.
at::Tensor logits_in_pieces(const SharingModel& model, LayeredCache& cache, std::int64_t piece) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : ids_tensor(kTexts).split(piece, 1)) {
    parts.push_back(model.logits(cache, part.contiguous()));
  }
  return at::cat(parts, 1);
}

TEST(SharedLayers, F63_QueriesAreTurnedToTheDonorsOffset) {
  const SharingModel model, late(/*late=*/true);
  DynamicCache whole(SharingModel::layers()), one_by_one(SharingModel::layers());
  const at::Tensor expected = logits_in_pieces(model, whole, 9);
  EXPECT_GT(expected.std().item<double>(), 1);
  EXPECT_CLOSE(logits_in_pieces(model, one_by_one, 1), expected, 1e-5);
  StaticCache fixed(SharingModel::layers(), {.max_cache_len = 12});
  EXPECT_CLOSE(logits_in_pieces(model, fixed, 1), expected, 1e-5);

  // What the fault would do: no small difference.
  DynamicCache late_whole(SharingModel::layers()), late_one_by_one(SharingModel::layers());
  EXPECT_GT(
      difference(logits_in_pieces(late, late_whole, 9), logits_in_pieces(late, late_one_by_one, 1)),
      0.1);
}

TEST(SharedLayers, F64_WithoutACacheTheLogitsAreTheSame) {
  const SharingModel model;
  LayeredCache none = uncached(SharingModel::layers());
  const at::Tensor expected = model.logits(none, ids_tensor(kTexts), /*commit=*/false);
  EXPECT_GT(expected.std().item<double>(), 1);
  for (const std::int64_t piece : {9, 1, 2, 4}) {
    DynamicCache growing(SharingModel::layers());
    StaticCache fixed(SharingModel::layers(), {.max_cache_len = 12});
    for (LayeredCache* cache :
         {static_cast<LayeredCache*>(&growing), static_cast<LayeredCache*>(&fixed)}) {
      EXPECT_CLOSE(logits_in_pieces(model, *cache, piece), expected, 1e-4)
          << cache->kind() << ", pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace kvcache::testing
