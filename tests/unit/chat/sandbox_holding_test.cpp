// Values that hold each other, however many, neither overflow the stack nor outlive what they draw
// from; and what would take much memory is refused before it is made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "rendered.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

// The smallest integer, which has no literal.
const std::string kLeast = "(-9223372036854775807 - 1)";

// The kB that the kernel counts for this process under a name; 0 where it counts none.
long memory_kb(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stol(line.substr(name.size() + 1));
  }
  return 0;
}

// The kB that rendering takes at its peak above what the process had; 0 where nobody counts.
long peak_kb(std::string_view source, std::string& text) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const long before = memory_kb("VmRSS");
  text = outcome(source);
  return std::max(memory_kb("VmHWM") - before, 0L);
}

TEST(ChatSandboxHoldingTest, ALoopIsNotAskedWhileItDraws) {
  EXPECT_THAT(outcome("{% set ns = namespace(l=none, go=false) %}"
                      "{% for x in [1, 2, 3, 4] if not ns.go or ns.l.length > 100 %}"
                      "{% set ns.l = loop %}{% break %}{% endfor %}"
                      "{% set ns.go = true %}{{ ns.l.last }}"),
              HasSubstr("generator already executing"));
  EXPECT_THAT(outcome("{% set s = namespace(l='') %}"
                      "{% for x in [[s], [s]] | map('max', attribute='l.length') %}"
                      "{% set s.l = loop %}{% endfor %}"),
              HasSubstr("generator already executing"));
  // Two loops over one generator.
  EXPECT_THAT(outcome("{% set s = namespace(l='', g=0) %}"
                      "{% set s.g = [[s], [s], [s]] | map('max', attribute='l.length') %}"
                      "{% for x in s.g %}{% set s.l = loop %}{% break %}{% endfor %}"
                      "{{ s.g | list | length }}"),
              HasSubstr("generator already executing"));
  // It can be asked when it does not.
  EXPECT_EQ(rendered("{% set l = namespace(x=0) %}{% for x in [1, 2, 3] if x %}{% set l.x = loop %}"
                     "{% endfor %}{{ l.x.index }}{{ l.x.last }}{{ l.x.length }}"),
            "3True3");
}

TEST(ChatSandboxHoldingTest, WhatGeneratorsTakeAsArgumentsCountsInTheirDepth) {
  for (const std::string_view part :
       {"[0] | map('default', s.g, true)", "[0] | map(attribute='a', default=s.g)",
        "[0] | select('equalto', s.g)", "[0] | rejectattr(s.g)", "s.g | select",
        "[0] | selectattr('a', 'in', s.g)", "{'a': s.g} | items", "[s.g] | batch(1)"}) {
    SCOPED_TRACE(part);
    EXPECT_THAT(outcome("{% set s = namespace(g=[0]) %}{% for i in range(100000) %}{% set s.g = " +
                        std::string(part) + " %}{% endfor %}"),
                HasSubstr("a value nests deeper than"));
  }
  EXPECT_EQ(rendered("{{ [none] | map('default', [[2]], true) | list }}"), "[[[2]]]");
}

TEST(ChatSandboxHoldingTest, LoopsThatHoldEachOtherEnd) {
  EXPECT_EQ(outcome("{% set s = namespace(l=0) %}{% for i in range(100000) %}{% for x in [1] %}"
                    "{% if loop.changed(s.l) %}{% endif %}{% set s.l = loop %}{% endfor %}"
                    "{% endfor %}{% set s.l = 0 %}"),
            "rendered: ");
  // Each draws the next one only when that has become the last of a chain.
  EXPECT_EQ(outcome("{% set s = namespace(head=0, now=[0], next=0, new=0) %}"
                    "{% for i in range(100000) %}{% set s.next = 0 %}"
                    "{% for x in [s, s] | map(attribute='next') %}{% set s.new = loop %}{% break %}"
                    "{% endfor %}{% if i == 0 %}{% set s.head = s.new %}{% endif %}"
                    "{% set s.next = s.new %}{% set x = s.now | first %}{% set s.now = s.new %}"
                    "{% endfor %}{% set s.now = 0 %}{% set s.new = 0 %}{% set s.next = 0 %}"
                    "{% set s.head = 0 %}a"),
            "rendered: a");
  // A ring, and one that ends by an error.
  const std::string ring =
      "{% set s = namespace(l=0) %}{% for x in [s, s] | map(attribute='l') %}{% set s.l = loop %}";
  EXPECT_EQ(outcome(ring + "{% endfor %}{{ s.l.index }}"), "rendered: 2");
  EXPECT_THAT(outcome(ring + "{{ loop.index0 and 1 + '' }}{% endfor %}"), HasSubstr("unsupported"));
}

TEST(ChatSandboxHoldingTest, DrawingThatMakesOthersDrawIsBounded) {
  EXPECT_THAT(
      outcome("{% set s = namespace(last='') %}{% for i in range(20000) %}"
              "{% set n = namespace(l='') %}"
              "{% for x in [[n], [n]] | map('max', attribute='l.length') %}{% set n.loop = loop %}"
              "{% break %}{% endfor %}{% set n.l = s.last %}{% set s.last = n.loop %}"
              "{% endfor %}{{ s.last.length }}"),
      HasSubstr("deeper than 1000 levels (limits.depth)"));
  EXPECT_THAT(outcome("{% macro m() %}{% for x in [1] | select | select if m() %}{% endfor %}"
                      "{% endmacro %}{{ m() }}"),
              HasSubstr("deeper than 1000 levels (limits.depth)"));
}

TEST(ChatSandboxHoldingTest, MemoryIsAskedForBeforeItIsTaken) {
  const std::string large = "('a' * 67000000)";
  const std::string refused = "limits.value_bytes";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {large + " | list | length", refused},
      {"range(*" + large + ")", refused},
      {"dict(" + large + ")", "dict() needs pairs"},
      {large + " | last", "rendered: a"},
      {large + "[:] | length", "rendered: 67000000"},
      {large + "[::-2] | length", "rendered: 33500000"},
      {"[1] | sort(attribute=',' * 60000000)", refused},
      {"range(10000) | sort(attribute=',' * 1000)", refused},
      {"('a ' * 33000000).split() | length", refused},
      {"('a ' * 33000000).rsplit(' ') | length", refused},
      {"('\\n' * 60000000).splitlines() | length", refused},
      {"('\\n' * 60000000) | indent(0) | length", "limits.steps"},
      {"('&' * 60000000) | escape", refused},
      {"('\\x01' * 60000000) | tojson", "limits.steps"},
      {"['\\x01' * 60000000] | string", "limits.steps"},
      {"([1] * 2500000) | batch(1) | first", refused},
      {"[1] | slice(10 ** 12) | first", "limits.steps"}};
  for (const auto& [expression, expected] : cases) {
    SCOPED_TRACE(expression);
    std::string text;
    [[maybe_unused]] const long peak = peak_kb("{{ " + expression + " }}", text);
    EXPECT_THAT(text, HasSubstr(expected));
#ifndef __SANITIZE_ADDRESS__  // whose allocator keeps what is freed
    EXPECT_LT(peak, 600'000) << "kB";
#endif
  }
}

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
