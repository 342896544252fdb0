// What goldens do not show: errors, damaged files, long texts, threads.
#include "kvcache/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "golden_files.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"
#include "tests/support/refusal.h"
#include "text/pattern.h"

namespace kvcache::test {
namespace {

using kvcache::testing::refusal;
using nlohmann::json;
using ::testing::HasSubstr;

json minimal() {
  return {{"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}}},
            {"merges", {"a b", "ab a"}}}}};
}

Tokenizer tokenizer_of(const json& root) { return Tokenizer::from_json(root.dump()); }

std::string refusal_of(const json& root) {
  return refusal<ValueError>([&] { tokenizer_of(root); });
}

TEST(Tokenizer, BothFormsOfMergesMeanTheSame) {
  json pairs = minimal();
  pairs["model"]["merges"] = json::array({json::array({"a", "b"}), json::array({"ab", "a"})});
  for (const auto& root : {minimal(), pairs}) {
    const Tokenizer tokenizer = Tokenizer::from_json(root.dump());
    EXPECT_EQ(tokenizer.encode("abab"), (Ids{2, 2}));
    EXPECT_EQ(tokenizer.encode("ababa"), (Ids{2, 3}));
    EXPECT_EQ(tokenizer.decode(Ids{2, 3}), "ab aba");  // no decoder: joined by spaces
  }
}

TEST(Tokenizer, VocabularyLookups) {
  const Tokenizer tokenizer = Tokenizer::from_file(text_goldens() / "qwen/tokenizer.json");
  const auto id = tokenizer.token_to_id("<|im_end|>");
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(tokenizer.id_to_token(*id), "<|im_end|>");
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_FALSE(tokenizer.special_ids().eos.has_value());
  for (std::int64_t i = 0; i < tokenizer.vocab_size(); ++i) {
    EXPECT_EQ(tokenizer.token_to_id(tokenizer.id_to_token(i)), i);
  }
}

TEST(Tokenizer, UnknownIdsAreRefused) {
  const Tokenizer tokenizer = Tokenizer::from_json(minimal().dump());
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 40}) {
    EXPECT_THAT(refusal<ValueError>([&] {
                  tokenizer.decode(Ids{0, id});
                }),
                HasSubstr(std::to_string(id)));
    EXPECT_THROW(tokenizer.id_to_token(id), ValueError);
  }
}

TEST(Tokenizer, InvalidUtf8IsRefusedWithItsOffset) {
  const Tokenizer tokenizer = Tokenizer::from_file(text_goldens() / "smollm/tokenizer.json");
  const std::pair<std::string, int> cases[] = {
      {"\xFF", 0},      {"ab\x80", 2},         {"abc\xC3", 3},
      {"a\xC0\xAF", 1}, {"\xED\xA0\x80", 0},   {"x\xF4\x90\x80\x80", 1},
      {"é\xE4\xBD", 2}, {"é\xF0\x9F\x98x", 2}, {"\xE0\x80\x80", 0}};
  for (const auto& [text, offset] : cases) {
    EXPECT_THAT(refusal<ValueError>([&] { tokenizer.encode(text); }),
                HasSubstr("offset " + std::to_string(offset)));
    EXPECT_THROW(tokenizer.pre_tokenize(text), ValueError);
  }
}

TEST(Tokenizer, UnknownComponentsAreNamedWithTheKnownOnes) {
  const std::pair<const char*, const char*> cases[] = {{"normalizer", "NFKC"},
                                                       {"pre_tokenizer", "ByteLevel"},
                                                       {"post_processor", "TemplateProcessing"},
                                                       {"decoder", "ByteFallback"},
                                                       {"model", "BPE"}};
  for (const auto& [key, known] : cases) {
    json root = minimal();
    root[key] = {{"type", "Nonesuch"}};
    const std::string message = refusal_of(root);
    EXPECT_THAT(message, HasSubstr("tokenizer." + std::string(key)));
    EXPECT_THAT(message, HasSubstr("Nonesuch"));
    EXPECT_THAT(message, HasSubstr(known));
  }
}

TEST(Tokenizer, FilesThatCannotMeanAnythingExactAreRefused) {
  const auto with = [](const char* pointer, const json& value) {
    json root = minimal();
    root[json::json_pointer(pointer)] = value;
    return refusal_of(root);
  };
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(with("/model/vocab/b", 0), HasSubstr("id 0"));
  EXPECT_THAT(with("/model/vocab/b", -1), HasSubstr("vocab[\"b\"]"));
  EXPECT_THAT(with("/model/merges/0", "a c"), HasSubstr("\"c\""));
  EXPECT_THAT(with("/model/merges/0", "a b c"), HasSubstr("merges[0]"));
  EXPECT_THAT(with("/version", "2.0"), HasSubstr("version"));
  EXPECT_THAT(with("/added_tokens", {{{"id", 9}, {"content", "<x>"}}}), HasSubstr("gives it 4"));
  json root = minimal();
  root["model"]["dropout"] = 0.0;
  root["added_tokens"] = {{{"id", 4}, {"content", "<x>"}}};
  EXPECT_NO_THROW(tokenizer_of(root));
}

