// The guide's programs: docs/guide.md shows them as they are, and they say what it promises.
#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "tests/support/char_tokenizer.h"

namespace kvcache::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
  for (const char* name :
       {"sampling", "streaming", "static_cache", "quantized", "runner", "cpu_tensors", "resilient",
        "encoder_decoder", "mamba", "iterative_generation", "chat", "crop_rollback", "prefix_cache",
        "assisted", "beam_search", "custom_layer", "custom_model", "step_by_hand"}) {
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
    const std::string out = output("prefix_cache", {model});
    EXPECT_THAT(out, StartsWith("2 of 9 tokens computed, 5 made\n3 of 10 tokens computed, 5 made\n"
                                "1 of 8 tokens computed, 5 made\n"));
    EXPECT_THAT(out, HasSubstr("with the tokens of 3 rows\n"));
    EXPECT_THAT(out, EndsWith("7 of 9 tokens found, 13 held in the end\n"));
  }
  // 3 layers x 2 heads x 8 x 4 bytes x keys and values = 384 bytes a token; 7 tokens, then 7 + 3.
  EXPECT_THAT(output("prefix_cache", {"checkpoints/llama"}),
              HasSubstr("2688 bytes of prefix, 3840 with the tokens of 3 rows\n"));
}

TEST_F(Examples, CropRollbackShowsWhatStays) {
  const std::string out = output("crop_rollback", {});
  EXPECT_THAT(out, HasSubstr("full attention: token 3 sees 0 1 2 3\n"));
  EXPECT_THAT(out, HasSubstr("a window of 2: token 3 sees 2 3\n"));
  EXPECT_THAT(out, HasSubstr("without recording: layer 0"));
}

// 45 tokens of 384 bytes would be 17280; fp8 packs none of so few.
TEST_F(Examples, QuantizedTakesFewerBytes) {
  const std::string out = output("quantized", {"checkpoints/llama"});
  std::istringstream lines(out);
  std::vector<std::int64_t> bytes;
  for (std::string line; std::getline(lines, line);) {
    const auto at = line.find(": 45 tokens in ");
    if (at != std::string::npos) bytes.push_back(std::stoll(line.substr(at + 15)));
  }
  ASSERT_EQ(bytes.size(), 5U) << out;
  for (const std::size_t packed : {0, 1, 2}) EXPECT_LT(bytes[packed], 17280 * 3 / 5) << out;
  EXPECT_EQ(bytes[3], 17280) << out;
  EXPECT_LT(bytes[4], 17280 * 3 / 4) << out;  // its first layer is dense
  EXPECT_THAT(out, HasSubstr("cropped to 25\n"));
  EXPECT_THAT(out, HasSubstr("made: quantized\n"));
}

TEST_F(Examples, StaticCacheKeepsItsSize) {
  const std::string out = output("static_cache", {"checkpoints/llama"});
  const std::string line = "9 tokens in 12288 bytes\n";  // 32 of 384 bytes each
  EXPECT_THAT(out, StartsWith(line + line + line + "refused"));
  EXPECT_THAT(out, HasSubstr("refused: the text may become 42 tokens long"));
  EXPECT_THAT(out, HasSubstr("made: static\n"));
}

TEST_F(Examples, RunnerUsesItsCachesAgain) {
  const char* end = "two caches for two answers\n1 token computed to go on with the first\n";
  EXPECT_EQ(output("runner", {"checkpoints/llama"}),  // of 384 bytes a token
            std::string("4 tokens of prompt, 9216 bytes: a new cache\n"
                        "11 tokens of prompt, 9216 bytes: the same cache\n"
                        "19 tokens of prompt, 9216 bytes: the same cache\n"
                        "20 tokens of prompt, 9600 bytes: a new cache\n"
                        "7 tokens of prompt, 9600 bytes: the same cache\n") +
                end);
  // Windows have room for any text.
  const std::string windows = output("runner", {"checkpoints/mistral"});
  EXPECT_THAT(windows, HasSubstr("bytes: the same cache\n20 tokens of prompt, "));
  EXPECT_EQ(windows.rfind("a new cache"), windows.find("a new cache"));
  EXPECT_THAT(windows, EndsWith(end));
}

