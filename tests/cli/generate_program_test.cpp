// The generate program's command line: what it prints where, and its exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/core/version.h"
#include "kvcache/io/safetensors.h"
#include "tests/cli/generate_program.h"

namespace kvcache {
namespace {

using nlohmann::json;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::kLlama;
using testing::ProgramResult;
using ::testing::StartsWith;

class GenerateProgram : public testing::GenerateTest {
 protected:
  // A copy of the tiny llama with a tokenizer of 64 single letters.
  std::string model_with_tokenizer() const {
    const std::filesystem::path model = folder_ / "model";
    std::filesystem::copy(kLlama, model, std::filesystem::copy_options::recursive);
    const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.";
    json vocabulary;
    for (std::size_t i = 0; i < letters.size(); ++i) vocabulary[letters.substr(i, 1)] = i;
    vocabulary["\u0120"] = letters.size();  // a space, in the byte-level alphabet
    const json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", true}};
    const json tokenizer = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", json::array()},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", byte_level},
                            {"post_processor", nullptr},
                            {"decoder", byte_level},
                            {"model",
                             {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocabulary},
                              {"merges", json::array()}}}};
    write("model/tokenizer.json", tokenizer.dump());
    return model.string();
  }
};

TEST_F(GenerateProgram, VersionAndHelp) {
  EXPECT_EQ(run({"--version"}).out, std::string("kvcache-generate ") + kVersion + "\n");
  const ProgramResult help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* option : {"--model",
                             "--prompt",
                             "--messages",
                             "--input-ids",
                             "--generation-config",
                             "--max-new-tokens",
                             "--do-sample",
                             "--temperature",
                             "--top-k",
                             "--top-p",
                             "--num-beams",
                             "--cache-implementation",
                             "--cache-config",
                             "--no-cache",
                             "--seed",
                             "--device",
                             "--dtype",
                             "--threads",
                             "--json",
                             "--save-logits",
                             "--save-cache",
                             "--load-cache",
                             "--quiet",
                             "FILE.json",
                             "static (made once"}) {
    EXPECT_THAT(help.out, HasSubstr(option));
  }
  const std::filesystem::path renamed = folder_ / "kvcache-generate";
  std::filesystem::create_symlink(KVCACHE_GENERATE_PROGRAM, renamed);
  EXPECT_THAT(run_program(renamed.string(), {"--help"}).out, HasSubstr("Usage: kvcache-generate"));
}

TEST_F(GenerateProgram, PrintsOneJsonObject) {
  const json made = run_json({"--max-new-tokens", "4"});
  ASSERT_EQ(made.at("sequences").size(), 1u);
  EXPECT_EQ(made.at("sequences")[0].size(), 7u);
  EXPECT_EQ(made.at("sequences")[0][2], 7);
  EXPECT_FALSE(made.contains("text"));  // this checkpoint has no tokenizer
  EXPECT_EQ(made.at("cache").at("kind"), "dynamic");
  EXPECT_EQ(made.at("cache").at("length"), 6);
  EXPECT_EQ(made.at("cache").at("bytes"), 3 * 2 * 6 * 2 * 8 * 4);  // layers, K and V, tokens, ...
  for (const char* name :
       {"load_s", "prefill_s", "decode_s", "prefill_tokens_per_s", "decode_tokens_per_s"}) {
    EXPECT_GT(made.at("timings").at(name).get<double>(), 0) << name;
  }
}

TEST_F(GenerateProgram, WithoutACacheTheIdsAreTheSame) {
  const json cached = run_json({"--max-new-tokens", "8"});
  const json uncached = run_json({"--max-new-tokens", "8", "--no-cache"});
  EXPECT_EQ(cached.at("sequences"), uncached.at("sequences"));
  EXPECT_EQ(uncached.at("cache").at("kind"), "none");
}

TEST_F(GenerateProgram, OneSeedMakesOneText) {
  const auto sequences = [&](const char* seed) {
    return run_json({"--max-new-tokens", "12", "--do-sample", "--top-k", "0", "--seed", seed})
        .at("sequences");
  };
  EXPECT_EQ(sequences("3"), sequences("3"));
  EXPECT_NE(sequences("3"), sequences("4"));
}

