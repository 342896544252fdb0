// What a template makes the program do is counted, whichever way it asks; and what takes time in
// the product of two sizes is done in time linear in them. A fault here shows as a test that runs
// for minutes or hours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendered.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

// Sets values up, then does something a hundred times: that ends by limits.steps where it counts
// twenty thousand steps or more each time, and not where it counts some hundred.
std::string over_and_over(std::string_view setup, std::string_view expression) {
  const std::string source = std::string(setup) +
                             "{% for i in range(100) %}{% set x = " + std::string(expression) +
                             " %}{% endfor %}";
  return outcome(source, {.steps = 2'000'000});
}

// The text of a JSON object {"d": {"k0": 0, "k1": 1, ...}}, and the same turned round as "e".
std::string large_dicts(int entries) {
  std::string there;
  std::string back;
  for (int i = 0; i < entries; ++i) {
    const auto entry = [](int n) { return "\"k" + std::to_string(n) + "\": 0"; };
    there += (i > 0 ? ", " : "") + entry(i);
    back += (i > 0 ? ", " : "") + entry(entries - 1 - i);
  }
  return R"({"d": {)" + there + R"(}, "e": {)" + back + "}}";
}

TEST(ChatSandboxWorkTest, SearchesAreLinear) {
  const std::string setup =
      "{% set text = 'a' * 4000000 %}{% set part = 'a' * 2000000 ~ 'b' %}"
      "{% set back = 'b' ~ 'a' * 2000000 %}";
  const auto with = [&](std::string_view expression) {
    return outcome(setup + "{{ " + std::string(expression) + " }}");
  };
  EXPECT_EQ(with("part in text"), "rendered: False");
  EXPECT_EQ(with("text.find(part)"), "rendered: -1");
  EXPECT_EQ(with("text.rfind(back)"), "rendered: -1");
  EXPECT_EQ(with("text.count(part)"), "rendered: 0");
  EXPECT_EQ(with("text.replace(part, '') | length"), "rendered: 4000000");
  EXPECT_EQ(with("text | replace(part, '') | length"), "rendered: 4000000");
  EXPECT_EQ(with("text.split(part) | length"), "rendered: 1");
  EXPECT_EQ(with("text.rsplit(back) | length"), "rendered: 1");
  EXPECT_EQ(with("text.partition(part)[0] | length"), "rendered: 4000000");
  EXPECT_EQ(with("text.rpartition(back)[2] | length"), "rendered: 4000000");
  EXPECT_EQ(with("('b' * 4000000).strip('a' * 2000000) | length"), "rendered: 4000000");
}

TEST(ChatSandboxWorkTest, LongTextsAreCountedHoweverTheyAreRead) {
  const std::string setup =
      "{% set a = 'a' * 1600000 %}{% set b = 'a' * 1600000 %}{% set l = [a, b] %}"
      "{% set d = {a: 1} %}{% set k = [{'k': a}, {'k': b}] %}";
  EXPECT_EQ(over_and_over(setup, "a.x"), "rendered: ");
  for (const std::string_view expression : {"l | sort",
                                            "l | min",
                                            "l | max(true)",
                                            "l | unique | list",
                                            "a.lower()",
                                            "a.isalpha()",
                                            "a | upper",
                                            "a is lower",
                                            "k | groupby('k')",
                                            "'b'.strip(a)",
                                            "'b'.startswith(a)",
                                            "'b'.find(a)",
                                            "'b' | replace(a, '')",
                                            "['b'] | map('replace', a, '') | list",
                                            "a in 'b'",
                                            "a == b",
                                            "d[b]",
                                            "d.get(b)",
                                            "b in d",
                                            "a < b",
                                            "a % ()",
                                            "k | map('attr', a) | list"}) {
    SCOPED_TRACE(expression);
    EXPECT_THAT(over_and_over(setup, expression),
                HasSubstr("more than 2000000 steps (limits.steps)"));
  }
}

