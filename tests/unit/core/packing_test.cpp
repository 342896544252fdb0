// Codes to bytes and back, and packed states to numbers.

#include "kvcache/core/packing.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::listed;
using testing::refusal;
using Numbers = std::vector<std::int64_t>;

at::Tensor bytes_of(const Numbers& codes) { return at::tensor(codes, at::kLong).to(at::kByte); }

TEST(Packing, CodesLieFromTheLowestBitOn) {
  EXPECT_EQ(listed(pack_codes(bytes_of({1, 2, 3}), 4)), (Numbers{0x21, 0x03}));
  EXPECT_EQ(listed(pack_codes(bytes_of({1, 2, 3, 0, 3}), 2)), (Numbers{0b00111001, 0b11}));
  EXPECT_EQ(listed(pack_codes(bytes_of({1, 0, 1, 1, 0, 0, 0, 1, 1}), 1)),
            (Numbers{0b10001101, 0b1}));
  // 1 | 2 << 3 | 3 << 6 | 4 << 9 | 5 << 12 | 6 << 15 | 7 << 18 | 0 << 21
  EXPECT_EQ(listed(pack_codes(bytes_of({1, 2, 3, 4, 5, 6, 7, 0}), 3)), (Numbers{0xD1, 0x58, 0x1F}));
  EXPECT_EQ(listed(pack_codes(bytes_of({250, 7}), 8)), (Numbers{250, 7}));
}

TEST(Packing, WhatWasPackedComesBack) {
  at::manual_seed(1);
  for (const std::int64_t bits : {1, 2, 3, 4, 8}) {
    for (std::int64_t count = 1; count <= 33; ++count) {
      const at::Tensor codes = at::randint(1 << bits, {2, 3, 2, count}).to(at::kByte);
      const at::Tensor packed = pack_codes(codes, bits);
      EXPECT_EQ(packed.size(3), (count * bits + 7) / 8);
      EXPECT_TRUE(at::equal(unpack_codes(packed, bits, count), codes)) << bits << " " << count;
    }
  }
}

TEST(Packing, BitsAndLengthsThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal<ValueError>([&] { pack_codes(bytes_of({1}), 5); }),
              AllOf(HasSubstr("5 bits"), HasSubstr("1, 2, 3, 4 or 8")));
  EXPECT_THAT(refusal<ValueError>([&] {
                unpack_codes(bytes_of({1, 2}), 4, 5);
              }),
              AllOf(HasSubstr("5 codes of 4 bits"), HasSubstr("2 bytes")));
}

// 5 tokens of 3 channels, code i at token i; groups of 2 tokens.
PackedStates small(std::vector<std::int64_t> valid) {
  const auto groups = static_cast<std::int64_t>(valid.empty() ? std::size_t{3} : valid.size());
  const at::Tensor codes = at::arange(5, at::kLong).view({1, 1, 5, 1}).expand({1, 1, 5, 3});
  return {.format = {.bits = 4, .head_dim = 3, .group_channels = 1, .group_tokens = 2},
          .codes = pack_codes(codes.to(at::kByte), 4),
          .scales = at::full({1, 1, groups, 3}, 2.0),
          .offsets = at::arange(groups).mul(100).view({1, 1, groups, 1}).expand({1, 1, groups, 3}) +
                     at::tensor({0.0F, 10.0F, 20.0F}),
          .valid = std::move(valid)};
}

TEST(Unpack, EachTokenHasTheScaleOfItsGroup) {
  const at::Tensor full = unpack(small({}), at::kFloat);
  EXPECT_EQ(listed(full.select(3, 0)), (Numbers{0, 2, 104, 106, 208}));
  EXPECT_EQ(listed(full.select(3, 2)), (Numbers{20, 22, 124, 126, 228}));
  const at::Tensor cropped = unpack(small({2, 1, 1, 1}), at::kFloat);
  EXPECT_EQ(listed(cropped.select(3, 0)), (Numbers{0, 2, 104, 206, 308}));
  EXPECT_EQ(unpack(small({}), at::kHalf).scalar_type(), at::kHalf);
}

TEST(Unpack, TensorsThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal<ValueError>([&] {
                unpack(small({2, 2}), at::kFloat);
              }),
              AllOf(HasSubstr("5 packed tokens"), HasSubstr("groups of 4")));
  PackedStates few = small({});
  few.scales = few.scales.narrow(2, 0, 2);
  EXPECT_THAT(refusal<ValueError>([&] { unpack(few, at::kFloat); }),
              AllOf(HasSubstr("scales and offsets"), HasSubstr("[batch, kv_heads, 3, 3]")));
  PackedStates wide = small({});
  wide.format.head_dim = 9;
  EXPECT_THAT(refusal<ValueError>([&] { unpack(wide, at::kFloat); }),
              AllOf(HasSubstr("packed codes"), HasSubstr("tokens, 5]")));
  PackedStates none = small({});
  none.offsets.reset();
  EXPECT_THAT(refusal<ValueError>([&] { unpack(none, at::kFloat); }),
              HasSubstr("scales and offsets"));
}

}  // namespace
}  // namespace kvcache
