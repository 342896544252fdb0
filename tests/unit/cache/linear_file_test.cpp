// Files of linear layers whose states do not go with what the layer has seen: each would go on to
// wrong text, so each is refused.

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/serialization.h"
#include "tests/support/counting_states.h"
#include "tests/support/file_content.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::feed_text;
using testing::FileContent;
using ::testing::HasSubstr;
using testing::kLinear;
using testing::Numbers;
using testing::outputs_of;
using testing::refusal;

const Numbers kText{1, 2, 3, 4, 5};

// What tests feed to a linear layer.
LayerSpec sized() {
  LayerSpec spec = kLinear;
  spec.state_sizes =
      StateSizes{.convolutions = {{.channels = 2, .taps = 3}}, .recurrences = {{.shape = {1}}}};
  return spec;
}

class LinearFile : public ::testing::Test {
 protected:
  ~LinearFile() override { std::filesystem::remove(path_); }

  using Change = std::function<void(FileContent& content, nlohmann::json& counts)>;

  // A layer that has seen kText and can go back over `recorded` of its tokens, in a file that says
  // of itself what is in it.
  void save(std::int64_t recorded, const Change& change) const {
    DynamicCache cache({kLinear});
    if (recorded > 0) cache.activate_past_recording(recorded);
    feed_text(cache, kText);
    save_cache(cache, path_);
    FileContent content = FileContent::read(path_);
    change(content, content.header["layers"][0]["counts"]);
    content.say_forms();
    content.write(path_);
  }

  // The file is refused by name with a message that has `part`, and the cache goes on to the right
  // text.
  void expect_refused(const std::string& part, const LayerSpec& spec = kLinear) const {
    DynamicCache cache({spec});
    feed_text(cache, {9, 8});
    EXPECT_THAT(refusal<ValueError>([&] { load_cache(cache, path_); }),
                AllOf(HasSubstr(path_.string()), HasSubstr("layer 0: "), HasSubstr(part)));
    EXPECT_EQ(feed_text(cache, {7, 6})[1], outputs_of({spec}, {9, 8, 7, 6})[3]);
  }

  const std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) / c10::str("kvcache_linear_file_", ::getpid());
};

TEST_F(LinearFile, AsItWasGoesOn) {
  save(2, [](FileContent&, nlohmann::json&) {});
  DynamicCache cache({kLinear});
  load_cache(cache, path_);
  EXPECT_EQ(feed_text(cache, {6})[0], outputs_of({kLinear}, {1, 2, 3, 4, 5, 6})[5]);
  DynamicCache back({kLinear});
  load_cache(back, path_);
  back.crop(-2);
  EXPECT_EQ(feed_text(back, {7})[0], outputs_of({kLinear}, {1, 2, 3, 7})[3]);
}

TEST_F(LinearFile, WithoutAStateThatItsNumbersSpeakOfIsRefused) {
  save(0, [](FileContent& file, nlohmann::json&) { file.tensors.erase("layers.0.recurrent_0"); });
  expect_refused("there are no recurrent_0 for 1 tokens");
  save(0, [](FileContent& file, nlohmann::json&) { file.tensors.erase("layers.0.convolution_0"); });
  expect_refused("there are no convolution_0 for 2 tokens");
  save(0, [](FileContent& file, nlohmann::json& counts) {
    file.tensors.erase("layers.0.convolution_0");
    counts["convolution_0_taps"] = 1;
  });
  expect_refused("convolution_0_taps is 1, but there are no inputs");
}

TEST_F(LinearFile, WithoutAnyStateIsRefused) {
  save(0, [](FileContent& file, nlohmann::json& counts) {
    file.tensors.erase("layers.0.recurrent_0");
    file.tensors.erase("layers.0.convolution_0");
    counts["recurrent_0_states"] = counts["convolution_0_taps"] = 0;
  });
  expect_refused("state 0 is missing after 5 tokens");
}

