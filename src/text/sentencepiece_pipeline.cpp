#include "text/sentencepiece_pipeline.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/pipeline.h"
#include "text/sentencepiece_file.h"
#include "text/sentencepiece_model.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

using nlohmann::json;

constexpr const char* kSpace = "\u2581";

std::optional<std::int64_t> id_of(const SentencePieceFile& file, std::string_view text) {
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].text == text) return static_cast<std::int64_t>(id);
  }
  return std::nullopt;
}

json special_token(std::int64_t id, const std::string& content) {
  return {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
}

// Control pieces and the unknown one, which are no text to the model.
json special_pieces(const SentencePieceFile& file) {
  json tokens = json::array();
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    const auto& [text, score, type] = file.pieces[id];
    if (type != PieceType::kControl && type != PieceType::kUnknown) continue;
    tokens.push_back(special_token(static_cast<std::int64_t>(id), text));
  }
  return tokens;
}

// The text with the given tokens before and behind it, where there are any.
json text_between(const std::vector<std::pair<std::string, std::int64_t>>& before,
                  const std::vector<std::pair<std::string, std::int64_t>>& behind) {
  json single = json::array();
  json tokens = json::object();
  const auto add = [&](const auto& special) {
    for (const auto& [name, id] : special) {
      single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
      tokens[name] = {{"id", name}, {"ids", json::array({id})}};
    }
  };
  add(before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(behind);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
}

// Names that tokenizer_config.json need not give: what the pieces are called there, if they are.
void add_default_names(json& config, const SentencePieceFile& file,
                       const std::vector<std::pair<const char*, const char*>>& names) {
  if (!config.is_object()) return;  // refused where it is applied
  for (const auto& [name, piece] : names) {
    if (!config.contains(name) && id_of(file, piece)) config[name] = piece;
  }
}

std::int64_t extra_ids_of(const JsonNode& config) {
  constexpr std::int64_t kMost = 10'000;
  const auto node = config.find("extra_ids");
  if (!node) return 100;
  const std::int64_t count = node->count();
  check_value(count <= kMost, node->path(), " is ", count, ", more than ", kMost);
  return count;
}

void check_t5(const SentencePieceFile& file, const JsonNode& config) {
  check_value(file.model_type == SentencePieceFile::kUnigram, "its model_type is ", file.model_type,
              "; T5's is 1 (unigram)");
  const bool plain = file.add_dummy_prefix && file.escape_whitespaces &&
                     file.remove_extra_whitespaces && !file.byte_fallback &&
                     !file.treat_whitespace_as_suffix;
  check_value(plain, "its settings (dummy prefix, white space, byte fallback) are not those of T5");
  const auto name = config.string_if("tokenizer_class").value_or("T5Tokenizer");
  constexpr const char* kKnown[] = {"T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer",
                                    "MT5TokenizerFast"};
  check_value(std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown),
              config.path(), ".tokenizer_class is ", name, "; a spiece.model is read for T5 alone");
}

// The scores say the order of merges: every way to make a piece of two, best piece first.
json merges_of(const SentencePieceFile& file) {
  TokenMap<std::size_t> normal;
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type == PieceType::kNormal) normal.emplace(file.pieces[id].text, id);
  }
  std::vector<std::tuple<float, std::size_t, std::string, std::string>> merges;
  for (const auto& [text, id] : normal) {
    std::size_t at = 0;
    for (next_code_point(text, at); at < text.size(); next_code_point(text, at)) {
      std::string left = text.substr(0, at);
      std::string right = text.substr(at);
      if (!normal.contains(left) || !normal.contains(right)) continue;
      merges.emplace_back(-file.pieces[id].score, id, std::move(left), std::move(right));
    }
  }
  std::sort(merges.begin(), merges.end());
  json result = json::array();
  for (const auto& [score, id, left, right] : merges) result.push_back({left, right});
  return result;
}

void check_bpe(const SentencePieceFile& file) {
  check_value(file.model_type == SentencePieceFile::kBpe, "its model_type is ", file.model_type,
              "; a tokenizer.model must be of byte pairs (2)");
  const bool plain = file.charsmap.empty() && file.escape_whitespaces &&
                     !file.remove_extra_whitespaces && !file.treat_whitespace_as_suffix;
  check_value(plain, "it normalizes text, which is not supported for byte pairs; ",
              "save the tokenizer as tokenizer.json with Transformers");
  const bool defined = std::any_of(file.pieces.begin(), file.pieces.end(), [](const auto& piece) {
    return piece.type == PieceType::kUserDefined;
  });
  check_value(!defined, "it has pieces that a user defined, which are not supported for byte ",
              "pairs; save the tokenizer as tokenizer.json with Transformers");
}

