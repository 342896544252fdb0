// What the library asks of LibTorch gives on the device what it gives on the CPU.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/sim/helpers.h"

namespace kvcache::testing::sim {
namespace {

struct Inputs {
  at::Tensor a, b;     // float [2, 3, 4]
  at::Tensor matrix;   // float [4, 5]
  at::Tensor ids;      // int64 [3], of rows
  at::Tensor mask;     // bool [2, 3, 4]
  at::Tensor q, k, v;  // float [2, 4, 3, 8] and [2, 2, 5, 8]

  Inputs to(at::Device to) const {
    return {a.to(to),    b.to(to), matrix.to(to), ids.to(to),
            mask.to(to), q.to(to), k.to(to),      v.to(to)};
  }
};

Inputs inputs() {
  const auto table = [](at::IntArrayRef sizes, double step) {
    return at::arange(c10::multiply_integers(sizes), at::kFloat).mul_(step).sin_().view(sizes);
  };
  return {table({2, 3, 4}, 0.7),     table({2, 3, 4}, 0.3),
          table({4, 5}, 0.9),        at::tensor({2, 0, 1}, at::kLong),
          table({2, 3, 4}, 1.1) > 0, table({2, 4, 3, 8}, 0.37),
          table({2, 2, 5, 8}, 0.23), table({2, 2, 5, 8}, 0.51)};
}

struct Operator {
  std::string name;
  std::function<at::Tensor(const Inputs&)> call;
};

void PrintTo(const Operator& op, std::ostream* out) { *out << op.name; }

std::vector<Operator> arithmetic() {
  using I = const Inputs&;
  return {
      {"add", [](I i) { return i.a + i.b; }},
      {"add_number", [](I i) { return i.a + 2; }},
      {"sub_scaled", [](I i) { return at::sub(i.a, i.b, 0.5); }},
      {"mul_", [](I i) { return i.a.clone().mul_(i.b); }},
      {"div_number_", [](I i) { return i.a.clone().div_(3).tanh_(); }},
      {"addcmul", [](I i) { return at::addcmul(i.a, i.b, i.b, 2); }},
      {"pow", [](I i) { return i.a.abs().pow(2.5); }},
      {"rsqrt", [](I i) { return i.a.square().add_(1).rsqrt_(); }},
      {"neg_exp_log", [](I i) { return i.a.neg().exp().add(1).log(); }},
      {"cos_sin", [](I i) { return i.a.cos() * i.b.sin(); }},
      {"complex",
       [](I i) {
         return at::view_as_real(at::view_as_complex(i.a.view({2, 3, 2, 2})).conj() * 2);
       }},
  };
}

std::vector<Operator> activations() {
  using I = const Inputs&;
  return {
      {"silu", [](I i) { return at::silu(i.a); }},
      {"gelu", [](I i) { return at::gelu(i.a, "tanh"); }},
      {"relu_sigmoid", [](I i) { return at::relu(i.a) + at::sigmoid(i.b); }},
      {"softplus", [](I i) { return at::softplus(i.a); }},
      {"softmax", [](I i) { return at::softmax(i.a, -1); }},
      {"softmax_float", [](I i) { return at::softmax(i.a.to(at::kBFloat16), -1, at::kFloat); }},
      {"log_softmax", [](I i) { return at::log_softmax(i.a, -1); }},
      {"logsumexp", [](I i) { return at::logsumexp(i.a, -1); }},
      {"layer_norm", [](I i) { return at::layer_norm(i.a, {4}); }},
  };
}

std::vector<Operator> products() {
  using I = const Inputs&;
  return {
      {"mm",
       [](I i) {
         return at::mm(i.a.view({6, 4}), i.matrix);
       }},
      {"matmul", [](I i) { return at::matmul(i.a, i.matrix); }},
      {"linear", [](I i) { return at::linear(i.a, i.matrix.t()); }},
      {"linear_bias", [](I i) { return at::linear(i.a, i.matrix.t(), i.matrix[0]); }},
      {"addmm",
       [](I i) {
         return at::addmm(i.matrix[0], i.a.view({6, 4}), i.matrix);
       }},
      {"bmm", [](I i) { return at::bmm(i.a, i.b.transpose(1, 2)); }},
      {"baddbmm_",
       [](I i) {
         return at::empty({2, 3, 3}, i.a.options()).zero_().baddbmm_(i.a, i.b.mT(), 0, 0.5);
       }},
      {"einsum",
       [](I i) {
         return at::einsum("bij,bkj->bik", {i.a, i.b});
       }},
      {"depthwise_conv",  // as a sum of shifted products: LibTorch's needs a kernel per device
       [](I i) {
         const at::Tensor x = at::constant_pad_nd(i.a, {2, 0});
         return (x.unfold(2, 3, 1) * i.matrix.narrow(0, 0, 3).narrow(1, 0, 3).view({1, 3, 1, 3}))
             .sum(-1);
       }},
  };
}

std::vector<Operator> reductions() {
  using I = const Inputs&;
  return {
      {"sum",
       [](I i) {
         return i.a.sum(at::IntArrayRef{0, 2});
       }},
      {"mean_keep", [](I i) { return i.a.mean({-1}, true); }},
      {"linalg_norm", [](I i) { return at::linalg_vector_norm(i.a, 2, {-1}, true); }},
      {"amax_amin", [](I i) { return i.a.amax(-1) - i.a.amin(-1); }},
      {"argmax", [](I i) { return i.a.argmax(-1); }},
      {"max_dim", [](I i) { return std::get<1>(i.a.max(1)); }},
      {"topk", [](I i) { return std::get<0>(i.a.topk(2)); }},
      {"sort", [](I i) { return std::get<1>(i.a.sort(-1, true)); }},
      {"cumsum", [](I i) { return i.a.cumsum(-1); }},
      {"any_all", [](I i) { return i.mask.any(-1).logical_xor(i.mask.all(-1)); }},
  };
}

std::vector<Operator> comparisons() {
  using I = const Inputs&;
  return {
      {"compare", [](I i) { return (i.a > i.b).logical_and((i.a <= 0.5).logical_not()); }},
      {"isin", [](I i) { return at::isin(i.ids, i.ids.narrow(0, 0, 2)); }},
      {"where", [](I i) { return at::where(i.mask, i.a, i.b); }},
      {"where_number", [](I i) { return at::where(i.mask, i.a, -1.0); }},
      {"masked_fill", [](I i) { return i.a.masked_fill(i.mask, -5); }},
      {"maximum_clamp", [](I i) { return at::maximum(i.a, i.b).clamp(-0.5, 0.5); }},
  };
}

std::vector<Operator> indexing() {
  using I = const Inputs&;
  return {
      {"index_select", [](I i) { return i.a.index_select(1, i.ids); }},
      {"embedding", [](I i) { return at::embedding(i.matrix, i.ids); }},
      {"gather",
       [](I i) {
         return i.a.gather(1, i.ids.view({1, 3, 1}).expand({2, 3, 4}));
       }},
      {"scatter_",
       [](I i) {
         return i.a.clone().scatter_(1, i.ids.view({1, 3, 1}).expand({2, 3, 4}), i.b);
       }},
      {"index_copy_", [](I i) { return i.a.clone().index_copy_(1, i.ids, i.b); }},
      {"index_add_", [](I i) { return i.a.clone().index_add_(1, i.ids, i.b); }},
      {"index_fill_", [](I i) { return i.a.clone().index_fill_(1, i.ids.narrow(0, 0, 1), 4); }},
      {"index",
       [](I i) {
         return i.a.index({at::indexing::Slice(), i.ids});
       }},
      {"index_put_", [](I i) { return i.matrix.clone().index_put_({i.ids}, i.matrix[3]); }},
  };
}

std::vector<Operator> shapes() {
  using I = const Inputs&;
  return {
      {"cat",
       [](I i) {
         return at::cat({i.a, i.b.narrow(1, 0, 1)}, 1);
       }},
      {"stack_split",
       [](I i) {
         return at::stack({i.a.split(2, 2)[1], i.b.chunk(2, 2)[0]});
       }},
      {"pad",
       [](I i) {
         return at::constant_pad_nd(i.a, {1, 2}, 7);
       }},
      {"repeat",
       [](I i) {
         return i.a.repeat({2, 1, 1});
       }},
      {"repeat_interleave", [](I i) { return i.a.repeat_interleave(2, 0); }},
      {"roll_flip", [](I i) { return i.a.roll(1, 1).flip({2}); }},
      {"tril_triu", [](I i) { return i.a.tril() + i.b.triu(1); }},
      {"permuted_copy",
       [](I i) {
         return i.a.permute({2, 0, 1}).contiguous();
       }},
      {"narrowed_copy_",
       [](I i) {
         const at::Tensor x = i.a.clone();
         x.narrow(2, 1, 2).copy_(i.b.narrow(2, 2, 2));
         return x;
       }},
      {"expanded",
       [](I i) {
         return i.matrix[0].view({1, 5}).expand({3, 5}).contiguous();
       }},
      {"unfold", [](I i) { return i.a.unfold(2, 2, 1).sum(-1); }},
  };
}

std::vector<Operator> new_tensors() {
  using I = const Inputs&;
  return {
      {"to_bfloat16", [](I i) { return i.a.to(at::kBFloat16); }},
      {"to_half_and_back", [](I i) { return i.a.to(at::kHalf).to(at::kFloat); }},
      {"arange", [](I i) { return at::arange(3, 9, 2, i.ids.options()); }},
      {"full_like", [](I i) { return at::full_like(i.a, 3).add_(at::ones_like(i.a)); }},
      {"zeros_eye",
       [](I i) {
         return at::zeros({3, 3}, i.a.options()) + at::eye(3, i.a.options());
       }},
      {"out",
       [](I i) {
         at::Tensor x = at::empty({0}, i.a.options());
         at::add_out(x, i.a, i.b);
         return x;
       }},
  };
}

class Operators : public ::testing::TestWithParam<Operator> {};

void expect_same(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_EQ(found.device(), device());
  EXPECT_EQ(found.dtype(), expected.dtype());
  EXPECT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(found.cpu(), expected, 1e-6, 1e-6)) << found << expected;
}

TEST_P(Operators, GiveWhatTheCpuGivesWithoutWaiting) {
  const Operator& op = GetParam();
  const Inputs host = inputs(), on_device = host.to(device());
  const at::Tensor expected = op.call(host);
  reset_counters();
  const at::Tensor found = op.call(on_device);
  EXPECT_EQ(counters().synchronous_ops, 0);
  EXPECT_EQ(counters().synchronizations, 0);
  expect_same(found, expected);
  const c10::InferenceMode inference;
  expect_same(op.call(host.to(device())), expected);
}

std::string name_of(const ::testing::TestParamInfo<Operator>& op) { return op.param.name; }

INSTANTIATE_TEST_SUITE_P(Arithmetic, Operators, ::testing::ValuesIn(arithmetic()), name_of);
INSTANTIATE_TEST_SUITE_P(Activations, Operators, ::testing::ValuesIn(activations()), name_of);
INSTANTIATE_TEST_SUITE_P(Products, Operators, ::testing::ValuesIn(products()), name_of);
INSTANTIATE_TEST_SUITE_P(Reductions, Operators, ::testing::ValuesIn(reductions()), name_of);
INSTANTIATE_TEST_SUITE_P(Comparisons, Operators, ::testing::ValuesIn(comparisons()), name_of);
INSTANTIATE_TEST_SUITE_P(Indexing, Operators, ::testing::ValuesIn(indexing()), name_of);
INSTANTIATE_TEST_SUITE_P(Shapes, Operators, ::testing::ValuesIn(shapes()), name_of);
INSTANTIATE_TEST_SUITE_P(NewTensors, Operators, ::testing::ValuesIn(new_tensors()), name_of);

TEST(DataDependentOperators, Wait) {
  const Inputs host = inputs(), on_device = host.to(device());
  reset_counters();
  expect_same(on_device.mask.nonzero(), host.mask.nonzero());
  expect_same(on_device.a.masked_select(on_device.mask), host.a.masked_select(host.mask));
  expect_same(on_device.a.index({on_device.mask}), host.a.index({host.mask}));
  EXPECT_FALSE(at::equal(on_device.a, on_device.b));
  EXPECT_TRUE(at::equal(on_device.a, on_device.a.clone()));
  EXPECT_EQ(on_device.ids[0].item<std::int64_t>(), 2);
  EXPECT_GE(counters().synchronous_ops, 6);
}

TEST(Attention, IsTheCpus) {
  const Inputs host = inputs(), on_device = host.to(device());
  for (const bool causal : {false, true}) {
    const auto attend = [&](const Inputs& i) {
      return at::scaled_dot_product_attention(i.q, i.k, i.v, {}, 0, causal, 0.4, true);
    };
    expect_same(attend(on_device), attend(host));
  }
  const auto masked = [](const Inputs& i) {
    const at::Tensor mask = at::ones({3, 5}, i.mask.options()).tril(2);
    return at::scaled_dot_product_attention(i.q, i.k, i.v, mask, 0, false, {}, true);
  };
  expect_same(masked(on_device), masked(host));
}

TEST(Operators, ShapesThatDoNotFitThrowAtTheCall) {
  const at::Tensor a = at::ones({2, 3}, device()), b = at::ones({2, 4}, device());
  EXPECT_THROW(a.add(b), c10::Error);
  EXPECT_THROW(at::mm(a, b), c10::Error);
  EXPECT_THROW(at::cat({a, b}, 0), c10::Error);
  EXPECT_THROW(a.clone().add_(b), c10::Error);
}

TEST(Operators, ViewsShareMemory) {
  const at::Tensor x = at::zeros({2, 6}, device());
  x.view({3, 4}).transpose(0, 1).select(0, 1).fill_(5);
  EXPECT_TRUE(at::equal(x.cpu(),
                        at::tensor({0, 5, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0}, at::kFloat).view({2, 6})));
  EXPECT_TRUE(x.is_alias_of(x.unsqueeze(0).expand({3, 2, 6})));
}

TEST(Operators, ResizeKeepsWhatWasThere) {
  at::Tensor x = at::arange(4, device());
  x.resize_({6});
  EXPECT_TRUE(at::equal(x.narrow(0, 0, 4).cpu(), at::arange(4)));
  at::Tensor y = at::empty({0}, x.options());
  y.set_(x);
  EXPECT_TRUE(y.is_alias_of(x));
  EXPECT_EQ(y.sizes(), x.sizes());
}

TEST(Operators, RandomNumbersAreTheCpus) {
  at::manual_seed(7);
  const at::Tensor on_device = at::randn({5}, device()).cpu();
  at::manual_seed(7);
  EXPECT_TRUE(at::equal(on_device, at::randn({5})));
}

TEST(Operators, GradientsFlow) {
  const at::Tensor x = at::ones({3}, device()).requires_grad_();
  (x * x * 2).sum().backward();
  EXPECT_TRUE(at::equal(x.grad().cpu(), at::full({3}, 4.0f)));
}

}  // namespace
}  // namespace kvcache::testing::sim