TEST_F(GenerateProgram, BeamsComeWithTheirScores) {
  const std::string file =
      write("config.json", R"({"num_return_sequences": 2, "length_penalty": 0})");
  const std::string logits = (folder_ / "logits.safetensors").string();
  const json made = run_json({"--generation-config", file, "--num-beams", "3", "--max-new-tokens",
                              "4", "--save-logits", logits});
  ASSERT_EQ(made.at("sequences").size(), 2u);
  const auto scores = made.at("sequences_scores").get<std::vector<double>>();
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_GE(scores[0], scores[1]);
  EXPECT_LT(scores[0], 0);
  EXPECT_EQ(made.at("cache").at("length"), 6);
  EXPECT_TRUE(std::filesystem::exists(logits));
  EXPECT_FALSE(run_json({"--max-new-tokens", "4"}).contains("sequences_scores"));
  const ProgramResult text = run_ids({"--num-beams", "2", "--max-new-tokens", "2"});
  EXPECT_EQ(text.code, 0) << text.error;
}

TEST_F(GenerateProgram, OptionsGoBeforeTheFile) {
  const std::string file = write(
      "config.json", R"({"max_new_tokens": 3, "do_sample": true, "num_return_sequences": 2})");
  EXPECT_EQ(run_json({"--generation-config", file}).at("sequences").size(), 2u);
  const json longer = run_json({"--generation-config", file, "--max-new-tokens", "5"});
  EXPECT_EQ(longer.at("sequences")[0].size(), 8u);
}

TEST_F(GenerateProgram, StreamsTextAndSumsUp) {
  const std::string model = model_with_tokenizer();
  const Arguments arguments{"--model",
                            model,
                            "--prompt",
                            "hello",
                            "--max-new-tokens",
                            "6",
                            "--generation-config",
                            write("c.json", R"({"eos_token_id": -1})")};
  const ProgramResult streamed = run(arguments);
  ASSERT_EQ(streamed.code, 0) << streamed.error;
  EXPECT_EQ(streamed.out.size(), 7u) << streamed.out;  // one letter a token, and the line's end
  EXPECT_THAT(streamed.error, HasSubstr("6 new tokens (prompt of 5 at "));
  EXPECT_THAT(streamed.error, HasSubstr("cache dynamic of 10 tokens"));

  Arguments quiet = arguments;
  quiet.push_back("--quiet");
  const ProgramResult silent = run(quiet);
  EXPECT_EQ(silent.out, streamed.out);
  EXPECT_EQ(silent.error, "");

  Arguments as_json = arguments;
  as_json.push_back("--json");
  const json made = json::parse(run(as_json).out);
  EXPECT_EQ(made.at("text")[0].get<std::string>() + "\n", streamed.out);
}

TEST_F(GenerateProgram, MessagesGoThroughTheChatTemplate) {
  const std::string model = model_with_tokenizer();
  const auto made = [&](const Arguments& input) {
    Arguments arguments{"--model", model, "--max-new-tokens", "3", "--json"};
    arguments.insert(arguments.end(), input.begin(), input.end());
    return run(arguments);
  };
  const std::string messages = write(
      "chat.json", R"([{"role": "system", "content": " Be "}, {"role": "user", "content": "hi"}])");
  expect_refused(made({"--messages", messages}), "has no chat template");

  write("model/chat_template.jinja",
        "{%- for m in messages %}\n{{ m.role[0] }}.{{ m.content | trim }}.\n{%- endfor %}\n"
        "{{ 'a.' if add_generation_prompt }}\n");
  const ProgramResult chat = made({"--messages", messages});
  ASSERT_EQ(chat.code, 0) << chat.error;
  EXPECT_EQ(json::parse(chat.out).at("sequences"),
            json::parse(made({"--prompt", "s.Be.u.hi.a."}).out).at("sequences"));

  expect_refused(made({"--messages", (folder_ / "none.json").string()}), "none.json");
  expect_refused(made({"--messages", write("m.json", "{")}),
                 "m.json: the list of messages is not valid JSON");
  expect_refused(made({"--messages", write("m.json", "[]")}), "m.json: a chat template cannot");
  write("model/chat_template.jinja", "\n{{ raise_exception('roles must alternate') }}");
  expect_refused(made({"--messages", messages}), "chat.json: chat template, line 2: roles must");
}

