// Attention over packed segments, against the same view made dense.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/codec/int_codec.h"
#include "kvcache/codec/quantized_cache_config.h"
#include "kvcache/codec/rotated_codec.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::difference;

// A view of packed tokens and dense ones behind them.
View view_of(const QuantizedCodecs& codecs, at::IntArrayRef packed_tokens,
             std::int64_t dense_tokens, const KeyValueShape& shape) {
  const auto states = [&](std::int64_t tokens, std::int64_t dim) {
    return at::randn({shape.batch, shape.kv_heads, tokens, dim}).to(shape.dtype);
  };
  const auto pack = [&](const Codec& codec, std::int64_t tokens, std::int64_t dim) {
    const std::int64_t unit = codec.format(dim, shape.dtype).group_tokens;
    const std::int64_t whole = (tokens + unit - 1) / unit * unit;
    return narrow(codec.encode(states(whole, dim), codec.format(dim, shape.dtype), {}), 0, tokens);
  };
  View view;
  view.batch = shape.batch;
  for (const std::int64_t tokens : packed_tokens) {
    view.segments.push_back({.first = view.visible.length,
                             .packed = std::make_shared<PackedKeyValue>(PackedKeyValue{
                                 pack(*codecs.keys, tokens, shape.key_dim),
                                 pack(*codecs.values, tokens, shape.value_dim), shape.dtype})});
    view.visible.length += tokens;
  }
  if (dense_tokens > 0) {
    view.segments.push_back({.keys = states(dense_tokens, shape.key_dim),
                             .values = states(dense_tokens, shape.value_dim),
                             .first = view.visible.length});
    view.visible.length += dense_tokens;
  }
  return view;
}

TEST(PackedAttention, IsThatOfTheViewMadeDense) {
  at::manual_seed(1);
  const std::vector<QuantizedCacheConfig> configs = {
      {.nbits = 4},
      {.nbits = 2, .axis_key = -1, .q_group_size = 16},
      {.backend = "hqq", .nbits = 3, .axis_key = 1, .q_group_size = 32},
      {.backend = "hqq", .nbits = 1, .q_group_size = 8},
      {.backend = "int", .nbits = 8, .rotate_keys = true},
      {.backend = "fp8"}};
  for (const QuantizedCacheConfig& config : configs) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const std::int64_t tokens : {1, 3}) {
        const KeyValueShape shape{
            .batch = 2, .kv_heads = 2, .key_dim = 24, .value_dim = 16, .dtype = dtype};
        const View packed = view_of(make_codecs(config), {700, 5}, 6, shape);
        const KeyValue states = dense(packed);
        View plain;
        plain.visible = packed.visible;
        plain.batch = 2;
        plain.segments.push_back({states.keys, states.values});
        const at::Tensor query = at::randn({2, 6, tokens, 24}).to(dtype);
        const AttentionMask mask = make_mask(
            {.visible = packed.visible, .seen = packed.visible.length - tokens, .tokens = tokens});
        const double bound = dtype == at::kFloat ? 1e-5 : 2e-2;
        for (const AttentionOptions& options :
             {AttentionOptions{}, AttentionOptions{.softcap = 20}}) {
          EXPECT_LE(difference(attention(query, packed, mask, options),
                               attention(query, plain, mask, options)),
                    bound)
              << config.backend;
        }
      }
    }
  }
}

TEST(PackedAttention, ASingleSegmentMayBePacked) {
  const KeyValueShape shape{.batch = 1, .kv_heads = 1, .key_dim = 8, .value_dim = 8};
  const View packed = view_of(make_codecs({}), {9}, 0, shape);
  const KeyValue states = dense(packed);
  const View plain{
      .segments = {{states.keys, states.values}}, .visible = packed.visible, .batch = 1};
  const at::Tensor query = at::randn({1, 2, 1, 8});
  EXPECT_LE(difference(attention(query, packed, {}), attention(query, plain, {})), 1e-6);
}

// A long chunk behind packed history goes through tile by tile, whatever its mask.
TEST(PackedAttention, LongChunksAreThoseOfTheViewMadeDense) {
  const KeyValueShape shape{.batch = 2, .kv_heads = 1, .key_dim = 8, .value_dim = 8};
  const View packed = view_of(make_codecs({}), {90}, 700, shape);
  const KeyValue states = dense(packed);
  const View plain{
      .segments = {{states.keys, states.values}}, .visible = packed.visible, .batch = 2};
  const at::Tensor query = at::randn({2, 2, 700, 8});
  const AttentionMask mask = make_mask({.visible = packed.visible, .seen = 90, .tokens = 700});
  EXPECT_LE(difference(attention(query, packed, mask), attention(query, plain, mask)), 1e-5);
  EXPECT_LE(difference(attention(query, packed, {}), attention(query, plain, {})), 1e-5);
}

// Codecs of one's own may do what QuantizedCacheConfig does not.
TEST(PackedAttention, RotatedValuesAreTurnedBack) {
  const auto turned = std::make_shared<RotatedCodec>(std::make_shared<IntCodec>(IntCodecOptions{}));
  const KeyValueShape shape{.batch = 1, .kv_heads = 2, .key_dim = 16, .value_dim = 16};
  const View packed = view_of({.keys = turned, .values = turned}, {40}, 3, shape);
  const KeyValue states = dense(packed);
  const View plain{
      .segments = {{states.keys, states.values}}, .visible = packed.visible, .batch = 1};
  const at::Tensor query = at::randn({1, 4, 1, 16});
  EXPECT_LE(difference(attention(query, packed, {}), attention(query, plain, {})), 1e-5);
}

// Scales for parts of a token's head, of codes without offsets.
TEST(PackedAttention, ScalesOfSeveralGroupsOfChannels) {
  for (const auto kind : {PackedFormat::Kind::symmetric, PackedFormat::Kind::float8}) {
    const PackedFormat format{.kind = kind, .bits = 8, .head_dim = 16, .group_channels = 4};
    const auto states = [&] {
      const at::Tensor codes = at::randint(0, 120, {1, 2, 30, 16}, at::kLong).to(at::kByte);
      return PackedStates{
          .format = format, .codes = codes, .scales = at::rand({1, 2, 30, 4}).div(64)};
    };
    const View packed{.segments = {{.packed = std::make_shared<PackedKeyValue>(
                                        PackedKeyValue{states(), states(), at::kFloat})}},
                      .visible = {.length = 30},
                      .batch = 1};
    const KeyValue right = dense(packed);
    const View plain{
        .segments = {{right.keys, right.values}}, .visible = packed.visible, .batch = 1};
    const at::Tensor query = at::randn({1, 4, 1, 16});
    EXPECT_LE(difference(attention(query, packed, {}), attention(query, plain, {})), 1e-4);
  }
}

}  // namespace
}  // namespace kvcache
