// The guide's programs: docs/guide.md shows them as they are, and they say what it promises.
#include <gmock/gmock.h>

#include "tests/cli/program.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kTests = KVCACHE_TEST_DATA_DIR;

class Examples : public ProgramTest {
 protected:
  // What `name` prints, given some of the tiny checkpoints.
  std::string output(const std::string& name, const std::vector<std::string>& checkpoints) const {
    std::vector<std::string> arguments;
    for (const std::string& checkpoint : checkpoints) {
      arguments.push_back((kTests / "parity" / checkpoint).string());
    }
    const ProgramResult result =
        run_program(std::string(KVCACHE_EXAMPLES_DIR) + "/" + name, arguments);
    EXPECT_EQ(result.code, 0) << result.error;
    return result.out;
  }
};

TEST_F(Examples, TheGuideShowsThem) {
  const std::string guide = read_whole(kTests.parent_path() / "docs/guide.md");
  for (const char* name : {"static_cache", "encoder_decoder", "mamba", "chat", "crop_rollback",
                           "prefix_cache", "assisted"}) {
    const std::string program =
        read_whole(kTests.parent_path() / "examples" / (std::string(name) + ".cpp"));
    const std::string shown = program.substr(program.find("#include"));
    ASSERT_GT(shown.size(), 500U) << name;
    EXPECT_LT(std::count(program.begin(), program.end(), '\n'), 80) << name;
    EXPECT_NE(guide.find("```cpp\n" + shown + "```"), std::string::npos)
        << "copy examples/" << name << ".cpp, from its first #include on, into docs/guide.md";
  }
}

TEST_F(Examples, PrefixCacheComputesThePrefixOnce) {
  for (const char* model : {"checkpoints/llama", "checkpoints/mistral", "checkpoints/lfm2"}) {
    EXPECT_EQ(output("prefix_cache", {model}),
              "2 of 9 tokens computed, 5 made\n3 of 10 tokens computed, 5 made\n"
              "1 of 8 tokens computed, 5 made\n");
  }
}

TEST_F(Examples, CropRollbackShowsWhatStays) {
  const std::string out = output("crop_rollback", {});
  EXPECT_THAT(out, HasSubstr("full attention: token 3 sees 0 1 2 3\n"));
  EXPECT_THAT(out, HasSubstr("a window of 2: token 3 sees 2 3\n"));
  EXPECT_THAT(out, HasSubstr("without recording: layer 0"));
}

TEST_F(Examples, StaticCacheKeepsItsSize) {
  const std::string out = output("static_cache", {"checkpoints/llama"});
  std::istringstream lines(out);
  std::string first, second, third;
  std::getline(lines, first);
  std::getline(lines, second);
  std::getline(lines, third);
  EXPECT_EQ(first.rfind("9 of 32 tokens in ", 0), 0U) << out;
  EXPECT_EQ(second, first);
  EXPECT_EQ(third, first);
  EXPECT_THAT(out, HasSubstr("refused: the text may become 42 tokens long"));
  EXPECT_THAT(out, HasSubstr("made: static\n"));
}

TEST_F(Examples, EncoderDecoderHoldsTheEncodersKeys) {
  EXPECT_EQ(output("encoder_decoder", {"seq2seq_checkpoints/t5"}),
            "6 tokens of the decoder, 6 of the encoder, held\n");
}

TEST_F(Examples, MambaDoesNotGrow) {
  const std::string out = output("mamba", {"checkpoints/mamba"});
  std::istringstream words(out);
  std::vector<std::string> bytes;
  std::string word;
  for (int line = 0; line < 3; ++line) {
    words >> word >> word >> word >> word;
    bytes.push_back(word);
    words >> word;
  }
  EXPECT_EQ(bytes[1], bytes[0]) << out;
  EXPECT_EQ(bytes[2], bytes[0]) << out;
  EXPECT_THAT(out, HasSubstr("9 tokens after crop(-3)\n"));
}

TEST_F(Examples, AssistedMakesTheSameText) {
  for (const char* model : {"checkpoints/llama", "checkpoints/mamba2"}) {
    EXPECT_EQ(output("assisted", {model, "checkpoints/mistral"}),
              "prompt lookup: same text\nassisted: same text\n");
  }
}

}  // namespace
}  // namespace kvcache::testing
