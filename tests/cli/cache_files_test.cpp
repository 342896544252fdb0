// Kinds of caches and their files in the generate program: --cache-implementation, --save-cache and
// --load-cache.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/models/registry.h"
#include "tests/cli/generate_program.h"

namespace kvcache {
namespace {

using nlohmann::json;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::kLlama;
using testing::ProgramResult;

class CacheFiles : public testing::GenerateTest {
 protected:
  std::string path(const std::string& name = "cache") const { return (folder_ / name).string(); }

  // One row of ids through a checkpoint, whose end tokens are ids like others.
  json run_model(const std::string& checkpoint, const json& ids, Arguments more) const {
    const Arguments fixed{"--model",
                          KVCACHE_TEST_DATA_DIR "/parity/checkpoints/" + checkpoint,
                          "--input-ids",
                          write("row.json", json{{"input_ids", {ids}}}.dump()),
                          "--generation-config",
                          write("config.json", R"({"eos_token_id": -1, "max_cache_len": 40})"),
                          "--json"};
    more.insert(more.end(), fixed.begin(), fixed.end());
    const ProgramResult result = run(more);
    EXPECT_EQ(result.code, 0) << result.error;
    return result.code == 0 ? json::parse(result.out) : json();
  }

  // Tokens that the prefill computed.
  static std::int64_t prefilled(const json& made) {
    const json& timings = made.at("timings");
    return std::llround(timings.at("prefill_tokens_per_s").get<double>() *
                        timings.at("prefill_s").get<double>());
  }

