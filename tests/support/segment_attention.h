// The operator kvcache::segment_attention against the plain form of the same sums on the CPU, over
// shapes, kinds of segments, lengths and masks: on any device that has the operator.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/codec/quantized_cache_config.h"
#include "kvcache/kernels/segment_attention.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {

struct AttentionShape {
  std::int64_t batch, kv_heads, group, tokens, key_dim, value_dim;
};

// What a random view is made for: the same seed gives the same numbers on every device.
struct RandomViewOptions {
  at::ScalarType dtype = at::kFloat;
  std::uint32_t seed = 1;
  at::Device device = at::kCPU;
};

inline PackedStates on_device(PackedStates states, at::Device device) {
  states.codes = states.codes.to(device);
  states.scales = states.scales.to(device);
  if (states.offsets.defined()) states.offsets = states.offsets.to(device);
  return states;
}

inline View on_cpu(View view) {
  for (Segment& segment : view.segments) {
    if (segment.packed) {
      segment.packed = std::make_shared<PackedKeyValue>(
          PackedKeyValue{on_device(segment.packed->keys, at::kCPU),
                         on_device(segment.packed->values, at::kCPU), segment.packed->dtype});
    } else {
      segment.keys = segment.keys.cpu();
      segment.values = segment.values.cpu();
    }
  }
  return view;
}

// Segments of random kinds and lengths.
class RandomView {
 public:
  RandomView(const AttentionShape& shape, const RandomViewOptions& options)
      : shape_(shape), options_(options), random_(options.seed) {
    at::manual_seed(options.seed);
    view_.batch = shape.batch;
  }

  void add_dense(std::int64_t tokens) {
    // Now and then a part of a larger buffer, or with the tokens outside.
    const std::int64_t spare = below(3);
    const bool tokens_first = below(4) == 0;
    const auto make = [&](std::int64_t dim) {
      at::Tensor given = states(tokens + spare, dim);
      if (tokens_first) given = given.transpose(1, 2).contiguous().transpose(1, 2);
      return given.to(options_.device).narrow(2, below(spare + 1), tokens);
    };
    const at::Tensor keys = make(shape_.key_dim), values = make(shape_.value_dim);
    view_.segments.push_back({.keys = keys, .values = values, .first = view_.visible.length});
    view_.visible.length += tokens;
  }

  void add_packed(const QuantizedCacheConfig& config, std::int64_t tokens) {
    const QuantizedCodecs codecs = make_codecs(config);
    const std::int64_t skipped = below(4);  // of the first group
    add(pack(*codecs.keys, skipped, tokens, shape_.key_dim),
        pack(*codecs.values, skipped, tokens, shape_.value_dim));
  }

  // As after crops: groups over tokens, of which some in the midst are not full.
  void add_cropped(const QuantizedCacheConfig& config, const std::vector<std::int64_t>& valid) {
    const QuantizedCodecs codecs = make_codecs(config);
    const auto cropped = [&](const Codec& codec, std::int64_t dim) {
      PackedStates states = pack(codec, 0, config.q_group_size.value_or(64) * size_of(valid), dim);
      const std::int64_t unit = states.format.group_tokens;
      std::vector<at::Tensor> codes;
      for (std::int64_t group = 0; group < size_of(valid); ++group) {
        const std::int64_t taken = valid[static_cast<std::size_t>(group)];
        codes.push_back(states.codes.narrow(2, group * unit, taken));
      }
      states.codes = at::cat(codes, 2);
      states.valid = valid;
      return states;
    };
    add(cropped(*codecs.keys, shape_.key_dim), cropped(*codecs.values, shape_.value_dim));
  }

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  const AttentionShape& shape() const { return shape_; }
  const RandomViewOptions& options() const { return options_; }
  const View& view() const { return view_; }

 private:
  static std::int64_t size_of(const std::vector<std::int64_t>& valid) {
    return static_cast<std::int64_t>(valid.size());
  }

  void add(PackedStates keys, PackedStates values) {
    const std::int64_t tokens = keys.tokens();
    auto packed = std::make_shared<PackedKeyValue>(
        PackedKeyValue{std::move(keys), std::move(values), options_.dtype});
    view_.segments.push_back({.first = view_.visible.length, .packed = std::move(packed)});
    view_.visible.length += tokens;
  }

  at::Tensor states(std::int64_t tokens, std::int64_t dim) {
    const std::int64_t rows = view_.segments.empty() && below(4) == 0 ? 1 : shape_.batch;
    return at::randn({rows, shape_.kv_heads, tokens, dim}).to(options_.dtype);
  }

