// Text as Python has it: code points, full case mappings, formats, JSON.
#include <gtest/gtest.h>

#include "kvcache/core/errors.h"
#include "rendered.h"

namespace kvcache {
namespace {

TEST(ChatTextTest, LengthsAndPositionsAreCodePoints) {
  EXPECT_EQ(rendered("{{ 'é你😀' | length }} {{ 'é你😀'[1] }} {{ 'é你😀'[::-1] }} {{ 'é你😀'[-1:] }}"),
            "3 你 😀你é 😀");
  EXPECT_EQ(
      rendered("{{ 'é你😀x'.find('x') }} {{ 'éé'.center(5, '·') }} {{ 'a你b'.rfind('b', 1, 9) }}"),
      "3 ··éé· 2");
  EXPECT_EQ(rendered("{{ ['é', '\\u00a0', '\\u200b', '\\U000f0000'] }}"),
            "['é', '\\xa0', '\\u200b', '\\U000f0000']");
}

TEST(ChatTextTest, WhiteSpaceIsPythons) {
  EXPECT_EQ(rendered("[{{ '\\u00a0\\u2003 a\\u001c\\u3000' | trim }}]"), "[a]");
  EXPECT_EQ(rendered("{{ ' a\\u2003b  c '.split() }} {{ ' a b  c '.split(' ') }} {{ ' a b c "
                     "'.rsplit(none, 1) }}"),
            "['a', 'b', 'c'] ['', 'a', 'b', '', 'c', ''] [' a b', 'c']");
  EXPECT_EQ(rendered("{{ 'a\\r\\nb\\u2028c\\n'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}"),
            "['a', 'b', 'c']['a\\n', 'b']");
}

TEST(ChatTextTest, CasesAreUnicodes) {
  EXPECT_EQ(
      rendered("{{ 'straße ﬁ ŉ' | upper }} {{ 'ΣΑΣ ΣΑΣ1' | lower }} {{ 'İ' | lower | length }}"),
      "STRASSE FI ʼN σας σας1 2");
  EXPECT_EQ(rendered("{{ 'ǆx ßA' | capitalize }} {{ \"it's (a) test\".title() }} {{ \"it's (a) "
                     "test\" | title }}"),
            "ǅx ßa It'S (A) Test It's (A) Test");
  EXPECT_EQ(rendered("{{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ '四'.isnumeric() }} {{ "
                     "'é'.isalpha() }} {{ 'Ǆ'.isupper() }}"),
            "True False True True True");
}

TEST(ChatTextTest, LongPartsAreFoundFromBothSides) {
  const auto of = [](std::string_view expression) {
    return rendered("{% set t = 'ab' * 20 ~ 'c' %}{{ " + std::string(expression) + " }}");
  };
  EXPECT_EQ(of("t.split('ab' * 9)"), "['', '', 'ababc']");
  EXPECT_EQ(of("t.rsplit('ab' * 9)"), "['abab', '', 'c']");
  EXPECT_EQ(of("t.rsplit('ab' * 9, 1)"), "['ababababababababababab', 'c']");
  EXPECT_EQ(of("t.rpartition('ba' * 9)"), "('ababababababababababa', 'bababababababababa', 'bc')");
  EXPECT_EQ(of("t.rfind('ab' * 9)"), "22");
  EXPECT_EQ(of("t.find('ba' * 9)"), "1");
  EXPECT_EQ(of("t.rfind('aa' * 9)"), "-1");
  EXPECT_EQ(of("t.count('ab' * 9)"), "2");
  EXPECT_EQ(of("t.replace('ab' * 9, '-')"), "--ababc");
  EXPECT_EQ(of("t.replace('ab' * 9, '-', 1)"), "-abababababababababababc");
  EXPECT_EQ(of("['abc'.rfind(''), ''.find(''), ''.rfind('ab'), ''.find('ab')]"), "[3, 0, -1, -1]");
  EXPECT_EQ(of("'a,b,c'.rsplit(',', 1) ~ 'a,b,c'.split(',', 0)"), "['a,b', 'c']['a,b,c']");
  EXPECT_EQ(of("'ää1ä'.strip('abcdefghijklmnopqrstuvwxyzä')"), "1");
}

TEST(ChatTextTest, PartsAndEndsOfTexts) {
  EXPECT_EQ(rendered("{{ 'aäbö€c'[4:0:-2] }} {{ 'aäbö€c'[1::2] }} {{ 'aäbö€c'[-3:-1] }} "
                     "{{ 'abc'[5:] }} {{ 'abc'[::-1] }} {{ [1, 2, 3, 4][::-3] }}"),
            "€b äöc ö€  cba [4, 1]");
  EXPECT_EQ(
      rendered("{{ 'aäb€' | reverse }} {{ 'aäb€' | last }} {{ {'a': 1, 'b': 2} | last }} "
               "{{ range(5) | last }} {{ {'a': 1}.items() | last }} {{ '' | last is defined }}"),
      "€bäa € b 4 ('a', 1) False");
  EXPECT_EQ(rendered("{{ 'a\n\nb' | indent(2, true, true) }}|{{ 'a\n\nb\n' | indent }}"),
            "  a\n  \n  b|a\n\n    b\n");
}

TEST(ChatTextTest, PercentFormats) {
  EXPECT_EQ(rendered("{{ '%s|%5s|%-5s|%r' % ('a', 'é', 'b', 'c') }}"), "a|    é|b    |'c'");
  EXPECT_EQ(
      rendered(
          "{{ '%05d|%+.2f|%x|%#o|%e|%g|%c|%%' % (42, 2.675, 255, 8, 12345.678, 0.0001, 'z') }}"),
      "00042|+2.67|ff|0o10|1.234568e+04|0.0001|z|%");
  EXPECT_EQ(rendered("{{ '%(a)s-%(b)03d' % {'a': 1, 'b': 7} }} {{ '%s of %s' | format(1, [2]) }}"),
            "1-007 1 of [2]");
  EXPECT_THROW(rendered("{{ '%s' % (1, 2) }}"), ValueError);
  EXPECT_THROW(rendered("{{ '%d' % 'a' }}"), ValueError);
}

TEST(ChatTextTest, BraceFormats) {
  EXPECT_EQ(rendered("{{ '{} {} {{}} {x!r:>5}'.format(1, 'a', x='b') }}"), "1 a {}   'b'");
  EXPECT_EQ(rendered("{{ '{0:*^7}|{0:<7}|{1:08.3f}|{2:,}|{2:+d}|{1:.1%}|{3[k]}|{4}'.format('ab', "
                     "3.14159, 1234567, {'k': 9}, none) }}"),
            "**ab***|ab     |0003.142|1,234,567|+1234567|314.2%|9|None");
  EXPECT_THROW(rendered("{{ '{}'.format() }}"), ValueError);
  EXPECT_THROW(rendered("{{ '{'.format(1) }}"), ValueError);
}

TEST(ChatTextTest, JsonIsPythons) {
  constexpr const char* kValue =
      R"({"v": {"b": [1, 2.0, "é\"\n\u001f\u007f", null, true], "a": {}, "1e22": 1e22}})";
  EXPECT_EQ(rendered("{{ v | tojson }}", kValue),
            "{\"b\": [1, 2.0, \"é\\\"\\n\\u001f\x7f\", null, true], \"a\": {}, \"1e22\": 1e+22}");
  EXPECT_EQ(rendered("{{ v | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}", kValue),
            "{\n \"1e22\": 1e+22,\n \"a\": {},\n \"b\": [\n  1,\n  2.0,\n  "
            "\"\\u00e9\\\"\\n\\u001f\\u007f\",\n  null,\n  true\n ]\n}");
  EXPECT_EQ(rendered("{{ {1: 'x', none: 1, true: '😀'} | tojson(true, separators=[',', ':']) }}"),
            "{\"1\":\"\\ud83d\\ude00\",\"null\":1}");
  EXPECT_THROW(rendered("{{ missing | tojson }}"), ValueError);
}

TEST(ChatTextTest, NumbersAreReadAsPythonReadsThem) {
  EXPECT_EQ(rendered("{{ ' 1_000 ' | int }} {{ '0x1F' | int(0, 16) }} {{ '3.9' | int }} {{ 'x' | "
                     "int(7) }} {{ -3.9 | int }} {{ true | int }}"),
            "1000 31 3 7 -3 1");
  EXPECT_EQ(rendered("{{ '1e3' | float }} {{ '-inf' | float }} {{ 'nan' | float }} {{ 'x' | "
                     "float(0.5) }} {{ 2.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }}"),
            "1000.0 -inf nan 0.5 2.0 2.67 7");
}

}  // namespace
}  // namespace kvcache