  // Loading is refused in words that name the option, the file, `part` and the remedy.
  void expect_load_refused(const std::string& part, const Arguments& more = {}) const {
    Arguments all{"--load-cache", path()};
    all.insert(all.end(), more.begin(), more.end());
    const ProgramResult result = run_ids(all);
    expect_refused(result, part);
    EXPECT_THAT(result.error, HasSubstr("--load-cache"));
    EXPECT_THAT(result.error, HasSubstr(path()));
  }
};

TEST_F(CacheFiles, AStaticCacheGivesTheSameIds) {
  const json dynamic = run_json({"--max-new-tokens", "8"});
  const json fixed = run_json({"--max-new-tokens", "8", "--cache-implementation", "static"});
  EXPECT_EQ(fixed.at("sequences"), dynamic.at("sequences"));
  EXPECT_EQ(fixed.at("cache").at("kind"), "static");
  EXPECT_EQ(fixed.at("cache").at("length"), 10);
  EXPECT_EQ(fixed.at("cache").at("bytes"), dynamic.at("cache").at("bytes"));
}

TEST_F(CacheFiles, KindsOfCachesAreListed) {
  expect_refused(run_ids({"--cache-implementation", "magic"}),
                 R"(no cache_implementation "magic"; it can be "dynamic", "static", "offloaded")");
}

// As in Transformers a smaller number than the text needs is no bound.
TEST_F(CacheFiles, AStaticCacheHasTheRoomAskedForAtLeast) {
  const auto room = [&](int max_cache_len) {
    const json config{{"cache_implementation", "static"}, {"max_cache_len", max_cache_len}};
    const json made = run_json({"--max-new-tokens", "4", "--save-cache", path(),
                                "--generation-config", write("c.json", config.dump())});
    EXPECT_EQ(made.at("sequences"), run_json({"--max-new-tokens", "4"}).at("sequences"));
    return read_cache_file_info(path()).max_cache_len;
  };
  EXPECT_EQ(room(40), 40);
  EXPECT_EQ(room(2), 6);
}

// In another process, with a prompt that begins like the text that was saved: what is held is not
// computed again, and the ids are those of a run that holds nothing.
TEST_F(CacheFiles, ASavedCacheIsGoneOnFrom) {
  using Case = std::pair<const char*, const char*>;
  for (const auto& [checkpoint, kind] :
       {Case{"llama", "dynamic"}, Case{"llama", "static"}, Case{"mistral", "static"},
        Case{"gemma3_text", "static"}, Case{"llama4_text", "dynamic"}, Case{"mamba", "dynamic"},
        Case{"qwen3_next", "static"}}) {
    SCOPED_TRACE(checkpoint + std::string(" ") + kind);
    const json saved = run_model(
        checkpoint, {5, 6, 7, 8, 9, 10, 11},
        {"--max-new-tokens", "6", "--cache-implementation", kind, "--save-cache", path()});
    json longer = saved.at("sequences")[0];
    ASSERT_EQ(longer.size(), 13U);
    longer.insert(longer.end(), {20, 21});

    const json continued =
        run_model(checkpoint, longer, {"--max-new-tokens", "5", "--load-cache", path()});
    const json anew = run_model(checkpoint, longer, {"--max-new-tokens", "5", "--no-cache"});
    EXPECT_EQ(continued.at("sequences"), anew.at("sequences"));
    EXPECT_EQ(continued.at("cache").at("kind"), kind);
    EXPECT_EQ(continued.at("cache").at("length"), 19);
    EXPECT_EQ(prefilled(continued), 3);  // the last of 13 ids was never fed
  }
}

// What the prompt does not share is taken back, or where that cannot be, all is computed anew.
TEST_F(CacheFiles, OnlyTheSharedPrefixIsReused) {
  for (const char* checkpoint : {"llama", "mamba"}) {
    SCOPED_TRACE(checkpoint);
    run_model(checkpoint, {5, 6, 7, 8, 9}, {"--max-new-tokens", "4", "--save-cache", path()});
    const json other = {5, 6, 7, 30, 31, 32};
    const json made =
        run_model(checkpoint, other, {"--max-new-tokens", "5", "--load-cache", path()});
    const json anew = run_model(checkpoint, other, {"--max-new-tokens", "5"});
    EXPECT_EQ(made.at("sequences"), anew.at("sequences"));
    EXPECT_EQ(prefilled(made), checkpoint == std::string("llama") ? 3 : 6);
  }
}

// The encoder's side is not computed again, whatever becomes of the decoder's.
TEST_F(CacheFiles, TheEncodersSideIsReused) {
  constexpr const char* kT5 = "../seq2seq_checkpoints/t5";
  const auto anew = [&](const json& encoder_ids) {
    return run_model(kT5, encoder_ids, {"--max-new-tokens", "6", "--no-cache"}).at("sequences");
  };
  const json ids = {5, 6, 7, 8}, other = {5, 6, 7, 9};
  for (const char* kind : {"dynamic", "static"}) {
    SCOPED_TRACE(kind);
    run_model(kT5, ids,
              {"--max-new-tokens", "3", "--save-cache", path(), "--cache-implementation", kind});
    const CacheFileInfo info = read_cache_file_info(path());
    ASSERT_EQ(info.parts.size(), 2U);
    EXPECT_EQ(info.kind, "encoder_decoder");
    EXPECT_EQ(info.parts[0].kind, kind);
    EXPECT_EQ(info.tokens, 3);
    EXPECT_EQ(info.parts[1].tokens, 4);
    const Arguments loading{"--max-new-tokens", "6", "--load-cache", path()};
    const json same = run_model(kT5, ids, loading), changed = run_model(kT5, other, loading);
    EXPECT_EQ(same.at("sequences"), anew(ids));
    EXPECT_EQ(prefilled(same), 1);
    EXPECT_EQ(same.at("cache").at("kind"), "encoder_decoder");
    EXPECT_EQ(changed.at("sequences"), anew(other));
    EXPECT_EQ(prefilled(changed), 5);
  }
}

TEST_F(CacheFiles, OneFileCanGrowFromRunToRun) {
  json ids = {5, 6, 7};
  run_model("llama", ids, {"--max-new-tokens", "4", "--save-cache", path()});
  for (int turn = 0; turn < 2; ++turn) {
    const json made = run_model(
        "llama", ids, {"--max-new-tokens", "4", "--load-cache", path(), "--save-cache", path()});
    ids = made.at("sequences")[0];
    ids.push_back(9);
    EXPECT_EQ(read_cache_file_info(path()).tokens, std::int64_t(ids.size()) - 2);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}),
            5);  // no temporary file is left beside row.json, config.json, stdout, stderr, cache
}

TEST_F(CacheFiles, TheSummarySaysWhatWasHeld) {
  EXPECT_THAT(run_ids({"--max-new-tokens", "4", "--save-cache", path()}).error,
              HasSubstr("4 new tokens (prompt of 3 at "));
  EXPECT_THAT(run_ids({"--max-new-tokens", "4", "--load-cache", path()}).error,
              HasSubstr("4 new tokens (prompt of 3, 2 of them held in the cache, at "));
}