json bpe_model_of(const SentencePieceFile& file) {
  json vocabulary = json::object();
  std::string unknown;
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    vocabulary[file.pieces[id].text] = id;
    if (file.pieces[id].type == PieceType::kUnknown) unknown = file.pieces[id].text;
  }
  return {{"type", "BPE"},        {"vocab", vocabulary},
          {"unk_token", unknown}, {"merges", merges_of(file)},
          {"fuse_unk", true},     {"byte_fallback", file.byte_fallback}};
}

// How a text gets its first space: before every part between added tokens (`legacy`), before the
// text alone, or not.
void add_spaces(json& root, const SentencePieceFile& file, bool legacy) {
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  const json back = {{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}};
  json decoders = {back, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (!file.add_dummy_prefix) {
    root["normalizer"] = replace;
  } else if (legacy) {
    const json prepend = {{"type", "Prepend"}, {"prepend", kSpace}};
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  } else {
    root["pre_tokenizer"] = {{"type", "Metaspace"},
                             {"replacement", kSpace},
                             {"prepend_scheme", "first"},
                             {"split", false}};
  }
  if (file.add_dummy_prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  root["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
}

std::vector<std::pair<std::string, std::int64_t>> named_if(bool wanted, const json& config,
                                                           const char* name,
                                                           const SentencePieceFile& file) {
  if (!wanted) return {};
  const JsonNode node = JsonNode(config, "tokenizer_config").at(name);
  const std::string token = node.value().is_object() ? node.at("content").string() : node.string();
  const auto id = id_of(file, token);
  check_value(id.has_value(), node.path(), " is \"", token, "\", which is no piece of the model");
  return {{token, *id}};
}

}  // namespace

std::shared_ptr<TokenizerPipeline> make_t5_pipeline(std::string_view bytes, json config) {
  const SentencePieceFile file = parse_sentencepiece_file(bytes);
  const JsonNode config_node(config, "tokenizer_config");
  check_t5(file, config_node);
  const auto end = id_of(file, "</s>");
  check_value(end.has_value(), "it has no piece </s>, which ends every text of T5");
  json tokens = special_pieces(file);
  auto next = static_cast<std::int64_t>(file.pieces.size());
  for (std::int64_t i = extra_ids_of(config_node) - 1; i >= 0; --i) {
    const std::string name = c10::str("<extra_id_", i, ">");
    const auto known = id_of(file, name);
    tokens.push_back(special_token(known ? *known : next++, name));
  }
  const json root = {{"added_tokens", tokens},
                     {"post_processor", text_between({}, {{"</s>", *end}})},
                     {"decoder", {{"type", "Metaspace"}, {"replacement", kSpace}}}};
  auto pipeline = std::make_shared<TokenizerPipeline>(
      std::make_unique<SentencePieceModel>(bytes, file), JsonNode(root, "spiece.model"));
  add_default_names(config, file,
                    {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}});
  pipeline->apply_config(JsonNode(config, "tokenizer_config"));
  return pipeline;
}

std::shared_ptr<TokenizerPipeline> make_sentencepiece_bpe_pipeline(std::string_view bytes,
                                                                   json config) {
  const SentencePieceFile file = parse_sentencepiece_file(bytes);
  check_bpe(file);
  const JsonNode node(config, "tokenizer_config");
  // Transformers' LlamaTokenizer is the one class that is not legacy unless told so.
  const bool llama = node.string_if("tokenizer_class").value_or("").starts_with("LlamaTokenizer");
  const bool legacy = node.boolean_or("legacy", !llama);
  const bool begins = node.boolean_or("add_bos_token", false);
  const bool ends = node.boolean_or("add_eos_token", false);
  add_default_names(config, file,
                    {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}});
  json root = {{"model", bpe_model_of(file)}, {"added_tokens", special_pieces(file)}};
  add_spaces(root, file, legacy);
  root["post_processor"] = text_between(named_if(begins, config, "bos_token", file),
                                        named_if(ends, config, "eos_token", file));
  auto pipeline = std::make_shared<TokenizerPipeline>(JsonNode(root, "tokenizer.model"));
  pipeline->apply_config(JsonNode(config, "tokenizer_config"));
  return pipeline;
}

}  // namespace kvcache::detail