TEST(Tokenizer, MetaspaceFieldsAreChecked) {
  const std::pair<json, const char*> cases[] = {
      {{{"replacement", "\u2581"}, {"add_prefix_space", false}}, "add_prefix_space"},
      {{{"replacement", "\u2581"}, {"prepend_scheme", "Always"}}, "always, first, never"},
      {{{"replacement", "ab"}}, "one character"},
      {{{"replacement", ""}}, "one character"},
      {{{"replacement", "_"}, {"split", 1}}, "split"},
      {json::object(), "replacement"}};
  for (const char* key : {"pre_tokenizer", "decoder"}) {
    for (const auto& [fields, message] : cases) {
      json root = minimal();
      root[key] = fields;
      root[key]["type"] = "Metaspace";
      EXPECT_THAT(refusal_of(root), HasSubstr(message)) << root[key];
    }
    json root = minimal();
    root[key] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
    EXPECT_NO_THROW(tokenizer_of(root));
    root[key]["add_prefix_space"] = false;
    root[key]["prepend_scheme"] = "never";
    EXPECT_NO_THROW(tokenizer_of(root));
  }
}

// "first" asks where a piece lies in the text before normalization; where that is not sure, it is
// refused.
TEST(Tokenizer, MetaspaceForTheFirstPieceIsExactOrRefused) {
  const json first = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  json root = minimal();
  root["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {{{"type", "WhitespaceSplit"}}, first}}};
  EXPECT_THAT(refusal_of(root), HasSubstr("first of a Sequence"));
  root["pre_tokenizer"] = first;
  const json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const auto replace = [](const char* pattern, const char* content) {
    return json{{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
  };
  for (const json& normalizer :
       {strip, json{{"type", "StripAccents"}}, replace("a", ""), replace("ab", "c"),
        json{{"type", "Sequence"}, {"normalizers", json::array({strip})}}}) {
    root["normalizer"] = normalizer;
    EXPECT_THAT(refusal_of(root), HasSubstr("start of a text")) << normalizer;
  }
  root["normalizer"] = replace(" ", "_");
  EXPECT_NO_THROW(tokenizer_of(root));
}

TEST(Tokenizer, DeepNestingIsRefused) {
  for (const int depth : {40, 100000}) {
    std::string normalizer = "{\"type\":\"NFC\"}";
    std::string open;
    std::string close;
    for (int i = 0; i < depth; ++i) {
      open += "{\"type\":\"Sequence\",\"normalizers\":[";
      close += "]}";
    }
    std::string text = minimal().dump();
    text.insert(1, "\"normalizer\":" + open + normalizer + close + ",");
    EXPECT_THAT(refusal<ValueError>([&] { Tokenizer::from_json(text); }),
                HasSubstr("nested deeper"));
  }
}

TEST(Tokenizer, TextThatNormalizersMultiplyIsRefused) {
  json root = minimal(), steps = json::array();
  for (int i = 0; i < 40; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaa"}});
  }
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const Tokenizer tokenizer = Tokenizer::from_json(root.dump());
  EXPECT_THAT(refusal<ValueError>([&] { tokenizer.encode("a"); }), HasSubstr("Replace"));
}

TEST(Tokenizer, DamagedTextIsRefused) {
  for (const char* text :
       {"", "{", "null", "[]", "7", "{}", "{\"model\":null}", "\xFF", "{\"model\":{\"type\":3}}"}) {
    EXPECT_THROW(Tokenizer::from_json(text), ValueError) << text;
  }
  EXPECT_THROW(Tokenizer::from_json(std::string(200000, '[')), ValueError);
  EXPECT_THAT(refusal<ValueError>([] { Tokenizer::from_file("/nonexistent/tokenizer.json"); }),
              HasSubstr("/nonexistent/tokenizer.json"));
  EXPECT_THROW(Tokenizer::from_file("/"), ValueError);
}

// Every value of the file, by pointer, vocabulary and merges only in part.
std::vector<json::json_pointer> pointers_of(const json& root) {
  std::vector<json::json_pointer> pointers;
  const json flat = root.flatten();
  int skipped = 0;
  for (const auto& [key, value] : flat.items()) {
    const bool bulk = key.starts_with("/model/vocab") || key.starts_with("/model/merges");
    if (bulk && ++skipped % 97 != 0) continue;
    for (json::json_pointer at(key); !at.empty(); at = at.parent_pointer()) pointers.push_back(at);
  }
  return pointers;
}

// Wrong types and values everywhere: a tokenizer, or a ValueError; and what loads works or refuses.
TEST(Tokenizer, MutatedFilesNeverDoHarm) {
  const json replacements[] = {nullptr,
                               true,
                               -1,
                               3,
                               2147483648,
                               1.5,
                               "",
                               "x",
                               "\xEF\xBF\xBD",
                               json::array(),
                               json::object(),
                               {1, 2},
                               {{"type", "Sequence"}},
                               {{"Regex", "(("}},
                               {{"Regex", "a*"}}};
  std::mt19937 random(11);
  int refused = 0;
  int loaded = 0;
  for (const char* name : {"qwen", "llama3", "byte_fallback", "flags", "mistral", "gemma"}) {
    const json original = read_golden(std::string(name) + "/tokenizer.json");
    const auto pointers = pointers_of(original);
    for (int round = 0; round < 150; ++round) {
      json root = original;
      const auto& at = pointers[random() % pointers.size()];
      const auto choice = random() % (std::size(replacements) + 1);
      if (choice < std::size(replacements)) {
        root[at] = replacements[choice];
      } else if (auto& parent = root[at.parent_pointer()]; parent.is_object()) {
        parent.erase(at.back());
      }
      try {
        const Tokenizer tokenizer = Tokenizer::from_json(root.dump());
        const auto ids = tokenizer.encode("Hello  <|im_end|> caf\u00e9 \u4f60 123\n");
        tokenizer.decode(ids);
        ++loaded;
      } catch (const ValueError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(loaded, 20);
}

TEST(Tokenizer, TruncatedFilesAreRefused) {
  const std::string whole = read_golden("llama3/tokenizer.json").dump();
  for (std::size_t size = 0; size < whole.size(); size += 97) {
    EXPECT_THROW(Tokenizer::from_json(whole.substr(0, size)), ValueError);
  }
}

// Texts on which a careless tokenizer needs quadratic time or the stack.
TEST(Tokenizer, FilesOfAFolderThatCannotBeReadAreNamed) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokenizer_folder";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto load = [&] { Tokenizer::from_folder(folder); };
  EXPECT_THAT(refusal<ValueError>(load), HasSubstr("tokenizer.json"));
  std::ofstream(folder / "tokenizer.json") << minimal().dump();
  EXPECT_NO_THROW(load());
  std::filesystem::create_symlink("tokenizer_config.json", folder / "tokenizer_config.json");
  EXPECT_THAT(refusal<ValueError>(load), HasSubstr("tokenizer_config.json"));
  std::filesystem::resize_file(folder / "tokenizer.json", kMaxTextFileBytes + 1);  // sparse
  EXPECT_THAT(refusal<ValueError>(load), HasSubstr("bytes, more than the"));
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, LongTexts) {
  const auto repeat = [](const std::string& text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  const std::string texts[] = {repeat("a", 100000),           repeat(" ", 100000),
                               repeat("\n ", 50000),          repeat("ab\u4f60", 20000),
                               repeat("\u0316\u0301", 50000), repeat("<|im_end|>", 5000),
                               repeat("<|im_end", 10000),     repeat("1", 100000)};
  for (const char* name : {"smollm", "qwen", "llama3", "byte_fallback"}) {
    const Tokenizer tokenizer = Tokenizer::from_file(text_goldens() / name / "tokenizer.json");
    for (const auto& text : texts) {
      const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
      EXPECT_EQ(tokenizer.decode(ids),
                tokenizer.normalize(text).starts_with("\u2581") ? text : tokenizer.normalize(text));
    }
  }
}

TEST(Tokenizer, OneTokenizerOnManyThreads) {
  const Tokenizer tokenizer = Tokenizer::from_file(text_goldens() / "qwen/tokenizer.json");
  const auto strings = read_golden("strings.json").get<std::vector<std::string>>();
  std::vector<Ids> expected;
  for (const auto& text : strings) expected.push_back(tokenizer.encode(text));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (auto& count : wrong) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        for (std::size_t i = 0; i < strings.size(); ++i) {
          const auto ids = tokenizer.encode(strings[i]);
          if (ids != expected[i] || decode_stepwise(tokenizer, ids) != tokenizer.decode(ids))
            ++count;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Pattern, RefusesWhatMayMeanSomethingElse) {
  for (const char* pattern :
       {"[[^a]b]", "[a&&b]", "a{2}+", "a{2}?", "\\b", "\\G", "\\1", "\\xE9", "a(?i)b", "(?~a)",
        "(?x: a)", "[\\W]", "[]", "[a", "(*UCP)a", "\\u12", "\\p", "[[:alpha:]]", "(?<n>a)"}) {
    EXPECT_THAT(refusal<ValueError>([&] { detail::Pattern::regex(pattern, "here"); }),
                HasSubstr("here"))
        << pattern;
  }
  for (const char* pattern : {"(", "a**b)", "\\p{Nonesuch}", "*"}) {
    EXPECT_THROW(detail::Pattern::regex(pattern, "here"), ValueError) << pattern;
  }
}

TEST(Pattern, ResourceLimitsAreRuntimeErrors) {
  const auto pattern = detail::Pattern::regex("(?:a|aa|aaa)*(?:a|aa|aaa)*[bc]", "here");
  EXPECT_THROW(pattern.find(std::string(5000, 'a')), RuntimeError);
}

}  // namespace
}  // namespace kvcache::test