TEST_F(LinearFile, WithoutAStateThatTheLayerWasMadeForIsRefused) {
  save(0, [](FileContent& file, nlohmann::json& counts) {
    file.tensors.erase("layers.0.recurrent_0");
    counts["recurrent_0_states"] = 0;
  });
  expect_refused("there is no recurrent_0, but the layer was made for one of shape [1]", sized());
  save(0, [](FileContent& file, nlohmann::json& counts) {
    file.tensors.erase("layers.0.convolution_0");
    counts["convolution_0_taps"] = 0;
  });
  expect_refused("there is no convolution_0, but the layer was made for one of 2 channels and 3",
                 sized());
}

TEST_F(LinearFile, StatesOfNoLengthAreRefused) {
  const auto empty = [](at::Tensor& tensor, std::int64_t dim) {
    tensor = tensor.narrow(dim, 0, 0).clone();
  };
  save(0, [&](FileContent& file, nlohmann::json& counts) {
    empty(file.tensors["layers.0.convolution_0"], 2);
    counts["convolution_0_taps"] = 0;
  });
  expect_refused("convolution_0_taps is 0, but there are inputs");
  save(0, [&](FileContent& file, nlohmann::json&) {
    empty(file.tensors["layers.0.convolution_0"], 2);
  });
  expect_refused("must hold 2 tokens in dimension 2");
  save(0, [&](FileContent& file, nlohmann::json& counts) {
    empty(file.tensors["layers.0.convolution_0"], 2);
    counts["convolution_0_taps"] = 1;
  });
  expect_refused("the layer was made for one of 2 channels and 3 taps", sized());
  save(0, [&](FileContent& file, nlohmann::json& counts) {
    empty(file.tensors["layers.0.recurrent_0"], 0);
    counts["recurrent_0_states"] = 0;
  });
  expect_refused("recurrent_0_states is 0, but there are states");
  save(0,
       [&](FileContent& file, nlohmann::json&) { empty(file.tensors["layers.0.recurrent_0"], 2); });
  expect_refused("it must be floating point [states, batch, ...] and not be empty");
  save(0, [&](FileContent& file, nlohmann::json&) {
    empty(file.tensors["layers.0.convolution_0"], 1);
  });
  expect_refused("it must be floating point [batch, channels, tokens]");
}

TEST_F(LinearFile, NumbersOfRecordedStatesMustGoTogether) {
  const auto with = [](const char* name, std::int64_t value) {
    return [=](FileContent&, nlohmann::json& counts) { counts[name] = value; };
  };
  save(2, with("recorded_states", 3));
  expect_refused("recorded_states is 3; it must be at most 2");
  save(2, [](FileContent&, nlohmann::json& counts) {
    counts["recorded_states"] = counts["record_states"] = 6;
  });
  expect_refused("recorded_states is 6; it must be at most 5: of 5 tokens");
  save(2, with("recorded_states", 1));
  expect_refused("must hold 3 tokens in dimension 2");
  save(2, with("recurrent_0_states", 2));
  expect_refused("recurrent_0_states is 2; it must be 3");
  save(2, [](FileContent& file, nlohmann::json& counts) {
    at::Tensor& states = file.tensors["layers.0.recurrent_0"];
    states = states.narrow(0, 1, 2).clone();
    counts["recurrent_0_states"] = 2;
  });
  expect_refused("recurrent_0_states is 2; it must be 3");
  save(2, with("convolution_0_taps", 5));
  expect_refused("must hold 6 tokens in dimension 2");
}

// Taken back to before the first token a layer has no state, whatever its file says.
TEST_F(LinearFile, StatesBeforeTheFirstTokenAreRefused) {
  DynamicCache cache({kLinear});
  cache.activate_past_recording(5);
  feed_text(cache, kText);
  cache.crop(-5);
  save_cache(cache, path_);
  FileContent content = FileContent::read(path_);
  content.tensors["layers.0.convolution_0"] = at::zeros({1, 2, 2});
  content.header["layers"][0]["counts"]["convolution_0_taps"] = 3;
  content.say_forms();
  content.write(path_);
  expect_refused("there is a state of a convolution or recurrence before the first token");
}

}  // namespace
}  // namespace kvcache
