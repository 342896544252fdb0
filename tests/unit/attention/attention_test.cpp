// Every path of attention() against one reference in float64.
#include "kvcache/attention/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvcache/retention/retention.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::difference;

struct Shape {
  std::int64_t batch = 1, heads = 4, kv_heads = 2, key_dim = 8, value_dim = 8;
};

struct Problem {
  at::Tensor query, keys, values;  // float64
  AttentionMask mask;
  AttentionOptions options;
};

Problem random_problem(const Shape& shape, std::int64_t tokens, std::int64_t columns) {
  const auto random = [&](std::int64_t heads, std::int64_t length, std::int64_t dim) {
    return at::randn({shape.batch, heads, length, dim}, at::kDouble);
  };
  return {random(shape.heads, tokens, shape.key_dim),
          random(shape.kv_heads, columns, shape.key_dim),
          random(shape.kv_heads, columns, shape.value_dim),
          {},
          {}};
}

// The definition: keys and values repeated, one softmax.
at::Tensor reference(const Problem& p) {
  const std::int64_t group = p.query.size(1) / p.keys.size(1);
  const auto repeated = [&](const at::Tensor& t) {
    return t.expand({p.query.size(0), -1, -1, -1}).repeat_interleave(group, 1);
  };
  const double scale = p.options.scale != 0 ? p.options.scale : 1 / std::sqrt(p.query.size(3));
  at::Tensor scores = at::matmul(p.query, repeated(p.keys).transpose(2, 3)) * scale;
  if (p.options.softcap) scores = at::tanh(scores / *p.options.softcap) * *p.options.softcap;
  if (p.options.bias.defined()) scores = scores + p.options.bias;
  at::Tensor allowed = p.mask.allowed;
  if (p.mask.kind == AttentionMask::Kind::causal) {
    allowed = at::ones({p.query.size(2), p.keys.size(2)}, at::kBool).tril();
  }
  if (allowed.defined()) {
    scores = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return at::matmul(at::softmax(scores, -1), repeated(p.values));
}

// The keys and values in segments of the given lengths; buffers have spare room, as storages do.
View view_of(const Problem& p, std::vector<std::int64_t> lengths, at::ScalarType dtype,
             bool shared_first = false) {
  View view;
  view.visible = {.length = p.keys.size(2), .offset = 5};
  view.batch = p.query.size(0);
  std::int64_t at = 0;
  for (const std::int64_t length : lengths) {
    const auto part = [&](const at::Tensor& t) {
      const std::int64_t rows = shared_first && at == 0 ? 1 : t.size(0);
      at::Tensor buffer = at::full({rows, t.size(1), length + 3, t.size(3)},
                                   std::numeric_limits<double>::quiet_NaN(), dtype);
      buffer.narrow(2, 1, length).copy_(t.narrow(0, 0, rows).narrow(2, at, length));
      return buffer.narrow(2, 1, length);
    };
    view.segments.push_back({part(p.keys), part(p.values), 5 + at});
    at += length;
  }
  return view;
}

double error_of(const Problem& p, const std::vector<std::int64_t>& lengths,
                at::ScalarType dtype = at::kFloat) {
  AttentionOptions options = p.options;
  if (options.bias.defined()) options.bias = options.bias.to(dtype);
  const at::Tensor result =
      attention(p.query.to(dtype), view_of(p, lengths, dtype), p.mask, options);
  EXPECT_EQ(result.scalar_type(), dtype);
  return difference(result, reference(p));
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t group : {1, 3, 8}) {
      for (const std::int64_t dim : {8, 12, 64, 128})
        all.push_back({batch, 2 * group, 2, dim, dim});
    }
  }
  all.push_back({2, 4, 2, 12, 8});
  all.push_back({2, 4, 4, 8, 24});
  return all;
}

// A mask under which row 1 is left padded; every query sees something.
AttentionMask padded_mask(const Shape& shape, std::int64_t tokens, std::int64_t columns) {
  const at::Tensor valid = at::ones({shape.batch, columns}, at::kBool);
  if (shape.batch > 1) valid[1].narrow(0, 0, columns / 2).fill_(false);
  return make_mask(
      {.visible = {.length = columns}, .seen = columns - tokens, .tokens = tokens, .valid = valid});
}

TEST(Attention, EqualsTheReferenceForOneToken) {
  for (const Shape& shape : shapes()) {
    Problem p = random_problem(shape, 1, 37);
    EXPECT_LE(error_of(p, {37}), 1e-5) << shape.heads << " heads of " << shape.key_dim;
    p.mask = padded_mask(shape, 1, 37);
    EXPECT_LE(error_of(p, {37}), 1e-5) << "padded, " << shape.heads << " of " << shape.key_dim;
  }
}

