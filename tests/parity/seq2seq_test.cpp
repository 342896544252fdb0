// Models with an encoder against the oracle: logits of all positions, whole and in pieces, with
// every way of padding, and generated ids.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "kvcache/io/safetensors.h"
#include "kvcache/models/registry.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;

const std::filesystem::path kParity = KVCACHE_TEST_DATA_DIR "/parity";

at::Tensor tensor_of(const json& rows) { return ids_tensor(rows.get<Rows>()); }

class Seq2Seq : public ::testing::TestWithParam<const char*> {
 protected:
  // On tensors this small, threads cost more than they bring.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  void SetUp() override {
    const std::string name = GetParam();
    std::ifstream file(kParity / "goldens/seq2seq" / (name + ".json"));
    golden_ = json::parse(file);
    model_ = load_seq2seq_model(kParity / "seq2seq_checkpoints" / name);
    tensors_ = SafetensorsFile::open(kParity / "goldens/seq2seq" / (name + ".safetensors"));
  }

  static EncoderInput encoder_of(const json& item) {
    return {tensor_of(item.at("input_ids")), tensor_of(item.at("attention_mask"))};
  }

  void expect_oracles(const json& item, const at::Tensor& logits, std::int64_t piece) {
    const at::Tensor real = tensor_of(item.at("decoder_attention_mask")).unsqueeze(-1);
    const at::Tensor expected = tensors_->tensor(item.at("name").get<std::string>());
    EXPECT_LE((logits - expected).abs().mul(real).max().item<double>(), 1e-4)
        << item.at("name") << " in pieces of " << piece;
  }

  // Logits of a decoder's text fed in pieces; the encoder's input goes in with the first one, or
  // with all.
  at::Tensor in_pieces(const json& item, Cache& cache, std::int64_t piece, bool with_all) {
    const at::Tensor ids = tensor_of(item.at("decoder_input_ids"));
    const at::Tensor mask = tensor_of(item.at("decoder_attention_mask"));
    std::vector<at::Tensor> parts;
    for (std::int64_t at = 0; at < ids.size(1); at += piece) {
      const std::int64_t count = std::min(piece, ids.size(1) - at);
      ForwardInput input{.input_ids = ids.narrow(1, at, count),
                         .attention_mask = mask.narrow(1, at, count)};
      if (at == 0 || with_all) input.encoder = encoder_of(item);
      parts.push_back(model_->forward(input, &cache));
    }
    return at::cat(parts, 1);
  }

  void check_generated(const json& item) {
    const GenerationConfig config =
        GenerationConfig::from_json(item.at("generation_config").dump());
    const at::Tensor expected = tensor_of(item.at("sequences"));
    SCOPED_TRACE(item.at("name").get<std::string>() + ", seed " +
                 item.value("seed", json()).dump());
    const auto run = [&](const GenerationConfig& chosen, Cache* cache) {
      Inputs inputs{.input_ids = tensor_of(item.at("input_ids")),
                    .attention_mask = tensor_of(item.at("attention_mask"))};
      if (item.contains("seed")) {
        inputs.generator = make_generator(item.at("seed").get<std::uint64_t>());
      }
      return generate(*model_, inputs, chosen, cache);
    };
    const Output own = run(config, nullptr);
    EXPECT_TRUE(own.sequences.equal(expected)) << own.sequences << expected;
    ASSERT_TRUE(own.cache);
    EXPECT_EQ(own.cache->kind(), "encoder_decoder");
    EXPECT_EQ(own.cache->get_seq_length(), expected.size(1) - 1);
    const Output again = run(config, own.cache.get());  // what it holds of the encoder is used
    EXPECT_TRUE(again.sequences.equal(expected)) << again.sequences << expected;
    GenerationConfig fixed = config;
    fixed.cache_implementation = "static";
    EXPECT_TRUE(run(fixed, nullptr).sequences.equal(expected));
    GenerationConfig uncached = config;
    uncached.use_cache = false;
    EXPECT_TRUE(run(uncached, nullptr).sequences.equal(expected));
  }

  json golden_;
  std::unique_ptr<Seq2SeqLM> model_;
  std::optional<SafetensorsFile> tensors_;
};

TEST_P(Seq2Seq, UncachedLogitsAreTheOracles) {
  for (const json& item : golden_.at("logits")) {
    const at::Tensor ids = tensor_of(item.at("decoder_input_ids"));
    expect_oracles(item,
                   model_->forward({.input_ids = ids,
                                    .attention_mask = tensor_of(item.at("decoder_attention_mask")),
                                    .encoder = encoder_of(item)}),
                   ids.size(1));
  }
}

TEST_P(Seq2Seq, CachedLogitsAreTheOraclesInPiecesOfAnySize) {
  for (const json& item : golden_.at("logits")) {
    for (const std::int64_t piece : {1, 2, 3, 4, 5, 100}) {
      EncoderDecoderCache cache(model_->config());
      expect_oracles(item, in_pieces(item, cache, piece, /*with_all=*/piece == 2), piece);
    }
  }
}

TEST_P(Seq2Seq, CachesOfFixedSizesEqualGrowingOnes) {
  const std::vector<LayerSpec> layers = model_->config().layer_specs();
  for (const json& item : golden_.at("logits")) {
    for (const std::int64_t piece : {1, 4}) {
      const StaticCacheOptions decoder{.max_cache_len = 50}, encoder{.max_cache_len = 40};
      EncoderDecoderCache cache(StaticCache(layers, decoder),
                                StaticCache(cross_attention_layers(layers), encoder));
      expect_oracles(item, in_pieces(item, cache, piece, /*with_all=*/false), piece);
    }
  }
}

TEST_P(Seq2Seq, RowsThatShareAnEncoderRowEqualRowsThatDoNot) {
  const json& item = golden_.at("logits").at(0);
  const at::Tensor ids = ids_tensor({{0, 21, 7}, {0, 9, 9}, {0, 7, 2}, {0, 5, 60}});
  EncoderInput encoder{tensor_of(item.at("input_ids"))};
  encoder.input_ids = at::cat({encoder.input_ids, encoder.input_ids.flip(1)});
  EncoderDecoderCache shared(model_->config()), apart(model_->config());
  const at::Tensor a = model_->forward({.input_ids = ids, .encoder = encoder}, &shared);
  const at::Tensor whole = encoder.input_ids.repeat_interleave(2, 0);
  const at::Tensor b = model_->forward({.input_ids = ids, .encoder = EncoderInput{whole}}, &apart);
  EXPECT_CLOSE(a, b, 1e-4);
  EXPECT_EQ(shared.cross_attention_cache().batch_size(), 2);
  EXPECT_EQ(apart.cross_attention_cache().batch_size(), 4);
  const at::Tensor rows = ids_tensor({{1, 0, 0, 3}})[0];
  shared.reorder_cache(rows);
  apart.reorder_cache(rows);
  const at::Tensor next = ids_tensor({{4}, {5}, {6}, {7}});
  EXPECT_CLOSE(model_->forward({.input_ids = next}, &shared),
               model_->forward({.input_ids = next}, &apart), 1e-4);
}

TEST_P(Seq2Seq, GreedyIdsAreTheOracles) {
  for (const json& item : golden_.at("greedy")) check_generated(item);
}

TEST_P(Seq2Seq, SampledIdsAreTheOracles) {
  for (const json& item : golden_.at("sampled")) check_generated(item);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Seq2Seq, ::testing::Values("t5", "t5_gated", "t5_long_decoder"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace kvcache::testing
