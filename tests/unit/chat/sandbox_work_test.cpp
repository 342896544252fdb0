// What a template makes the program do is counted, whichever way it asks; and what takes time in
// the product of two sizes is done in time linear in them. A fault here shows as a test that runs
// for minutes or hours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendered.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

TEST(ChatSandboxWorkTest, CompilingIsLinear) {
  std::string macros;
  for (int i = 0; i < 50'000; ++i) {
    macros += "{%macro a()%}{{x" + std::to_string(i) + "}}{%endmacro%}";
  }
  EXPECT_EQ(outcome(macros), "rendered: ");
  std::string call = "{{ dict(";
  for (int i = 0; i < 100'000; ++i) call += "a" + std::to_string(i) + "=1,";
  EXPECT_EQ(outcome(call + ") | length }}"), "rendered: 100000");
  EXPECT_THAT(outcome("{{ dict(a=1, b=2, a=3) }}"), HasSubstr("the argument a is given twice"));
  // What stands around a macro is no part of it.
  EXPECT_THAT(outcome("{{ kwargs }}{% macro m() %}{{ a }}{% endmacro %}{{ m(b=1) }}"),
              HasSubstr("takes no keyword argument 'b'"));
}

TEST(ChatSandboxWorkTest, LongTemplatesAreRefused) {
  const std::size_t most = std::size_t{2} << 20;
  EXPECT_EQ(rendered(std::string(most, 'a')).size(), most);
  EXPECT_EQ(outcome(std::string(most + 1, 'a')),
            "the chat template is 2097153 bytes long; at most 2097152 are read");
}

}  // namespace
}  // namespace kvcache