TEST(Attention, EqualsTheReferenceForManyTokens) {
  for (const Shape& shape : shapes()) {
    Problem p = random_problem(shape, 50, 50);
    p.mask = {AttentionMask::Kind::causal};
    EXPECT_LE(error_of(p, {50}), 1e-5) << shape.heads << " heads of " << shape.key_dim;
    p.mask = padded_mask(shape, 50, 50);
    EXPECT_LE(error_of(p, {50}), 1e-5) << "padded, " << shape.heads << " of " << shape.key_dim;
    p = random_problem(shape, 41, 80);
    p.mask = padded_mask(shape, 41, 80);
    EXPECT_LE(error_of(p, {80}), 1e-5) << "continued, " << shape.heads << " of " << shape.key_dim;
  }
}

TEST(Attention, EqualsTheReferenceForAFewTokens) {
  for (const std::int64_t tokens : {2, 3, 7}) {
    Problem p = random_problem({.batch = 2}, tokens, tokens);
    p.mask = {AttentionMask::Kind::causal};
    EXPECT_LE(error_of(p, {tokens}), 1e-5) << tokens;
    p = random_problem({.batch = 2}, tokens, 20);
    p.mask = padded_mask({.batch = 2}, tokens, 20);
    EXPECT_LE(error_of(p, {20}), 1e-5) << tokens;
  }
}

TEST(Attention, SegmentsEqualOneTensor) {
  for (const Shape& shape : shapes()) {
    for (const std::int64_t tokens : {1, 4, 60}) {
      Problem p = random_problem(shape, tokens, 60);
      p.mask = padded_mask(shape, tokens, 60);
      EXPECT_LE(error_of(p, {20, 40}), 1e-5) << shape.heads << " of " << shape.key_dim;
      EXPECT_LE(error_of(p, {1, 0, 58, 1}), 1e-5) << shape.heads << " of " << shape.key_dim;
    }
  }
  Problem causal = random_problem({}, 60, 60);
  causal.mask = {AttentionMask::Kind::causal};
  EXPECT_LE(error_of(causal, {30, 30}), 1e-5);
}

TEST(Attention, ASharedSegmentServesEveryRow) {
  for (const std::int64_t tokens : {1, 60}) {
    Problem p = random_problem({.batch = 3}, tokens, 60);
    p.keys.narrow(2, 0, 20).copy_(p.keys.narrow(0, 0, 1).narrow(2, 0, 20).clone());
    p.values.narrow(2, 0, 20).copy_(p.values.narrow(0, 0, 1).narrow(2, 0, 20).clone());
    p.mask = padded_mask({.batch = 3}, tokens, 60);
    View view = view_of(p, {20, 40}, at::kFloat, /*shared_first=*/true);
    EXPECT_EQ(view.segments[0].keys.size(0), 1);
    EXPECT_LE(difference(attention(p.query.to(at::kFloat), view, p.mask), reference(p)), 1e-5);

    Problem alone = random_problem({.batch = 3}, tokens, 60);
    alone.keys = alone.keys.narrow(0, 0, 1);
    alone.values = alone.values.narrow(0, 0, 1);
    alone.mask = p.mask;
    view = view_of(alone, {60}, at::kFloat);
    view.batch = 3;
    EXPECT_LE(difference(attention(alone.query.to(at::kFloat), view, alone.mask), reference(alone)),
              1e-5);
  }
}

TEST(Attention, ScaleAndSoftcap) {
  for (const std::int64_t tokens : {1, 50}) {
    Problem p = random_problem({}, tokens, 50);
    p.mask = padded_mask({}, tokens, 50);
    p.options = {.scale = 0.7};
    EXPECT_LE(error_of(p, {50}), 1e-5);
    p.options = {.scale = 0.7, .softcap = 2.0};
    EXPECT_LE(error_of(p, {50}), 1e-5);
    EXPECT_LE(error_of(p, {10, 40}), 1e-5);
  }
}

TEST(Attention, ABiasIsAddedToTheScores) {
  for (const Shape& shape : {Shape{}, Shape{.batch = 3}, Shape{.batch = 2, .kv_heads = 4},
                             Shape{.batch = 2, .heads = 8, .value_dim = 4}}) {
    for (const std::int64_t tokens : {1, 4, 50}) {
      Problem p = random_problem(shape, tokens, 50);
      for (const std::int64_t rows : {std::int64_t{1}, shape.batch}) {
        p.options = {.scale = 0.7, .bias = at::randn({rows, shape.heads, tokens, 50}, at::kDouble)};
        std::vector<AttentionMask> masks{{}, padded_mask(shape, tokens, 50)};
        if (tokens == 50) masks.push_back({AttentionMask::Kind::causal});
        for (const AttentionMask& mask : masks) {
          p.mask = mask;
          EXPECT_LE(error_of(p, {50}), 1e-5);
          EXPECT_LE(error_of(p, {20, 30}), 1e-5);
        }
      }
      p.options.softcap = 2.0;
      EXPECT_LE(error_of(p, {50}), 1e-5);
      EXPECT_LE(error_of(p, {50}, at::kBFloat16), 1e-1);
    }
  }
}

