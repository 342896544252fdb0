// Which files make a tokenizer, and what to say where they do not.
#include <nlohmann/json.hpp>

#include "io/posix_file.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"
#include "kvcache/text/tokenizer.h"
#include "text/json_node.h"
#include "text/pipeline.h"
#include "text/sentencepiece_pipeline.h"

namespace kvcache {

namespace {

using detail::is_present;
using detail::JsonNode;
using detail::TokenizerPipeline;
using nlohmann::json;

// Calls `make`, with `name` (a path, or "tokenizer.json") before the message of what it refuses.
template <typename Make>
auto with_name(const std::string& name, Make make) {
  try {
    return make();
  } catch (const ValueError& error) {
    throw ValueError(c10::str(name, ": ", error.what()));
  }
}

std::shared_ptr<TokenizerPipeline> make_pipeline(const json& root, const std::string& name) {
  return with_name(
      name, [&] { return std::make_shared<TokenizerPipeline>(JsonNode(root, "tokenizer")); });
}

json read_json(const std::filesystem::path& path) {
  return detail::parse_json(read_text_file(path), path.string());
}

json read_json_if_present(const std::filesystem::path& path) {
  return is_present(path) ? read_json(path) : json::object();
}

bool is_unigram(const json& root) {
  const json::json_pointer type("/model/type");
  return root.contains(type) && root.at(type) == "Unigram";
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json) {
  return Tokenizer(
      make_pipeline(detail::parse_json(tokenizer_json, "tokenizer.json"), "tokenizer.json"));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
  return Tokenizer(make_pipeline(read_json(tokenizer_json), tokenizer_json.string()));
}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  const auto json_file = folder / "tokenizer.json";
  const auto unigram_file = folder / "spiece.model";
  const auto bpe_file = folder / "tokenizer.model";
  const auto config_file = folder / "tokenizer_config.json";

  if (is_present(json_file)) {
    const json root = read_json(json_file);
    if (!is_unigram(root)) {
      auto pipeline = make_pipeline(root, json_file.string());
      const json config = read_json_if_present(config_file);
      with_name(config_file.string(),
                [&] { pipeline->apply_config(JsonNode(config, "tokenizer_config")); });
      return Tokenizer(std::move(pipeline));
    }
    check_value(is_present(unigram_file), json_file.string(),
                " is of the type Unigram, which is read from the file it was made from: put ",
                "spiece.model beside it");
  }
  const bool unigram = is_present(unigram_file);
  check_value(unigram || is_present(bpe_file), folder.string(),
              " has no tokenizer.json, and neither spiece.model nor tokenizer.model");
  const auto& file = unigram ? unigram_file : bpe_file;
  const std::string bytes = read_text_file(file);
  json config = read_json_if_present(config_file);
  return Tokenizer(with_name(file.string(), [&] {
    return unigram ? detail::make_t5_pipeline(bytes, std::move(config))
                   : detail::make_sentencepiece_bpe_pipeline(bytes, std::move(config));
  }));
}

}  // namespace kvcache