TEST_F(GenerateProgram, SeveralPromptsMakeABatch) {
  const std::string model = model_with_tokenizer();
  const std::string no_end = write("c.json", R"({"eos_token_id": -1})");
  const auto text = [&](const Arguments& prompts) {
    Arguments all{"--model", model, "--max-new-tokens", "5", "--json", "--generation-config",
                  no_end};
    for (const std::string& prompt : prompts) all.insert(all.end(), {"--prompt", prompt});
    const ProgramResult result = run(all);
    EXPECT_EQ(result.code, 0) << result.error;
    return json::parse(result.out).at("text");
  };
  const json both = text({"hello world", "[a"});
  EXPECT_EQ(both, json::array({text({"hello world"})[0], text({"[a"})[0]}));
}

TEST_F(GenerateProgram, SavesTheScoresOfEachStep) {
  const std::string file = (folder_ / "logits.safetensors").string();
  run_json({"--max-new-tokens", "4", "--save-logits", file});
  const at::Tensor logits = SafetensorsFile::open(file).tensor("logits");
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{1, 4, 64}));
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
}

TEST_F(GenerateProgram, RunsInOtherDtypesAndThreads) {
  const json made = run_json({"--max-new-tokens", "4", "--dtype", "bfloat16", "--threads", "1"});
  EXPECT_EQ(made.at("cache").at("bytes"), 3 * 2 * 6 * 2 * 8 * 2);
}

TEST_F(GenerateProgram, MasksComeFromTheFile) {
  const std::string file =
      write("padded.json", R"({"input_ids": [[0, 0, 5, 6]], "attention_mask": [[0, 0, 1, 1]]})");
  const std::string bare = write("bare.json", R"({"input_ids": [[5, 6]], "attention_mask": null})");
  const auto made = [&](const std::string& path) {
    const ProgramResult result =
        run({"--model", kLlama, "--input-ids", path, "--max-new-tokens", "4", "--json"});
    const auto ids = json::parse(result.out).at("sequences")[0].get<std::vector<int>>();
    return std::vector<int>(ids.end() - 4, ids.end());
  };
  EXPECT_EQ(made(file), made(bare));
}

TEST_F(GenerateProgram, WrongUsageIsRefused) {
  expect_refused(run({}), "--model");
  expect_refused(run({"--model", kLlama}), "--prompt");
  expect_refused(run({"--model", (folder_ / "nowhere").string(), "--prompt", "x"}), "not a folder");
  expect_refused(run_ids({"--prompt", "x"}), "give one of --prompt, --messages and --input-ids");
  expect_refused(run_ids({"--messages", "m.json"}), "give one of --prompt, --messages");
  expect_refused(run({"--model", kLlama, "--messages", ""}), "--messages is empty");
  expect_refused(run_ids({"--frobnicate"}), "--frobnicate");
  expect_refused(run_ids({"--max-new-tokens", "many"}), "--max-new-tokens");
  expect_refused(run_ids({"--max-new-tokens", "0"}), "max_new_tokens must be at least 1");
  expect_refused(run_ids({"--top-k", "-1", "--do-sample"}), "top_k");
  expect_refused(run_ids({"--top-p", "1.1"}), "top_p");
  expect_refused(run_ids({"--temperature", "nan"}), "temperature");
  expect_refused(run_ids({"--device", "tpu"}), "--device must be cpu, cuda or cuda:N");
  expect_refused(run_ids({"--device", "cuda:99"}), "cuda:99");
  expect_refused(run_ids({"--dtype", "int8"}), "--dtype must be");
  expect_refused(run_ids({"--threads", "0"}), "--threads must be from 1 to 1024");
  expect_refused(run_ids({"--threads", "100000000"}), "--threads must be from 1 to 1024");
  expect_refused(run_ids({"--seed", "18446744073709551616"}), "--seed must be an integer");
  expect_refused(run_ids({"--max-new-tokens", "9223372036854775808"}), "--max-new-tokens must be");
  expect_refused(run_ids({"--model", kLlama}), "--model is given 2 times; give it once");
  expect_refused(run_ids({"--frobnicate"}), "; see --help");
  expect_refused(run_ids({"--generation-config", ""}), "--generation-config is empty");
  expect_refused(run_ids({"--cache-config", ""}), "--cache-config must be a JSON object");
  expect_refused(run_ids({"--cache-config", "{bad"}), "but is {bad\n");
  expect_refused(run({"--model", kLlama, "--prompt", "x"}),
                 "no tokenizer.json; pass --input-ids instead");
}

