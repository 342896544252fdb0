// Products of a few rows with a matrix, beside the same in float64.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "kvcache/kernels/few_rows.h"
#include "kvcache/models/linear.h"

namespace kvcache {
namespace {

using detail::few_row_product;
using detail::takes_few_rows;

// Largest part of what one rounding to the dtype, and sums of `width` float32 numbers of about 1,
// may cost.
double cost(const at::Tensor& result, const at::Tensor& exact, std::int64_t width) {
  const at::ScalarType dtype = result.scalar_type();
  const double rounding = dtype == at::kFloat ? 0 : dtype == at::kHalf ? 1.0 / 2048 : 1.0 / 256;
  const at::Tensor allowed = exact.abs() * rounding + 1e-6 * double(width);
  return ((result.to(at::kDouble) - exact).abs() / allowed).max().item<double>();
}

TEST(FewRows, EqualProductsInFloat64) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t width : {1, 3, 16, 63, 64, 65, 576, 1000}) {
      for (const std::int64_t out : {1, 3, 64, 67, 300}) {
        for (std::int64_t rows = 1; rows <= detail::kFewProductRows; ++rows) {
          const at::Tensor x = at::randn({rows, width}).to(dtype);
          const at::Tensor weight = at::randn({out, width}).to(dtype);
          const at::Tensor bias = at::randn({out}).to(dtype);
          const at::Tensor exact = x.to(at::kDouble).mm(weight.t().to(at::kDouble));
          ASSERT_TRUE(takes_few_rows(x, weight.t()));
          const at::Tensor plain = few_row_product(x, weight.t(), {});
          ASSERT_EQ(plain.scalar_type(), dtype);
          ASSERT_LE(cost(plain, exact, width), 1)
              << dtype << " [" << rows << ", " << width << "] [" << out << "]";
          const at::Tensor biased = few_row_product(x, weight.t(), bias);
          ASSERT_LE(cost(biased, exact + bias.to(at::kDouble), width), 1);
        }
      }
    }
  }
}

TEST(FewRows, AreTheSameOnAnyNumberOfThreads) {
  const at::Tensor x = at::randn({2, 576}), weight = at::randn({1537, 576});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = few_row_product(x, weight.t(), {});
  at::set_num_threads(3);
  const at::Tensor three = few_row_product(x, weight.t(), {});
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, three));
}

TEST(FewRows, RowsThatAreNotFiniteSpoilNoOthers) {
  at::Tensor x = at::randn({4, 40});
  const at::Tensor weight = at::randn({70, 40});
  const at::Tensor before = few_row_product(x, weight.t(), {});
  x[1].fill_(NAN);
  x[2][3] = INFINITY;
  const at::Tensor after = few_row_product(x, weight.t(), {});
  EXPECT_TRUE(at::equal(after[0], before[0]));
  EXPECT_TRUE(after[1].isnan().all().item<bool>());
  EXPECT_FALSE(after[2].isfinite().any().item<bool>());
  EXPECT_TRUE(at::equal(after[3], before[3]));
}

TEST(FewRows, RowsOfAnyStrideAreTaken) {
  const at::Tensor wide = at::randn({3, 128}), weight = at::randn({50, 64});
  const at::Tensor x = wide.narrow(1, 32, 64);
  ASSERT_TRUE(takes_few_rows(x, weight.t()));
  EXPECT_TRUE(at::equal(few_row_product(x, weight.t(), {}),
                        few_row_product(x.contiguous(), weight.t(), {})));
}

// What is left to LibTorch.
TEST(FewRows, TakesNoOthers) {
  const at::Tensor x = at::randn({2, 8}), weight = at::randn({6, 8});
  EXPECT_TRUE(takes_few_rows(x, weight.t()));
  EXPECT_FALSE(takes_few_rows(at::randn({5, 8}), weight.t()));
  EXPECT_FALSE(takes_few_rows(at::randn({0, 8}), weight.t()));
  EXPECT_FALSE(takes_few_rows(at::randn({2, 7}), weight.t()));
  EXPECT_FALSE(takes_few_rows(at::randn({2, 0}), at::randn({6, 0}).t()));
  EXPECT_FALSE(takes_few_rows(x, at::randn({8, 6})));                       // not transposed
  EXPECT_FALSE(takes_few_rows(x, at::randn({6, 16}).narrow(1, 0, 8).t()));  // rows apart
  EXPECT_FALSE(takes_few_rows(x, weight.to(at::kBFloat16).t()));
  EXPECT_FALSE(takes_few_rows(x.to(at::kDouble), weight.to(at::kDouble).t()));
  EXPECT_FALSE(takes_few_rows(x.to(at::kMeta), weight.to(at::kMeta).t()));
  EXPECT_FALSE(takes_few_rows(x, weight.clone().requires_grad_(true).t()));
}

// Parts of a map lie in its memory; their rows adjoin.
TEST(FewRows, PartsOfALinearMapGiveItsColumns) {
  const Linear whole(at::randn({30, 16}), at::randn({30}));
  const at::Tensor x = at::randn({2, 16});
  EXPECT_TRUE(at::equal(whole.part(7, 12)(x), whole(x).narrow(1, 7, 12)));
}

}  // namespace
}  // namespace kvcache
