// Values that hold each other, however many, neither overflow the stack nor outlive what they draw
// from; and what would take much memory is refused before it is made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "rendered.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

// The smallest integer, which has no literal.
const std::string kLeast = "(-9223372036854775807 - 1)";

TEST(ChatSandboxHoldingTest, TheSmallestIntegerIsAnArgumentAsAnyOther) {
  const auto of = [](const std::string& expression) { return outcome("{{ " + expression + " }}"); };
  for (const std::string method : {"center", "ljust", "rjust", "zfill"}) {
    EXPECT_EQ(of("'a'." + method + "(" + kLeast + ")"), "rendered: a");
    EXPECT_EQ(of("'-1'." + method + "(" + kLeast + ")"), "rendered: -1");
  }
  EXPECT_EQ(of("'a' | center(" + kLeast + ")"), "rendered: a");
  EXPECT_THAT(of("'%*d' % (" + kLeast + ", 1)"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(of("'%*d' % (9223372036854775807, 1)"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(of("'ab'.center(9223372036854775807)"), HasSubstr("limits.value_bytes"));
  EXPECT_EQ(of("'abc'[::" + kLeast + "]"), "rendered: c");
  EXPECT_EQ(of("'abc'[" + kLeast + ":]"), "rendered: abc");
  EXPECT_EQ(of("[1, 2, 3][2:" + kLeast + ":-1]"), "rendered: [3, 2, 1]");
  EXPECT_EQ(of("[1, 2, 3][::9223372036854775807]"), "rendered: [1]");
  EXPECT_EQ(of(kLeast + " % -1"), "rendered: 0");
  EXPECT_EQ(of(kLeast + " is divisibleby(-1)"), "rendered: True");
  EXPECT_THAT(of(kLeast + " // -1"), HasSubstr("exceeds 64 bits"));
  EXPECT_EQ(of("range(" + kLeast + ", 9223372036854775807, 4611686018427387904) | list"),
            "rendered: [-9223372036854775808, -4611686018427387904, 0, 4611686018427387904]");
}

}  // namespace
}  // namespace kvcache