TEST_F(GenerateProgram, SavesLogitsOnlyWhereAFileCanBe) {
  const auto refuse = [&](const std::string& path, const std::string& part) {
    expect_refused(run_ids({"--save-logits", path}), part);
  };
  refuse("", "--save-logits is empty");
  refuse("/nowhere/at/all/x", "there is no folder /nowhere/at/all");
  refuse(folder_.string(), "is a folder");
  refuse("/dev/null", "is a pipe, socket or device");
  refuse("/proc/logits", "no file can be made in /proc");
  const std::filesystem::path pipe = folder_ / "pipe", loop = folder_ / "loop";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  refuse(pipe.string(), "is a pipe, socket or device");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  std::filesystem::create_symlink(loop, loop);
  refuse(loop.string(), "symbolic links");
}

TEST_F(GenerateProgram, SymbolicLinksInALoopAreRefused) {
  const std::filesystem::path loop = folder_ / "loop";
  std::filesystem::create_symlink(loop, loop);
  expect_refused(run({"--model", loop.string(), "--prompt", "x"}), "symbolic links");
  std::filesystem::create_directory(folder_ / "model");
  std::filesystem::create_symlink("config.json", folder_ / "model/config.json");
  expect_refused(run({"--model", (folder_ / "model").string(), "--prompt", "x"}), "symbolic links");
}

TEST_F(GenerateProgram, FailsWhereStandardOutputIsFull) {
  const std::string ids = write("ids.json", R"({"input_ids": [[5, 6, 7]]})");
  const Arguments text{"--model", kLlama, "--input-ids", ids, "--max-new-tokens", "2"};
  Arguments as_json = text;
  as_json.push_back("--json");
  for (const Arguments& arguments : {text, as_json, Arguments{"--help"}, Arguments{"--version"}}) {
    const ProgramResult result = run_onto("/dev/full", KVCACHE_GENERATE_PROGRAM, arguments);
    EXPECT_EQ(result.code, 3);
    EXPECT_THAT(result.error, HasSubstr("error: standard output could not be written"));
  }
}

TEST_F(GenerateProgram, FeaturesThatComeLaterSaySo) {
  expect_refused(run_ids({"--cache-implementation", "offloaded"}), "not supported yet");
  expect_refused(run_ids({"--cache-implementation", "magic"}), "\"dynamic\"");
  expect_refused(run_ids({"--cache-config", R"({"nbits": 4})"}), "cache_config");
  expect_refused(run_ids({"--cache-config", "nbits"}), "--cache-config");
  expect_refused(
      run_ids({"--cache-implementation", "quantized", "--cache-config", R"({"backend": "magic"})"}),
      R"(it can be "quanto", "hqq", "fp8" or "int")");
}

