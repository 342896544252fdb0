// See products.h. Compiled once for each kind of vectors (Highway).
#include "kernels/cpu/products.h"

#include <algorithm>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After it:
#include "hwy/highway.h"
#include "kernels/cpu/token_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

void multiply_impl(const Products& products, std::int64_t first, std::int64_t end) {
  with_reader(products.kind, 0, [&](auto reader) {
    using Reader = decltype(reader);
    const std::int64_t stride = products.width * Reader::kElementSize;
    for (std::int64_t row = first; row < end; row += kTile) {
      const std::uint8_t* data = products.matrix + row * stride;
      const std::int64_t count = std::min(kTile, end - row);
      const Rows rows{.data = data,
                      .end = data + count * stride,
                      .stride = stride,
                      .elements = products.width,
                      .count = count};
      in_fours(products.count, [&](std::int64_t vector, auto some) {
        HWY_ALIGN float dots[4 * kTile];
        dot_products<Reader, some()>(rows, products.vectors + vector * products.vector_ld,
                                     products.vector_ld, dots);
        for (std::int64_t v = 0; v < some(); ++v) {
          std::copy_n(dots + v * kTile, count, products.out + (vector + v) * products.out_ld + row);
        }
      });
    }
  });
}

}  // namespace kvcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::kernels {

HWY_EXPORT(multiply_impl);

void multiply(const Products& products, std::int64_t first, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(multiply_impl)(products, first, end);
}

}  // namespace kvcache::kernels
#endif
