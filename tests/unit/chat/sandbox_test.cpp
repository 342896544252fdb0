// A template cannot take the program's time, memory or stack, nor reach beyond what it is given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcache/core/errors.h"
#include "rendered.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

std::string repeated(std::string_view part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

TEST(ChatSandboxTest, ErrorsNameTheLine) {
  EXPECT_EQ(outcome("a\n\n{{ 1 +\n missing.x }}"), "chat template, line 4: 'missing' is undefined");
  EXPECT_THAT(outcome("\n{% for x in 5 %}{% endfor %}"),
              HasSubstr("line 2: 'int' object is not iterable"));
  EXPECT_THAT(outcome("\n\n{% if %}"), HasSubstr("line 3: expected an expression"));
  EXPECT_THAT(outcome("{% if a %}\n{% for %}"), HasSubstr("line 2"));
  EXPECT_THAT(outcome("{{ 'a }}"), HasSubstr("a string is not closed"));
  EXPECT_THAT(outcome("{% if true %}"), HasSubstr("{% endif %}"));
  EXPECT_THAT(outcome("{{ (1 }}"), HasSubstr("expected"));
}

TEST(ChatSandboxTest, LargeValuesAreRefusedBeforeTheyAreMade) {
  EXPECT_THAT(outcome("{{ 'a' * 10 ** 9 }}"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{{ [1] * 10 ** 15 }}"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{{ range(10 ** 12) | list }}"), HasSubstr("larger than 100000"));
  EXPECT_THAT(outcome("{{ 'a'.center(10 ** 10) }}"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{{ 'a'.zfill(10 ** 18) }}"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{{ '%*d' % (10 ** 10, 1) }}"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{{ '{:9999999999}'.format(1) }}"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{{ 'a' | indent(10 ** 12) }}"), HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{% set a = 'a' * 10 ** 4 %}{{ a.replace('a', a).replace('a', a) }}"),
              HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{% set s = namespace(x='aa') %}{% for i in range(99) %}{% set s.x = s.x + "
                      "s.x %}{% endfor %}"),
              HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{% set s = namespace(x=[1]) %}{% for i in range(99) %}{% set s.x = [s.x, "
                      "s.x] %}{% endfor %}"),
              HasSubstr("limits.value_bytes"));
  EXPECT_THAT(outcome("{{ [1] | batch(10 ** 12, 0) | list }}"), HasSubstr("limits.steps"));
  EXPECT_THAT(outcome("{{ [1] | slice(10 ** 12) | list }}"), HasSubstr("limits.steps"));
}

TEST(ChatSandboxTest, IntegersStayWithin64Bits) {
  EXPECT_THAT(outcome("{{ 2 ** 63 }}"), HasSubstr("exceeds 64 bits"));
  EXPECT_THAT(outcome("{{ 9223372036854775807 + 1 }}"), HasSubstr("exceeds 64 bits"));
  EXPECT_THAT(outcome("{{ 9223372036854775808 }}"), HasSubstr("exceeds 64 bits"));
  EXPECT_THAT(outcome("{{ 3 ** 3 ** 9999999999 }}"), HasSubstr("exceeds 64 bits"));
}

TEST(ChatSandboxTest, StepsAreCounted) {
  const auto nested = [](int loops) {
    return repeated("{% for i in range(100000) %}", loops) + repeated("{% endfor %}", loops);
  };
  EXPECT_THAT(outcome(nested(2)), HasSubstr("more than 10000000 steps (limits.steps)"));
  EXPECT_THAT(outcome(nested(1), {.steps = 1000}), HasSubstr("more than 1000 steps"));
  EXPECT_EQ(outcome("{% for i in range(100) %}{% endfor %}", {.steps = 10'000}), "rendered: ");
}

TEST(ChatSandboxTest, OutputIsBounded) {
  EXPECT_THAT(outcome("{{ 'abcdef' }}", {.output_bytes = 5}),
              HasSubstr("longer than 5 bytes (limits.output_bytes)"));
  EXPECT_THAT(outcome("{% set a = 'a' * 10 ** 6 %}{% for i in range(100) %}{{ a }}{% endfor %}"),
              HasSubstr("limits.output_bytes"));
}

TEST(ChatSandboxTest, DeepSourcesDoNotOverflowTheStack) {
  const int n = 100'000;
  EXPECT_THAT(outcome("{{ " + repeated("(", n) + "1" + repeated(")", n) + " }}"),
              HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{{ " + repeated("[", n)), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{{ " + repeated("not ", n) + "1 }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{{ " + repeated("-", n) + "1 }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{{ 1" + repeated(" + 1", n) + " }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{{ 1" + repeated(" if 1 else 1", n) + " }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{{ messages" + repeated(".a", n) + " }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{{ 'a'" + repeated("|trim", n) + " }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome(repeated("{% if 1 %}", n)), HasSubstr("nests deeper"));
  EXPECT_THAT(outcome("{% set " + repeated("(", n)), HasSubstr("nests deeper"));
  EXPECT_EQ(rendered("{{ 1" + repeated(" ~ 1", 1000) + " }}").size(), 1001u);
  EXPECT_EQ(rendered("{% if 0 %}" + repeated("{% elif 0 %}", 1000) + "{% else %}a{% endif %}"),
            "a");
}

TEST(ChatSandboxTest, MacrosThatCallThemselvesEnd) {
  EXPECT_THAT(outcome("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("deeper than 1000 levels (limits.depth)"));
  EXPECT_EQ(
      rendered(
          "{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}")
          .size(),
      92u);
}

TEST(ChatSandboxTest, DeepValuesAreRefused) {
  constexpr std::string_view kGrow =
      "{% set s = namespace(x=[]) %}{% for i in range(9999) %}{% set s.x = ";
  for (const std::string_view part :
       {"[s.x]", "{'a': s.x}", "s.x | map('upper')", "[s.x].count", "(s.x, 1)[::1]"}) {
    SCOPED_TRACE(part);
    EXPECT_THAT(outcome(std::string(kGrow) + std::string(part) + " %}{% endfor %}"),
                HasSubstr("a value nests deeper than"));
  }
}

TEST(ChatSandboxTest, ThingsThatHoldThemselvesAreNoTrap) {
  EXPECT_THAT(outcome("{% set s = namespace() %}{% set s.s = s %}{{ s }}"),
              HasSubstr("namespaces that hold each other"));
  EXPECT_EQ(rendered("{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}"), "TrueFalse");
  EXPECT_EQ(rendered("{% set s = namespace() %}{% for i in [1] if i %}{% set s.l = loop %}{% "
                     "endfor %}{% set l = s.l %}{{ l.index }}"),
            "1");
}

TEST(ChatSandboxTest, NothingIsReachedBeyondTheValues) {
  EXPECT_EQ(rendered("{{ ''.__class__ }}{{ messages.__len__ }}{{ {}.__init__ is defined }}"),
            "False");
  EXPECT_THAT(outcome("{{ ''.__class__.__mro__ }}"), HasSubstr("unsafe"));
  EXPECT_THAT(outcome("{{ messages.append(1) }}"),
              HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(outcome("{{ messages[0].update({}) }}"), HasSubstr("unsafe"));
  EXPECT_THAT(outcome("{% set messages.x = 1 %}"), HasSubstr("no namespace"));
  EXPECT_THAT(outcome("{% set s = namespace() %}{% set s._x = 1 %}"), HasSubstr("underscore"));
  for (const std::string_view tag :
       {"include 'a'", "import 'a' as b", "from 'a' import b", "extends 'a'", "block a"}) {
    EXPECT_THAT(outcome("{% " + std::string(tag) + " %}"),
                HasSubstr("not supported in chat templates"));
  }
}

TEST(ChatSandboxTest, AMacroDoesNotOutliveItsBlock) {
  EXPECT_THAT(
      outcome("{% set s = namespace() %}{% for i in [1] %}{% macro m() %}{{ i }}{% endmacro %}"
              "{% set s.m = m %}{{ s.m() }}{% endfor %}{{ s.m() }}"),
      HasSubstr("called outside the block"));
}

TEST(ChatSandboxTest, WhatPythonHasAndThisHasNotIsNamed) {
  EXPECT_THAT(outcome("{{ 'a'.encode('utf8') }}"), HasSubstr("str.encode() is not supported"));
  EXPECT_THAT(outcome("{{ 'a' | nonsense }}"), HasSubstr("no filter is named 'nonsense'"));
  EXPECT_THAT(outcome("{{ 'a' is nonsense }}"), HasSubstr("no test is named 'nonsense'"));
  EXPECT_EQ(rendered("{% if 'nonsense' is filter %}{{ 'a' | nonsense }}{% endif %}b"), "b");
}

}  // namespace
}  // namespace kvcache