  PackedStates pack(const Codec& codec, std::int64_t skipped, std::int64_t tokens,
                    std::int64_t dim) const {
    const PackedFormat format = codec.format(dim, options_.dtype);
    const std::int64_t unit = format.group_tokens;
    const std::int64_t whole = (skipped + tokens + unit - 1) / unit * unit;
    const at::Tensor given =
        at::randn({shape_.batch, shape_.kv_heads, whole, dim}).to(options_.dtype);
    return narrow(on_device(codec.encode(given, format, {}), options_.device), skipped, tokens);
  }

  AttentionShape shape_;
  RandomViewOptions options_;
  std::mt19937 random_;
  View view_;
};

struct Scores {
  bool masked = false;  // per row of the batch, 3 of 10 columns hidden
  double softcap = 0;   // 0: none
};

// The operator and the plain form agree; both compute in float32.
inline void expect_plain_form(const RandomView& random, const Scores& scores) {
  const View& view = random.view();
  const AttentionShape& shape = random.shape();
  const RandomViewOptions& options = random.options();
  const at::Tensor query =
      at::randn({shape.batch, shape.kv_heads * shape.group, shape.tokens, shape.key_dim})
          .to(options.dtype);
  AttentionMask mask;
  std::optional<at::Tensor> allowed;
  if (scores.masked || shape.tokens > 1) {
    mask = {
        AttentionMask::Kind::dense,
        at::rand({scores.masked ? shape.batch : 1, 1, shape.tokens, view.visible.length}).gt(0.3)};
    mask.allowed.select(3, view.visible.length - 1).fill_(true);
    allowed = mask.allowed.to(options.device);
  }
  const double scale = 1 / std::sqrt(static_cast<double>(shape.key_dim));
  const std::optional<double> cap =
      scores.softcap > 0 ? std::optional(scores.softcap) : std::nullopt;
  const at::Tensor result = detail::segment_attention(
      query.to(options.device), view, {.scale = scale, .softcap = cap, .allowed = allowed});
  const at::Tensor right =
      detail::segmented_attention(query, on_cpu(view), mask, {.scale = scale, .softcap = cap});
  ASSERT_EQ(result.device().type(), options.device.type());
  ASSERT_EQ(result.sizes(), right.sizes());
  ASSERT_EQ(result.scalar_type(), options.dtype);
  EXPECT_CLOSE(result.cpu(), right, options.dtype == at::kFloat ? 2e-5 : 4e-2);
}

inline std::vector<QuantizedCacheConfig> packed_configs(std::int64_t group) {
  std::vector<QuantizedCacheConfig> all{{.backend = "fp8"}};
  for (const std::int64_t nbits : {2, 4}) {
    for (const std::int64_t axis : {0, -1}) {
      all.push_back({.nbits = nbits, .axis_key = axis, .axis_value = axis, .q_group_size = group});
    }
  }
  for (const std::int64_t nbits : {1, 3, 8}) {
    all.push_back(
        {.backend = "hqq", .nbits = nbits, .axis_key = 0, .axis_value = 1, .q_group_size = group});
  }
  for (const std::int64_t nbits : {4, 8}) {
    all.push_back({.backend = "int", .nbits = nbits, .rotate_keys = nbits == 4});
  }
  all.push_back({.axis_key = -1, .q_group_size = group, .key_nbits = 2, .rotate_keys = true});
  return all;
}

// One head size, over groups and kinds of codes; all else is drawn by the seed.
inline void expect_plain_form_of_head(std::int64_t head_dim, std::uint32_t& seed,
                                      at::Device device) {
  for (const std::int64_t group : {8, 32, 64}) {
    for (const QuantizedCacheConfig& config : packed_configs(group)) {
      ++seed;
      SCOPED_TRACE(c10::str("head ", head_dim, ", group ", group, ", ", config.backend, " ",
                            config.nbits.value_or(8), ", seed ", seed));
      std::mt19937 random(seed);
      const auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
      const AttentionShape shape{.batch = 1 + below(3),
                                 .kv_heads = 1 + below(3),
                                 .group = 1 + below(5),
                                 .tokens = below(3) == 0 ? 1 + below(6) : 1,
                                 .key_dim = head_dim,
                                 .value_dim = below(4) == 0 ? 24 : head_dim};
      const at::ScalarType dtype = seed % 3 == 0   ? at::kFloat
                                   : seed % 3 == 1 ? at::kBFloat16
                                                   : at::kHalf;
      RandomView view(shape, {.dtype = dtype, .seed = seed, .device = device});
      view.add_packed(config, 1 + view.below(300));
      if (seed % 2 == 0) view.add_packed(config, 1 + view.below(80));
      if (seed % 5 != 0) view.add_dense(1 + view.below(140));
      expect_plain_form(view, {.masked = seed % 4 == 1, .softcap = seed % 7 == 0 ? 5.0 : 0.0});
    }
  }
}

