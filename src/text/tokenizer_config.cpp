// What a tokenizer_config.json adds to a tokenizer.json, as Transformers 5.24.0 takes it. (Beside a
// tokenizer.json it ignores add_bos_token and add_eos_token: the post-processor there says it all.)
#include <algorithm>
#include <array>
#include <map>

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/pipeline.h"

namespace kvcache::detail {

namespace {

constexpr std::array kNamedTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

// A token is written as its content, or as an object with flags.
std::string content_of(const JsonNode& node) {
  return node.value().is_object() ? node.at("content").string() : node.string();
}

// The tokens of added_tokens_decoder in the order of their ids.
std::vector<AddedToken> tokens_by_id(const JsonNode& decoder) {
  if (!decoder.value().is_object()) decoder.fail("an object");
  std::map<std::int64_t, AddedToken> tokens;
  for (const auto& [key, value] : decoder.value().items()) {
    const bool number =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    check_value(number, decoder.path(), " has the key \"", key, "\", which is no token id");
    tokens.emplace(std::stoll(key),
                   added_token_from_json(JsonNode(value, c10::str(decoder.path(), ".", key))));
  }
  std::vector<AddedToken> ordered;
  ordered.reserve(tokens.size());
  for (const auto& [id, token] : tokens) ordered.push_back(token);
  return ordered;
}

}  // namespace

void TokenizerPipeline::apply_config(const JsonNode& root) {
  constexpr const char* kForced =
      "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
  check_value(
      !(root.boolean_or("clean_up_tokenization_spaces", false) && root.boolean_or(kForced, false)),
      root.path(), ".", kForced, " is not supported; remove it");
  if (const auto decoder = root.find("added_tokens_decoder")) {
    const auto tokens = tokens_by_id(*decoder);
    added_->add(tokens);
    for (const auto& [key, value] : decoder->value().items()) {
      const auto& content = value.at("content").get_ref<const std::string&>();
      const auto id = added_->token_to_id(content);
      check_value(content.empty() || id == std::stoll(key), decoder->path(), ".", key, " (\"",
                  content, "\") has the id ", id.value_or(-1), " in tokenizer.json");
    }
  }
  add_named_tokens(root);
  set_special_ids(root);
}

// Tokens with a name become special, with the flags under which they are known already.
void TokenizerPipeline::add_named_tokens(const JsonNode& root) {
  std::vector<AddedToken> tokens;
  const auto add = [&](const JsonNode& node) {
    const std::string content = content_of(node);
    AddedToken token;
    token.content = content;
    if (const AddedToken* known = added_->find(content)) {
      token = *known;
    } else if (node.value().is_object()) {
      token = added_token_from_json(node);
    }
    token.special = true;
    tokens.push_back(std::move(token));
  };
  for (const char* name : kNamedTokens) {
    if (const auto node = root.find(name)) add(*node);
  }
  // Tokens with names of a model's own ("image_token"), which come in the order of the file there;
  // here in the alphabet's. The order matters only for tokens that no vocabulary has, which no real
  // file does.
  for (const auto& [key, value] : root.value().items()) {
    const bool named =
        std::find(kNamedTokens.begin(), kNamedTokens.end(), key) != kNamedTokens.end();
    const bool token = value.is_string() || (value.is_object() && value.contains("content"));
    if (key.ends_with("_token") && !named && token) add(*root.find(key));
  }
  auto extra = root.find("extra_special_tokens");
  if (!extra || extra->value().empty()) extra = root.find("additional_special_tokens");
  if (extra && extra->value().is_object()) {
    for (const auto& [key, value] : extra->value().items()) add(*extra->find(key));
  } else if (extra) {
    for (const auto& node : extra->elements()) add(node);
  }
  added_->add(tokens);
}

void TokenizerPipeline::set_special_ids(const JsonNode& root) {
  const auto id_of = [&](const char* name) -> std::optional<std::int64_t> {
    const auto node = root.find(name);
    if (!node) return std::nullopt;
    return added_->token_to_id(content_of(*node));
  };
  special_ids_.bos = id_of("bos_token");
  special_ids_.eos = id_of("eos_token");
  special_ids_.pad = id_of("pad_token");
  if (const auto unk = id_of("unk_token")) special_ids_.unk = unk;
}

}  // namespace kvcache::detail