TEST_F(Examples, CpuTensorsStayThere) {
  EXPECT_EQ(output("cpu_tensors", {"checkpoints/llama"}),
            "model on cpu, text of 10 tokens on cpu\ninputs on cpu, text on cpu, the same\n");
}

TEST_F(Examples, ResilientFallsBack) {
  const std::string out = output("resilient", {"checkpoints/llama"});
  EXPECT_THAT(out, HasSubstr("static: there is no memory for a buffer of more than"));
  EXPECT_THAT(out, HasSubstr("dynamic: made the text\n"));
  const std::string last = out.substr(out.rfind("text\n") + 5);
  std::istringstream words(last);
  std::int64_t planned = 0, taken = 0;
  std::string word;
  words >> planned >> word >> word >> taken;
  EXPECT_GT(planned, 0) << out;
  EXPECT_EQ(taken, planned) << out;
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

TEST_F(Examples, BeamSearchShowsTheBestTextsAndGoesOn) {
  for (const char* model : {"checkpoints/llama", "checkpoints/mistral", "checkpoints/lfm2"}) {
    const std::string out = output("beam_search", {model});
    std::istringstream lines(out);
    double last = 0;
    for (int line = 0; line < 3; ++line) {
      double score = 0;
      std::string ids;
      lines >> score;
      std::getline(lines, ids);
      EXPECT_LE(score, last) << out;
      last = score;
    }
    EXPECT_THAT(out, HasSubstr("held: 3 rows of "));
    EXPECT_THAT(out, HasSubstr("1 token computed to go on\n"));
  }
}

TEST_F(Examples, AssistedMakesTheSameText) {
  for (const char* model : {"checkpoints/llama", "checkpoints/mamba2"}) {
    EXPECT_EQ(output("assisted", {model, "checkpoints/mistral"}),
              "prompt lookup: same text\nassisted: same text\n");
  }
}

// A conversation with a tiny checkpoint that was given a tokenizer and a template: what a turn
// computes is what the turns before left uncomputed.
TEST_F(Examples, IterativeGenerationGoesOn) {
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(kTests / "parity/checkpoints/llama" / file, folder_ / file);
  }
  write("tokenizer.json", char_tokenizer_json());
  write("tokenizer_config.json",
        R"({"chat_template": "<s>{% for m in messages %}<u>{{ m.content }}<e>{% endfor %}<a>"})");
  const ProgramResult result = run_program(KVCACHE_EXAMPLES_DIR "/iterative_generation",
                                           {folder_.string(), "Hello", "and then", "bye"});
  EXPECT_EQ(result.code, 0) << result.error;
  std::vector<std::pair<int, int>> computed;  // of a prompt's tokens
  for (std::size_t at = 0; (at = result.out.find("\n[", at)) != std::string::npos; at += 2) {
    std::istringstream words(result.out.substr(at + 2));
    std::string of;
    computed.emplace_back();
    words >> computed.back().first >> of >> computed.back().second;
  }
  ASSERT_EQ(computed.size(), 3U) << result.out;
  EXPECT_EQ(computed[0], std::pair(9, 9));  // <s> <u> H e l l o <e> <a>
  for (const std::size_t turn : {1U, 2U}) {
    EXPECT_GT(computed[turn].second, computed[turn - 1].second) << result.out;
    EXPECT_LT(computed[turn].first, computed[turn].second) << result.out;
  }
}

TEST_F(Examples, CustomLayerCountsWhatCameIn) {
  const std::string out = output("custom_layer", {"checkpoints/llama"});
  std::istringstream words(out);
  std::string word;
  int held = 0, fed = 0;
  words >> held >> word >> word >> fed;
  EXPECT_EQ(held, 23) << out;
  EXPECT_GT(fed, 23) << out;
}

TEST_F(Examples, CustomModelGoesOnFromItsCache) {
  EXPECT_EQ(output("custom_model", {}),
            "3 1 4 5 9 2 6 3 1 4 5 9 2 6 3 1 4 \ncache dynamic of 16 tokens\n");
}

TEST_F(Examples, StepByHandEqualsTheWholeText) {
  EXPECT_EQ(output("step_by_hand", {}),
            "token 3: the same\ntoken 4: the same\n8 encoder tokens computed in 4 steps\n");
}

}  // namespace
}  // namespace kvcache::testing