inline void expect_plain_form_over_shapes(at::Device device) {
  std::uint32_t seed = 0;
  for (const std::int64_t head_dim : {16, 32, 64, 72, 80, 96, 128, 256}) {
    expect_plain_form_of_head(head_dim, seed, device);
  }
}

inline void expect_plain_form_at_every_length(at::Device device) {
  const AttentionShape shape{
      .batch = 1, .kv_heads = 2, .group = 3, .tokens = 1, .key_dim = 64, .value_dim = 64};
  for (std::int64_t length = 1; length <= 300; ++length) {
    SCOPED_TRACE(length);
    RandomView view(shape, {.seed = static_cast<std::uint32_t>(length), .device = device});
    view.add_packed({.nbits = 4, .axis_key = length % 2 == 0 ? 0 : -1}, length);
    expect_plain_form(view, {});
  }
  for (const std::int64_t length : {2047, 2048, 2049, 4096, 5000}) {
    SCOPED_TRACE(length);
    RandomView view(shape, {.device = device});
    view.add_packed({.nbits = 4}, length);
    view.add_dense(128);
    expect_plain_form(view, {.masked = true});
  }
}

// The widest heads, for many query rows, and more segments than go together in one launch.
inline void expect_plain_form_at_the_edges(at::Device device) {
  const AttentionShape wide{
      .batch = 2, .kv_heads = 1, .group = 4, .tokens = 16, .key_dim = 512, .value_dim = 512};
  RandomView of_wide(wide, {.device = device});
  of_wide.add_packed({.nbits = 4}, 70);
  of_wide.add_dense(40);
  expect_plain_form(of_wide, {.masked = true});
  const AttentionShape shape{
      .batch = 2, .kv_heads = 2, .group = 2, .tokens = 3, .key_dim = 20, .value_dim = 12};
  RandomView of_many(shape, {.device = device});
  for (int i = 0; i < 40; ++i) of_many.add_dense(1 + of_many.below(9));
  expect_plain_form(of_many, {.masked = true});
}

// Groups over tokens that crops left unfilled, anywhere.
inline void expect_plain_form_after_crops(at::Device device) {
  const AttentionShape shape{
      .batch = 2, .kv_heads = 2, .group = 3, .tokens = 1, .key_dim = 64, .value_dim = 64};
  const std::vector<std::vector<std::int64_t>> cases{
      {5}, {8, 3, 8, 8, 1}, {1, 8, 8}, {8, 8, 2, 2, 8, 8, 7, 8}, std::vector<std::int64_t>(50, 1)};
  for (const std::vector<std::int64_t>& valid : cases) {
    RandomView view(shape, {.device = device});
    view.add_cropped({.nbits = 4, .axis_key = -1, .axis_value = -1, .q_group_size = 8}, valid);
    view.add_dense(3);
    expect_plain_form(view, {});
  }
}

// A row that sees nothing is NaN, as softmax over nothing; the others are as they would be alone.
inline void expect_blind_rows_alone_are_nan(at::Device device) {
  const AttentionShape shape{
      .batch = 3, .kv_heads = 2, .group = 2, .tokens = 1, .key_dim = 64, .value_dim = 64};
  RandomView random(shape, {.device = device});
  random.add_packed({.nbits = 4}, 600);
  random.add_dense(10);
  const at::Tensor query = at::randn({3, 4, 1, 64}).to(device);
  at::Tensor allowed = at::ones({3, 1, 1, 610}, at::kBool);
  allowed[1].fill_(false);
  allowed[2].narrow(2, 0, 600).fill_(false);  // sees the last segment alone
  const at::Tensor result =
      detail::segment_attention(query, random.view(), {.allowed = allowed.to(device)});
  const at::Tensor right = detail::segmented_attention(query.cpu(), on_cpu(random.view()),
                                                       {AttentionMask::Kind::dense, allowed},
                                                       {.scale = 1, .softcap = std::nullopt});
  EXPECT_TRUE(result[1].isnan().all().item<bool>());
  for (const std::int64_t row : {0, 2}) EXPECT_CLOSE(result[row].cpu(), right[row], 2e-5);
}

}  // namespace kvcache::testing
