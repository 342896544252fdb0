#include "kvcache/codec/hqq_codec.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <limits>

#include "codec/groups.h"
#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

using detail::Groups;

// The settings and the rule of hqq 0.2.8's default solver.
constexpr double kNorm = 0.7;         // p
constexpr double kBeta = 10;          // weight of the quadratic term
constexpr int kSteps = 20;            // at most
constexpr double kLeastRange = 1e-4;  // of a group, below which the step is 1
constexpr double kMostInverse = 2e4;  // of the inverse of a step

// Steps by which a zero may end up from where it began; hqq has no such bound, and none of its
// searches was seen to need it. It is what bounds the error.
constexpr double kMostMove = 0.5;

constexpr std::array<std::int64_t, 5> kBits = {1, 2, 3, 4, 8};

const AffineCodecOptions& checked(const AffineCodecOptions& options) {
  check_value(std::find(kBits.begin(), kBits.end(), options.bits) != kBits.end(), "nbits is ",
              options.bits, "; backend hqq takes 1, 2, 3, 4 or 8");
  return options;
}

// Groups while they are fitted: value = (code - zero) / inverse.
struct Search {
  at::Tensor values;   // as in Groups
  at::Tensor inverse;  // of the steps
  at::Tensor zero;
  at::Tensor counted;  // 1 where a group is finite, else 0
  at::Tensor first;    // zero, before the search
  double most;         // code

  at::Tensor codes() const { return values.mul(inverse).add_(zero).round_().clamp_(0, most); }
};

Search begin(const Groups& groups, double most) {
  const at::Tensor least = groups.values.amin({3, 5}, /*keepdim=*/true);
  const at::Tensor range = groups.values.amax({3, 5}, /*keepdim=*/true).sub_(least);
  const at::Tensor inverse = range.reciprocal()
                                 .mul_(most)
                                 .masked_fill_(range.abs().le(kLeastRange), 1)
                                 .clamp_max_(kMostInverse);
  const at::Tensor zero = least.neg().mul_(inverse);
  return {.values = groups.values,
          .inverse = inverse,
          .zero = zero,
          .counted = range.isfinite().to(at::kFloat),
          .first = zero,
          .most = most};
}

// The proximal operator of the p-norm.
at::Tensor shrunk(const at::Tensor& errors) {
  at::Tensor result = errors.abs();
  result.sub_(result.pow(kNorm - 1).mul_(1 / kBeta)).clamp_min_(0);
  return result.mul_(errors.sign());
}

// Moves the zeros of rows that are `running`, [batch, 1, 1, 1, 1, 1], and returns each row's sum of
// errors before that, of the same shape.
at::Tensor step(Search& search, const at::Tensor& running) {
  const at::Tensor codes = search.codes();
  const at::Tensor errors = search.values.sub(codes.sub(search.zero).div_(search.inverse));
  const at::Tensor zero = codes.sub(search.values.sub(shrunk(errors)).mul_(search.inverse))
                              .mean({3, 5}, /*keepdim=*/true);
  search.zero = at::where(running, zero, search.zero);
  const at::Tensor sums = errors.abs().sum({3, 5}, /*keepdim=*/true);
  return at::where(search.counted.gt(0), sums, at::zeros_like(sums))
      .sum({1, 2, 4}, /*keepdim=*/true);
}

}  // namespace

HqqCodec::HqqCodec(const AffineCodecOptions& options) : AffineCodec(checked(options)) {}

void HqqCodec::fit(std::vector<Groups>& groups, std::int64_t bits) const {
  std::vector<Search> searches;
  for (const Groups& each : groups) {
    searches.push_back(begin(each, static_cast<double>((std::int64_t{1} << bits) - 1)));
  }
  const at::Tensor& values = groups.front().values;
  const std::int64_t batch = values.size(0);
  at::Tensor best =
      at::full({batch, 1, 1, 1, 1, 1}, std::numeric_limits<float>::infinity(), values.options());
  at::Tensor running = at::ones_like(best, at::kBool);
  for (int i = 0; i < kSteps; ++i) {
    at::Tensor error = at::zeros_like(best);
    for (Search& search : searches) error.add_(step(search, running));
    running = running.logical_and(error.lt(best));
    best = at::where(running, error, best);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Search& found = searches[i];
    found.zero = found.zero.clamp(found.first.sub(kMostMove), found.first.add(kMostMove));
    groups[i].codes = found.codes().nan_to_num_(0);
    groups[i].scales = found.inverse.reciprocal();
    groups[i].offsets = found.zero.neg().div_(found.inverse);
  }
}

}  // namespace kvcache
