// libsentencepiece beside LibTorch: what it writes over when it is loaded is put back.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <gtest/gtest.h>

#include <cstdint>

C10_DECLARE_int(minloglevel);
C10_DECLARE_bool(caffe2_use_fatal_for_enforce);

namespace kvcache {
namespace {

TEST(SentencePieceFlags, LibTorchsAreUntouched) {
  EXPECT_EQ(FLAGS_minloglevel, 0);
  EXPECT_FALSE(FLAGS_caffe2_use_fatal_for_enforce);
}

#ifndef __SANITIZE_ADDRESS__  // whose allocator ends the process on its own

TEST(SentencePieceFlags, AnAllocationThatFailsThrows) {
  EXPECT_THROW(at::empty({std::int64_t{1} << 46}, at::kByte), c10::Error);
}

#endif

}  // namespace
}  // namespace kvcache