// Long enough that a fused kernel meets whole blocks of keys that a row does not see.
TEST(Attention, PaddedRowsGiveNoNaN) {
  const Shape shape{.batch = 2};
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{1300}, std::vector<std::int64_t>{600, 700}}) {
    Problem p = random_problem(shape, 1300, 1300);
    const at::Tensor valid = at::ones({2, 1300}, at::kBool);
    valid[1].narrow(0, 0, 1200).fill_(false);
    p.mask = make_mask({.visible = {.length = 1300}, .tokens = 1300, .valid = valid});
    EXPECT_LE(error_of(p, lengths), 1e-5);
  }
}

TEST(Attention, NarrowDtypesStayWithinTheirRounding) {
  for (const Shape& shape : shapes()) {
    for (const std::int64_t tokens : {1, 50}) {
      Problem p = random_problem(shape, tokens, 50);
      p.mask = padded_mask(shape, tokens, 50);
      for (at::Tensor* t : {&p.query, &p.keys, &p.values}) {
        *t = t->to(at::kBFloat16).to(at::kHalf).to(at::kDouble);  // exact in both
      }
      EXPECT_LE(error_of(p, {50}, at::kBFloat16), 4e-2);
      EXPECT_LE(error_of(p, {20, 30}, at::kBFloat16), 4e-2);
      EXPECT_LE(error_of(p, {50}, at::kHalf), 5e-3);
      EXPECT_LE(error_of(p, {20, 30}, at::kHalf), 5e-3);
    }
  }
}

// Scores beyond float16's range before they are scaled.
TEST(Attention, LargeScoresDoNotOverflowInHalfPrecision) {
  for (const std::int64_t tokens : {1, 50}) {
    Problem p = random_problem({.key_dim = 128, .value_dim = 128}, tokens, 50);
    p.query.mul_(40);
    p.keys.mul_(40);
    p.mask = padded_mask({}, tokens, 50);
    const View view = view_of(p, {50}, at::kHalf);
    EXPECT_TRUE(attention(p.query.to(at::kHalf), view, p.mask).isfinite().all().item<bool>());
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const Problem p = random_problem({}, 2, 6);
  const View view = view_of(p, {6}, at::kFloat);
  const at::Tensor query = p.query.to(at::kFloat);
  EXPECT_NO_THROW(attention(query, view, {}));
  EXPECT_THROW(attention(query[0], view, {}), ValueError);
  EXPECT_THROW(attention(query.narrow(1, 0, 3), view, {}), ValueError);
  EXPECT_THROW(attention(query.narrow(3, 0, 4), view, {}), ValueError);
  EXPECT_THROW(attention(query.repeat({2, 1, 1, 1}), view, {}), ValueError);
  EXPECT_THROW(attention(query.to(at::kHalf), view, {}), ValueError);
  EXPECT_THROW(attention(query, view, {AttentionMask::Kind::causal}), ValueError);
  EXPECT_THROW(
      attention(query, view, {AttentionMask::Kind::dense, at::ones({1, 1, 2, 5}, at::kBool)}),
      ValueError);
  EXPECT_THROW(attention(query, View{}, {}), ValueError);
  const auto refuses_bias = [&](const at::Tensor& bias) {
    EXPECT_THROW(attention(query, view, {}, {.bias = bias}), ValueError) << bias.sizes();
  };
  EXPECT_NO_THROW(attention(query, view, {}, {.bias = at::zeros({1, 4, 2, 6})}));
  refuses_bias(at::zeros({4, 2, 6}));
  refuses_bias(at::zeros({2, 4, 2, 6}));
  refuses_bias(at::zeros({1, 1, 2, 6}));
  refuses_bias(at::zeros({1, 4, 1, 6}));
  refuses_bias(at::zeros({1, 4, 2, 5}));
  refuses_bias(at::zeros({1, 4, 2, 6}, at::kHalf));
}

TEST(Attention, RefusesViewsThatDisagreeWithThemselves) {
  const Problem p = random_problem({.batch = 3}, 2, 6);
  const at::Tensor query = p.query.to(at::kFloat);
  const auto refuses = [&](auto change) {
    View view = view_of(p, {2, 4}, at::kFloat);
    change(view, view.segments[1]);
    EXPECT_THROW(attention(query, view, {}), ValueError);
  };
  refuses([](View&, Segment& s) { s.keys = s.keys.narrow(1, 0, 0); });
  refuses([](View&, Segment& s) { s.values = s.values.narrow(0, 0, 1); });
  refuses([](View&, Segment& s) { s.values = s.values.narrow(1, 0, 1); });
  refuses([](View&, Segment& s) { s.values = s.values.narrow(2, 0, 3); });
  refuses([](View&, Segment& s) { s.values = s.values.to(at::kHalf); });
  refuses([](View&, Segment& s) { s.values = at::Tensor(); });
  refuses([](View&, Segment& s) {
    s.keys = s.keys.narrow(0, 0, 2);
    s.values = s.values.narrow(0, 0, 2);
  });
  refuses([](View& view, Segment&) { view.visible.length = 7; });
}

}  // namespace
}  // namespace kvcache
