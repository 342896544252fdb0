// White space around tags, literals, scopes and statements, in templates that can be read.
#include <gtest/gtest.h>

#include "rendered.h"

namespace kvcache {
namespace {

TEST(ChatWhitespaceTest, ANewlineBehindABlockFallsAway) {
  EXPECT_EQ(rendered("{% if true %}\na\n{% endif %}\nb"), "a\nb");
  EXPECT_EQ(rendered("{# note #}\nb"), "b");
  EXPECT_EQ(rendered("{{ 1 }}\nb"), "1\nb");
  EXPECT_EQ(rendered("{% if true +%}\nb{% endif %}"), "\nb");
}

TEST(ChatWhitespaceTest, BlanksBeforeABlockThatBeginsALineFallAway) {
  EXPECT_EQ(rendered("a\n  {% if true %}b{% endif %}"), "a\nb");
  EXPECT_EQ(rendered("a  {% if true %}b{% endif %}"), "a  b");
  EXPECT_EQ(rendered("a\n  {{ 1 }}"), "a\n  1");
  EXPECT_EQ(rendered("a\n  {%+ if true %}b{% endif %}"), "a\n  b");
  EXPECT_EQ(rendered("  {# note #}b"), "b");
}

TEST(ChatWhitespaceTest, AMinusTakesAllWhiteSpace) {
  EXPECT_EQ(rendered("a \n\n {%- if true -%} \n b \t{%- endif -%}\n c"), "abc");
  EXPECT_EQ(rendered("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(rendered("a \n {#- note -#} \n b"), "ab");
}

TEST(ChatWhitespaceTest, OneNewlineAtTheEndFallsAway) {
  EXPECT_EQ(rendered("a\n"), "a");
  EXPECT_EQ(rendered("a\n\n"), "a\n");
  EXPECT_EQ(rendered("a\r\nb\rc\r\n"), "a\nb\nc");
}

TEST(ChatWhitespaceTest, RawTextStays) {
  EXPECT_EQ(rendered("{% raw %}{{ x }}{% if %}{% endraw %}\nb"), "{{ x }}{% if %}b");
  EXPECT_EQ(rendered("a {%- raw -%} {#{% endraw %}"), "a{#");
}

TEST(ChatLiteralTest, EscapesAreThoseOfPython) {
  EXPECT_EQ(rendered(R"({{ 'a\n\t\x41\u00e9\U0001f600\101\q\'' "b" }})"),
            "a\n\tA\u00e9\U0001f600A\\q'b");
  EXPECT_EQ(rendered("{{ 1_000 + 0x1F + 0b11 + 0o17 }} {{ 1e3 }} {{ 1.5e-7 }}"),
            "1049 1000.0 1.5e-07");
}

TEST(ChatLiteralTest, ValuesPrintAsPythonPrintsThem) {
  EXPECT_EQ(rendered("{{ [none, true, 1.0, 'it\\'s', '\\n', (1,), {'a': {}}] }}"),
            "[None, True, 1.0, \"it's\", '\\n', (1,), {'a': {}}]");
  EXPECT_EQ(rendered("{{ 1e16 }} {{ 123456789.125 }} {{ 0.0001 }} {{ 1e-5 }} {{ -0.0 }}"),
            "1e+16 123456789.125 0.0001 1e-05 -0.0");
  EXPECT_EQ(rendered("{{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** -1 }} {{ 6 / 3 }}"),
            "3.5 -4 2 0.5 2.0");
}

TEST(ChatScopeTest, ALoopsAssignmentsEndWithTheRound) {
  EXPECT_EQ(
      rendered(
          "{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}"),
      "01020");
  EXPECT_EQ(rendered("{% set s = namespace(x=0) %}{% for i in [1, 2] %}{% set s.x = s.x + i %}{% "
                     "endfor %}{{ s.x }}"),
            "3");
  EXPECT_EQ(rendered("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
}

TEST(ChatScopeTest, MacrosSeeWhatTheirBlockSees) {
  EXPECT_EQ(rendered("{% macro m(a, b=a ~ '!') %}{{ a }}{{ b }}{{ later }}{% endmacro %}{% set "
                     "later = 3 %}{{ m('x') }}"),
            "xx!3");
  EXPECT_EQ(rendered("{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, k=2) }}"),
            "(1,){'k': 2}");
  EXPECT_THROW(rendered("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}"), std::invalid_argument);
}

TEST(ChatLoopTest, KnowsWhereItIs) {
  EXPECT_EQ(
      rendered(
          "{% for c in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}"
          "{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}"),
      "103TrueFalseb;212FalseFalseac;321FalseTrueb;");
  EXPECT_EQ(
      rendered(
          "{% for k, v in {'a': 1}.items() if v %}{{ k }}{{ v }}/{{ loop.length }}{% endfor %}"),
      "a1/1");
  EXPECT_EQ(rendered("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 2 "
                     "%}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "02");
  EXPECT_EQ(rendered("{% for i in [] %}{% else %}none{% endfor %}"), "none");
}

TEST(ChatUndefinedTest, PrintsNothingAndRefusesTheRest) {
  EXPECT_EQ(
      rendered("[{{ x }}{{ messages[0].y }}{{ messages[7] }}]{{ x is defined }}{{ x or 'd' }}"),
      "[]Falsed");
  EXPECT_THROW(rendered("{{ x.y }}"), std::invalid_argument);
  EXPECT_THROW(rendered("{{ x + 'a' }}"), std::invalid_argument);
  EXPECT_THROW(rendered("{{ x() }}"), std::invalid_argument);
}

TEST(ChatFilterTest, GeneratorsAreTrueAndEndOnce) {
  EXPECT_EQ(
      rendered("{% set g = [1, 2] | select('odd') %}{{ g | list }}{{ g | list }}{{ 1 if g }}"),
      "[1][]1");
  EXPECT_EQ(rendered("{% if [] | map('upper') %}yes{% endif %}"), "yes");
}

TEST(ChatFilterTest, SafeTextEscapesWhatIsAddedToIt) {
  EXPECT_EQ(rendered("{{ ('<a>' | safe) + '<b>' }}{{ ('<a>' | safe) ~ '<b>' }}"),
            "<a>&lt;b&gt;<a><b>");
}

}  // namespace
}  // namespace kvcache
