// SentencePiece's tokenizers beyond the goldens: what a folder holds, streams, damaged models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "golden_files.h"
#include "kvcache/core/errors.h"
#include "tests/support/refusal.h"
#include "text/sentencepiece_file.h"

namespace kvcache::test {
namespace {

using kvcache::testing::refusal;
using nlohmann::json;
using ::testing::HasSubstr;

std::string bytes_of(const std::string& golden) {
  std::ifstream file(text_goldens() / golden, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Loads a folder with one file of these bytes.
void load(const std::string& name, const std::string& bytes, const json& config = json::object()) {
  const TemporaryFolder folder;
  folder.write(name, bytes);
  folder.write("tokenizer_config.json", config.dump());
  Tokenizer::from_folder(folder.path());
}

std::string refusal_of(const std::string& name, const std::string& bytes, const json& config) {
  return refusal<ValueError>([&] { load(name, bytes, config); });
}

const json kUnigram = {{"model", {{"type", "Unigram"}, {"vocab", json::array()}}}};

TEST(SentencePiece, TheFolderSaysWhichFileIsRead) {
  const TemporaryFolder folder;
  const auto load = [&] { return Tokenizer::from_folder(folder.path()); };
  EXPECT_THAT(refusal<ValueError>(load), HasSubstr("tokenizer.json, and neither spiece.model nor"));
  folder.copy("llama2/tokenizer.model");
  EXPECT_EQ(load().vocab_size(), 620);
  folder.write("tokenizer.json", kUnigram.dump());
  EXPECT_THAT(refusal<ValueError>(load), HasSubstr("put spiece.model beside it"));
  folder.copy("t5/spiece.model");
  EXPECT_EQ(load().vocab_size(), 520);
  std::filesystem::remove(folder.path() / "tokenizer.json");
  EXPECT_EQ(load().vocab_size(), 520);
  folder.copy("qwen/tokenizer.json");
  EXPECT_EQ(load().token_to_id("<extra_id_0>"), std::nullopt);
}

TEST(SentencePiece, AUnigramTokenizerJsonNamesTheFileItNeeds) {
  EXPECT_THAT(refusal<ValueError>([] { Tokenizer::from_json(kUnigram.dump()); }),
              HasSubstr("spiece.model"));
}

TEST(SentencePiece, T5sOwnTokens) {
  const Tokenizer tokenizer = golden_tokenizer("t5");
  EXPECT_EQ(tokenizer.token_to_id("<extra_id_99>"), 420);
  EXPECT_EQ(tokenizer.token_to_id("<extra_id_0>"), 519);
  EXPECT_EQ(tokenizer.special_ids().pad, 0);
  EXPECT_EQ(tokenizer.special_ids().eos, 1);
  EXPECT_EQ(tokenizer.special_ids().unk, 2);
  EXPECT_EQ(tokenizer.special_ids().bos, std::nullopt);
  EXPECT_EQ(tokenizer.encode(""), (Ids{1}));
  EXPECT_EQ(tokenizer.encode(" \n\t "), (Ids{1}));
  EXPECT_EQ(tokenizer.encode("<extra_id_0> <extra_id_1>"), (Ids{519, 518, 1}));
  EXPECT_EQ(tokenizer.decode(Ids{519, 1}, {.skip_special_tokens = true}), "");
}

TEST(SentencePiece, T5sConfigCounts) {
  const TemporaryFolder folder;
  folder.copy("t5/spiece.model");
  folder.write("tokenizer_config.json",
               R"({"extra_ids": 2, "tokenizer_class": "T5Tokenizer", "pad_token": null})");
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), 422);
  EXPECT_EQ(tokenizer.token_to_id("<extra_id_0>"), 421);
  EXPECT_EQ(tokenizer.special_ids().pad, std::nullopt);

  const std::string model = bytes_of("t5/spiece.model");
  EXPECT_THAT(refusal_of("spiece.model", model, {{"tokenizer_class", "AlbertTokenizer"}}),
              HasSubstr("AlbertTokenizer"));
  EXPECT_THAT(refusal_of("spiece.model", model, {{"extra_ids", -1}}), HasSubstr("extra_ids"));
  EXPECT_THAT(refusal_of("spiece.model", model, {{"extra_ids", 2000000000}}),
              HasSubstr("more than 10000"));
  EXPECT_THAT(refusal_of("spiece.model", model, json::array()), HasSubstr("must be an object"));
}

TEST(SentencePiece, AModelOfTheOtherKindIsRefused) {
  EXPECT_THAT(refusal_of("spiece.model", bytes_of("llama2/tokenizer.model"), json::object()),
              HasSubstr("model_type is 2"));
  EXPECT_THAT(refusal_of("tokenizer.model", bytes_of("t5/spiece.model"), json::object()),
              HasSubstr("model_type is 1"));
}

TEST(SentencePiece, ABeginningTokenMustBeAPiece) {
  const std::string model = bytes_of("llama2/tokenizer.model");
  EXPECT_NO_THROW(load("tokenizer.model", model, {{"add_bos_token", true}}));
  EXPECT_THAT(
      refusal_of("tokenizer.model", model, {{"add_bos_token", true}, {"bos_token", "<none>"}}),
      HasSubstr("<none>"));
  EXPECT_THAT(refusal_of("tokenizer.model", model, {{"add_bos_token", 1}}),
              HasSubstr("add_bos_token"));
  EXPECT_THAT(refusal_of("tokenizer.model", model, {{"legacy", "yes"}}), HasSubstr("legacy"));
}

// Also where the text has a space there already. (Transformers' LlamaTokenizer puts none then.)
TEST(SentencePiece, TheFileSaysHowATextBegins) {
  const Tokenizer tokenizer = golden_tokenizer("llama2");
  const auto hello = tokenizer.token_to_id("\u2581Hello").value();
  const auto space = tokenizer.token_to_id("\u2581").value();
  const EncodeOptions bare{.add_special_tokens = false};
  EXPECT_EQ(tokenizer.encode("Hello", bare), (Ids{hello}));
  EXPECT_EQ(tokenizer.encode(" Hello", bare), (Ids{space, hello}));
}

// The rules join "ka" and its sound mark to "ga". (In Transformers, where "ga" comes before it, the
// mark is left and unknown.)
TEST(SentencePiece, T5sRulesHoldAnywhere) {
  const Tokenizer tokenizer = golden_tokenizer("t5");
  const auto ga = tokenizer.token_to_id("\u304c").value();
  const auto space = tokenizer.token_to_id("\u2581").value();
  EXPECT_EQ(tokenizer.encode("\u304c\u304b\u3099"), (Ids{space, ga, ga, 1}));
}

// The space that begins a text is no part of it; those of later tokens are.
TEST(SentencePiece, StreamsLoseTheFirstSpaceAlone) {
  for (const char* name : {"llama2", "mistral", "phi3", "t5"}) {
    const Tokenizer tokenizer = golden_tokenizer(name);
    const auto ids = tokenizer.encode("Hello Hello", {.add_special_tokens = false});
    ASSERT_EQ(ids, (Ids{ids.at(0), ids.at(0)})) << name;
    IncrementalDecoder decoder(tokenizer);
    EXPECT_EQ(decoder.push(ids[0]), "Hello") << name;
    EXPECT_EQ(decoder.push(ids[1]), " Hello") << name;
    EXPECT_EQ(decoder.finish(), "");
  }
  const Tokenizer gemma = golden_tokenizer("gemma");
  IncrementalDecoder decoder(gemma);
  const auto space = gemma.token_to_id("\u2581").value();
  EXPECT_EQ(decoder.push(space), " ");  // no space was put before the text
  EXPECT_EQ(decoder.push(space), " ");
}

TEST(SentencePiece, StreamsGiveWholeCharacters) {
  const Tokenizer tokenizer = golden_tokenizer("gemma");
  const auto byte = [&](const char* token) { return tokenizer.token_to_id(token).value(); };
  IncrementalDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(Ids{byte("<0xF0>"), byte("<0x9F>"), byte("<0x98>")}), "");
  EXPECT_EQ(decoder.push(byte("<0x80>")), "");
  EXPECT_EQ(decoder.push(byte("a")), "\U0001F600a");  // a run of bytes is certain at its end
  EXPECT_EQ(decoder.push(Ids{byte("<0xE4>"), byte("<0xBD>")}), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD\uFFFD");
}

TEST(SentencePiece, LongTexts) {
  std::string texts[] = {std::string(100000, 'a'), std::string(100000, ' '), "", "", ""};
  for (int i = 0; i < 10000; ++i) {
    texts[2] += "\u4f60\U0001F600";
    texts[3] += "word and ";
    texts[4] += "\n\n a";
  }
  for (const char* name : {"llama2", "mistral", "phi3", "gemma"}) {
    const Tokenizer tokenizer = golden_tokenizer(name);
    for (const auto& text : texts) {
      // Where only the text as a whole gets a space, one that begins with a space has it already.
      const bool taken = std::string(name) == "mistral" && text.front() == ' ';
      const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
      EXPECT_TRUE(tokenizer.decode(ids) == (taken ? text.substr(1) : text))
          << name << ", " << text.substr(0, 8) << "...";
    }
  }
  const Tokenizer t5 = golden_tokenizer("t5");
  EXPECT_TRUE(t5.decode(t5.encode(texts[0])) == texts[0] + "</s>");
  EXPECT_TRUE(t5.decode(t5.encode(texts[3])) == texts[3].substr(0, texts[3].size() - 1) + "</s>");
}

TEST(SentencePiece, TruncatedModelsAreRefused) {
  for (const char* name : {"t5/spiece.model", "llama2/tokenizer.model"}) {
    const std::string whole = bytes_of(name);
    const std::string file = std::filesystem::path(name).filename();
    EXPECT_NO_THROW(load(file, whole));
    for (std::size_t size = 0; size < whole.size(); size += size + 40 < whole.size() ? 37 : 1) {
      EXPECT_THROW(load(file, whole.substr(0, size)), ValueError) << name << " cut at " << size;
    }
  }
}

// Any byte may be wrong: a tokenizer, or a ValueError; and what loads works or refuses.
TEST(SentencePiece, MutatedModelsNeverDoHarm) {
  std::mt19937 random(5);
  int refused = 0;
  int loaded = 0;
  for (const char* name : {"t5/spiece.model", "llama2/tokenizer.model"}) {
    const std::string whole = bytes_of(name);
    for (int round = 0; round < 300; ++round) {
      std::string bytes = whole;
      for (int i = 0; i <= round % 4; ++i) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      const TemporaryFolder folder;
      folder.write(std::filesystem::path(name).filename().string(), bytes);
      try {
        const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
        tokenizer.decode(
            tokenizer.encode("Hello  <extra_id_0> caf\u00e9 \uff21\u4f60 e\u0301 1\n"));
        ++loaded;
      } catch (const ValueError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(loaded, 50);
}

// A charsmap of the given trie units and texts.
std::string charsmap(const std::vector<std::uint32_t>& units, const std::string& texts) {
  const auto size = static_cast<std::uint32_t>(units.size() * sizeof(std::uint32_t));
  std::string bytes(sizeof(size) + size, '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  if (size > 0) std::memcpy(bytes.data() + sizeof(size), units.data(), size);
  return bytes + texts;
}

// A node of a double array: the byte that leads to it, where its children are, whether a key ends.
std::uint32_t unit(std::uint32_t byte, std::uint32_t offset, bool is_key) {
  return byte | (is_key ? 1U << 8 : 0U) | offset << 10;
}

constexpr std::uint32_t kNoNode = 1U << 31;  // no byte leads to it; as the end of a key, text 0

TEST(SentencePiece, NormalizationRulesThatLeadAstrayAreRefused) {
  const std::string text("x\0", 2);
  // "a" -> text 0: the root's children are at 256 ^ byte, those of "a" at (256 ^ 'a') ^ 512.
  std::vector<std::uint32_t> units(1024, kNoNode);
  units[0] = unit(0, 256, false);
  units[256 ^ 'a'] = unit('a', 512, true);
  EXPECT_NO_THROW(detail::check_charsmap(charsmap(units, text)));
  EXPECT_NO_THROW(detail::check_charsmap(""));
  EXPECT_THROW(detail::check_charsmap("\1"), ValueError);
  EXPECT_THROW(detail::check_charsmap(charsmap({}, text)), ValueError);
  EXPECT_THROW(detail::check_charsmap(charsmap(units, "")), ValueError);
  EXPECT_THROW(detail::check_charsmap(charsmap(units, "x")), ValueError);  // no end
  EXPECT_THROW(detail::check_charsmap(charsmap(units, std::string("\xFF\0", 2))),
               ValueError);  // no UTF-8
  const auto with = [&](std::size_t at, std::uint32_t value) {
    auto changed = units;
    changed[at] = value;
    detail::check_charsmap(charsmap(changed, text));
  };
  EXPECT_THROW(with(256 ^ 'a' ^ 512, kNoNode | 2), ValueError);       // a text behind the last
  EXPECT_THROW(with(256 ^ 'a', unit('a', 4096, false)), ValueError);  // children outside
  EXPECT_THROW(with(256 ^ 'a', unit('a', 'a', false)), ValueError);   // its own child
}

// "a", "aa", ... to so many keys, each of which begins the next.
std::vector<std::uint32_t> nested_keys(std::uint32_t count) {
  std::vector<std::uint32_t> units(256 * (count + 2), kNoNode);
  std::uint32_t node = 0;
  for (std::uint32_t i = 0; i <= count; ++i) {
    const std::uint32_t base = 256 * (i + 1);
    units[node] = unit(i > 0 ? 'a' : 0, node ^ base, i > 0);
    node = base ^ 'a';
  }
  return units;
}

TEST(SentencePiece, OnlySoManyRulesMayBeginAlike) {
  const std::string text("x\0", 2);
  EXPECT_NO_THROW(detail::check_charsmap(charsmap(nested_keys(32), text)));
  EXPECT_THROW(detail::check_charsmap(charsmap(nested_keys(33), text)), ValueError);
  EXPECT_THROW(detail::check_charsmap(charsmap(nested_keys(5000), text)), ValueError);
}

}  // namespace
}  // namespace kvcache::test
