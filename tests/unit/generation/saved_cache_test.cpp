// A saved cache continues in another process to the same tokens.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;

std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                             &::pclose);
  std::string text;
  for (int c; pipe && (c = std::fgetc(pipe.get())) != EOF;) text += char(c);
  return text;
}

// Ids of one row, each with a space behind it.
std::string listed(const at::Tensor& ids) {
  std::string text;
  for (std::int64_t i = 0; i < ids.size(1); ++i) {
    text += c10::str(ids[0][i].item<std::int64_t>(), " ");
  }
  return text;
}

class SavedCache : public ::testing::TestWithParam<const char*> {
 protected:
  SavedCache()
      : path_(std::filesystem::path(::testing::TempDir()) /
              c10::str("kvcache_saved_cache_", GetParam())) {}
  ~SavedCache() override { std::filesystem::remove(path_); }

  std::filesystem::path path_;
};

TEST_P(SavedCache, ContinuesToTheSameTokensInAnotherProcess) {
  const CausalLM& model = checkpoint(GetParam());
  DynamicCache cache(model.config());
  const Output first =
      generate(model, {.input_ids = testing::ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}})},
               {.max_new_tokens = 6}, &cache);
  save_cache(cache, path_, {.fingerprint = model.fingerprint()});
  const Output second =
      generate(model, {.input_ids = first.sequences}, {.max_new_tokens = 8}, &cache);

  const std::string command =
      c10::str(KVCACHE_CONTINUE_PROGRAM, " ", KVCACHE_TEST_DATA_DIR, "/parity/checkpoints/",
               GetParam(), " ", path_.string(), " 8 ", listed(first.sequences));
  // The last token alone had to be fed.
  EXPECT_EQ(output_of(command), listed(second.sequences) + "\n1\n");
}

TEST_P(SavedCache, OfAnotherModelIsRefused) {
  const CausalLM& model = checkpoint(GetParam());
  const CausalLM& other = checkpoint("llama3_rope");
  DynamicCache cache(model.config()), theirs(other.config());
  model.forward({.input_ids = testing::ids_tensor({{5, 6, 7}})}, &cache);
  save_cache(cache, path_, {.fingerprint = model.fingerprint()});
  const std::string message = testing::refusal<ValueError>(
      [&] { load_cache(theirs, path_, {.fingerprint = other.fingerprint()}); });
  EXPECT_NE(message.find(other.fingerprint()), message.npos) << message;
  EXPECT_EQ(theirs.get_seq_length(), 0);
}

// The encoder, too, is not run again: the file says whose keys it has.
TEST(SavedEncoderDecoderCache, ContinuesToTheSameTokensInAnotherProcess) {
  const std::string folder = KVCACHE_TEST_DATA_DIR "/parity/seq2seq_checkpoints/t5";
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / "kvcache_saved_cache_t5";
  const std::unique_ptr<Seq2SeqLM> model = load_seq2seq_model(folder);
  EncoderDecoderCache cache(model->config());
  Inputs inputs{.input_ids = testing::ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}})};
  const Output first = generate(*model, inputs, {.max_new_tokens = 6}, &cache);
  save_cache(cache, path, {.fingerprint = model->fingerprint()});
  inputs.decoder_input_ids = first.sequences;
  const Output second = generate(*model, inputs, {.max_new_tokens = 8}, &cache);
  const auto output = [&](const at::Tensor& encoder_ids) {
    return output_of(c10::str(KVCACHE_CONTINUE_PROGRAM, " ", folder, " ", path.string(), " 8 ",
                              listed(first.sequences), "-- ", listed(encoder_ids)));
  };
  EXPECT_EQ(output(inputs.input_ids), listed(second.sequences) + "\n1\n");
  const std::string changed = output(testing::ids_tensor({{5, 6, 7, 9}}));
  EXPECT_NE(changed.find(c10::str("\n", first.sequences.size(1) + 4, "\n")), changed.npos)
      << changed;
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, SavedCache,
                         ::testing::Values("llama", "llama_bf16", "mistral"));

}  // namespace
}  // namespace kvcache