TEST_F(GenerateProgram, ReadsEveryFieldOfAConfigFile) {
  const json whole = run_json({"--max-new-tokens", "6"});
  const std::string file = write("c.json", R"({
    "_from_model_config": true, "transformers_version": "5.24.0", "prefill_chunk_size": 2,
    "cache_implementation": "static", "max_cache_len": 30, "early_stopping": "never",
    "length_penalty": 2.0, "guidance_scale": null, "output_scores": false, "stop_strings": null,
    "num_assistant_tokens": 4, "typical_p": 1.0, "disable_compile": true})");
  const json made = run_json({"--max-new-tokens", "6", "--generation-config", file});
  EXPECT_EQ(made.at("sequences"), whole.at("sequences"));
  EXPECT_EQ(made.at("cache").at("kind"), "static");
  expect_refused(run_ids({"--no-cache", "--generation-config",
                          write("d.json", R"({"prefill_chunk_size": 2})")}),
                 "prefill_chunk_size = 2 needs a cache");
  expect_refused(run_ids({"--generation-config", write("e.json", R"({"guidance_scale": 1.5})")}),
                 "guidance_scale = 1.5 is not supported; leave it out");
  expect_refused(run_ids({"--generation-config", write("f.json", R"({"typical_p": 1.5})")}),
                 "typical_p must be above 0 and at most 1 (1: off), but is 1.5");
}

TEST_F(GenerateProgram, FaultyFilesAreRefused) {
  const auto config = [&](const char* text) {
    return run_ids({"--generation-config", write("c.json", text)});
  };
  expect_refused(config(R"({"num_beam_groups": 3})"), "num_beam_groups = 3 is not supported");
  expect_refused(config(R"({"topk": 3})"), "no field \"topk\"");
  expect_refused(config("{"), "c.json");
  const auto ids = [&](const char* text) {
    return run({"--model", kLlama, "--input-ids", write("i.json", text)});
  };
  expect_refused(ids(R"({"input_ids": [[1, 2], [3]]})"), "rows of 2 and 1");
  expect_refused(ids(R"({"input_ids": [["a"]]})"), "rows of integers");
  expect_refused(ids(R"({"input_ids": []})"), "at least one row");
  expect_refused(ids(R"({"input_ids": [[]]})"), "at least one row and one token");
  expect_refused(ids(R"({"input_ids": [[99]]})"), "99");
  expect_refused(ids(R"({"input_ids": [[18446744073709551615]]})"), "holds 18446744073709551615");
  expect_refused(ids(R"({"input_ids": [[1]], "input_ids": [[2]]})"), "input_ids twice");
  expect_refused(ids(R"({"input_ids": [[1]], "mask": [[1]]})"), "mask");
  expect_refused(ids(R"({"attention_mask": [[1]]})"), "input_ids");
  expect_refused(ids("{"), "i.json");
  expect_refused(run({"--model", kLlama, "--input-ids", "/nowhere.json"}), "/nowhere.json");
}

TEST_F(GenerateProgram, AModelThatIsNoneIsRefused) {
  expect_refused(run({"--model", folder_.string(), "--input-ids",
                      write("ids.json", R"({"input_ids": [[5]]})")}),
                 "is no checkpoint: it has no config.json");
}

// The ids given are the encoder's, those printed the decoder's.
TEST_F(GenerateProgram, RunsModelsWithAnEncoder) {
  const std::string model = KVCACHE_TEST_DATA_DIR "/parity/seq2seq_checkpoints/t5";
  const std::string ids = write("ids.json", R"({"input_ids": [[5, 6, 7, 8], [9, 10, 0, 0]],
                                                "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]]})");
  const Arguments all{"--model", model, "--input-ids", ids, "--max-new-tokens", "3", "--json"};
  const ProgramResult result = run(all);
  ASSERT_EQ(result.code, 0) << result.error;
  const json report = json::parse(result.out);
  EXPECT_EQ(report.at("cache").at("kind"), "encoder_decoder");
  EXPECT_EQ(report.at("cache").at("length"), 3);
  ASSERT_EQ(report.at("sequences").size(), 2U);
  for (const json& row : report.at("sequences")) {
    EXPECT_EQ(row.size(), 4U);
    EXPECT_EQ(row[0], 0);  // decoder_start_token_id
  }
  Arguments text(all.begin(), all.end() - 1);
  text.push_back("--quiet");
  EXPECT_THAT(run(text).out, ::testing::MatchesRegex("([0-9 ]*\n){2}"));
}

}  // namespace
}  // namespace kvcache