TEST_F(CacheFiles, RowsMustBeAsMany) {
  const std::string two = write("two.json", R"({"input_ids": [[5, 6, 7], [8, 9, 10]]})");
  const Arguments rows{"--model", kLlama, "--input-ids", two, "--max-new-tokens", "3"};
  Arguments saving = rows, loading = rows;
  saving.insert(saving.end(), {"--save-cache", path(), "--json"});
  loading.insert(loading.end(), {"--load-cache", path(), "--json"});
  const ProgramResult saved = run(saving), loaded = run(loading);
  EXPECT_EQ(json::parse(loaded.out).at("sequences"), json::parse(saved.out).at("sequences"));
  expect_load_refused("holds a cache of 2 rows, but 1 sequences are to be made");
}

TEST_F(CacheFiles, OptionsThatDoNotGoTogetherAreNamed) {
  run_json({"--max-new-tokens", "4", "--save-cache", path()});
  expect_load_refused("does not go with --no-cache", {"--no-cache"});
  expect_load_refused("holds a cache of kind dynamic, but cache_implementation is static",
                      {"--cache-implementation", "static"});
  const std::string config = write("c.json", R"({"cache_implementation": "static"})");
  expect_load_refused("kind dynamic, but cache_implementation is static",
                      {"--generation-config", config});
  run_json({"--max-new-tokens", "4", "--save-cache", path(), "--cache-implementation", "static"});
  const std::string room = write("room.json", R"({"max_cache_len": 7})");
  expect_load_refused("static cache of 6 tokens at most, but max_cache_len is 7",
                      {"--generation-config", room});
  expect_refused(run_ids({"--save-cache", path(), "--no-cache"}),
                 "/cache does not go with --no-cache");
  expect_refused(run_ids({"--save-cache", path("x"), "--save-logits", folder_.string() + "/./x"}),
                 "--save-cache and --save-logits name the same file");
}

TEST_F(CacheFiles, AFullStaticCacheIsRefusedBeforeItsText) {
  const json made = run_json(
      {"--max-new-tokens", "4", "--save-cache", path(), "--cache-implementation", "static"});
  EXPECT_EQ(run_json({"--max-new-tokens", "4", "--load-cache", path()}).at("sequences"),
            made.at("sequences"));
  expect_refused(run_ids({"--max-new-tokens", "5", "--load-cache", path()}),
                 "the text may become 8 tokens long, of which the cache is to hold 7, but it has "
                 "room for 6; lower max_new_tokens or make the cache with a larger max_cache_len");
}

TEST_F(CacheFiles, WrongFilesAreNamed) {
  const char* remedy = "; give a file that --save-cache wrote with this model\n";
  expect_load_refused(remedy);  // there is none
  write("cache", "not a cache");
  expect_load_refused(remedy);
  run_json({"--max-new-tokens", "2", "--save-logits", path()});
  expect_load_refused("is not the file of a cache");
  run_json({"--max-new-tokens", "2", "--save-cache", path()});
  expect_load_refused(remedy, {"--dtype", "bfloat16"});
  expect_load_refused("must be bfloat16", {"--dtype", "bfloat16"});
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  expect_load_refused(remedy);
  run_model("mistral", {5, 6, 7}, {"--max-new-tokens", "2", "--save-cache", path()});
  expect_load_refused("was made with the model 'mistral-");
  expect_load_refused("but this model is 'llama-");
  expect_refused(run_ids({"--load-cache", ""}), "--load-cache is empty");
}

TEST_F(CacheFiles, UnknownTokensAreRefused) {
  const auto model = load_model(kLlama);
  DynamicCache cache(model->config());
  for (std::int64_t i = 0; i < cache.layer_count(); ++i) {
    cache.append(at::ones({1, 2, 4, 8}), at::ones({1, 2, 4, 8}), i);
  }
  kvcache::save_cache(cache, path(), {.fingerprint = model->fingerprint()});
  expect_load_refused("does not say which tokens it holds");
}

TEST_F(CacheFiles, ACacheIsSavedOnlyWhereAFileCanBe) {
  expect_refused(run_ids({"--save-cache", ""}), "--save-cache is empty");
  expect_refused(run_ids({"--save-cache", folder_.string()}), "is a folder");
  expect_refused(run_ids({"--save-cache", "/nowhere/at/all/x"}), "--save-cache /nowhere/at/all/x");
  expect_refused(run_ids({"--save-cache", "/proc/cache"}), "no file can be made in /proc");
}

}  // namespace
}  // namespace kvcache
