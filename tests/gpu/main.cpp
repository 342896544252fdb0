// Tests of what runs on a GPU. Without one: exit code 77 and a word why, which ctest shows as
// skipped. That the operators are there is seen without one.
#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "kvcache/kernels/segment_attention.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!kvcache::detail::has_segment_attention(at::kCUDA)) {
    std::puts("kvcache::cuda is linked, but its operators are not registered");
    return 1;
  }
  if (c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() == 0) {
    std::puts("skipped: no CUDA device is found, and all of these tests are about one");
    return 77;
  }
  return RUN_ALL_TESTS();
}