TEST(ChatSandboxWorkTest, LargeValuesAreCountedHoweverTheyAreRead) {
  // A tuple of two of a tuple of two ...: a quarter of a million in 18.
  const std::string setup =
      "{% set n = namespace(t=(1,), u=(1,)) %}{% for i in range(17) %}"
      "{% set n.t = (n.t, n.t) %}{% set n.u = (n.u, n.u) %}{% endfor %}"
      "{% set t = n.t %}{% set u = n.u %}{% set texts = ('b',) * 250000 %}";
  EXPECT_EQ(over_and_over(setup, "t.x"), "rendered: ");
  for (const std::string_view expression :
       {"t in {}", "{}[t]", "{}.get(t)", "t is filter", "t is test", "{t: 1}", "dict([(t, 1)])",
        "t == u", "t < u", "[u].index(t)", "[u].count(t)", "t in [u]", "[t, u] | sort",
        "[t, u] | max", "[t, u] | unique | list", "'a'.startswith(texts)", "texts | list",
        "texts[:]"}) {
    SCOPED_TRACE(expression);
    EXPECT_THAT(over_and_over(setup, expression), HasSubstr("limits.steps"));
  }
  EXPECT_THAT(outcome("{% for i in range(100) %}{% set x = loop.changed(d) %}{% set x = d == e %}"
                      "{% endfor %}",
                      {}, large_dicts(20'000)),
              HasSubstr("limits.steps"));
}

TEST(ChatSandboxWorkTest, WhatEndsEarlyCostsLittle) {
  EXPECT_EQ(over_and_over("{% set l = [1] * 1000000 %}", "l.index(1)"), "rendered: ");
  EXPECT_EQ(over_and_over("{% set l = [1] * 1000000 %}", "l | last"), "rendered: ");
}

TEST(ChatSandboxWorkTest, ManyNamesAreFoundQuickly) {
  std::string source;
  for (int i = 0; i < 50'000; ++i) source += "{%set a" + std::to_string(i) + "=1%}";
  EXPECT_EQ(outcome(source + "{% for i in range(50000) %}{{ zz }}{{ zz }}{{ zz }}{% endfor %}"
                             "{{ a0 }}{{ a49999 }}"),
            "rendered: 11");
  EXPECT_EQ(
      outcome("{{ dict(**d) | length }}{{ namespace(**d).k99999 }}", {}, large_dicts(100'000)),
      "rendered: 1000000");
}

TEST(ChatSandboxWorkTest, NamesKeepTheirOrder) {
  std::string assigned = "{% set n = namespace(z=0) %}";
  std::string expected = "<Namespace {'z': 0";
  for (int i = 20; i > 0; --i) {
    const std::string name = "m" + std::to_string(i);
    assigned += "{% set n." + name + " = 1 %}{% set n." + name + " = 2 %}";
    expected += ", '" + name + "': 2";
  }
  EXPECT_EQ(rendered(assigned + "{{ n }}"), expected + "}>");
  EXPECT_EQ(rendered(assigned + "{{ n.m20 }}{{ n.m1 }}{{ n.z }}{{ n.y is defined }}"), "220False");
}

TEST(ChatSandboxWorkTest, LongNamesAreShortenedOrRefused) {
  EXPECT_THAT(outcome("{{ " + std::string(1001, 'a') + " }}"),
              HasSubstr("line 1: a name of 1001 bytes is longer than 1000"));
  EXPECT_EQ(outcome("{{ " + std::string(1000, 'a') + " }}"), "rendered: ");
  const std::string message = outcome("{{ {}['a' * 1000000 ~ 'b'] + 1 }}");
  EXPECT_THAT(message, HasSubstr("has no attribute 'aaa"));
  EXPECT_THAT(message, HasSubstr("aaab'"));
  EXPECT_LT(message.size(), 400u);
}

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
