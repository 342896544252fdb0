#include "text/pipeline.h"

#include <algorithm>
#include <span>

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

void check_utf8(std::string_view text) {
  const std::size_t offset = find_invalid_utf8(text);
  check_value(offset == std::string_view::npos, "the text is not valid UTF-8: its byte at offset ",
              offset, " belongs to no character; convert the text to UTF-8 first");
}

bool overlaps(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const TextRange& range) {
    return range.begin < end && begin < range.end;
  });
}

}  // namespace

TokenizerPipeline::TokenizerPipeline(const JsonNode& root)
    : TokenizerPipeline(make_model(root.at("model")), root) {}

TokenizerPipeline::TokenizerPipeline(std::unique_ptr<const Model> model, const JsonNode& root)
    : model_(std::move(model)) {
  if (const auto version = root.find("version")) {
    check_value(version->string() == "1.0", version->path(), " must be \"1.0\"");
  }
  if (const auto node = root.find("normalizer")) normalizer_ = make_normalizer(*node);
  if (const auto node = root.find("pre_tokenizer")) {
    pre_tokenizer_ = make_pre_tokenizer(*node);
    check_value(
        !pre_tokenizer_->depends_on_place() || normalizer_ == nullptr || normalizer_->keeps_start(),
        node->path(), ": prepend_scheme \"first\" is not known here beside a normalizer ",
        "that may remove the start of a text");
  }
  if (const auto node = root.find("post_processor")) post_processor_ = make_post_processor(*node);
  if (const auto node = root.find("decoder")) decoder_ = make_decoder(*node);
  added_ = std::make_unique<AddedTokens>(*model_, normalizer_.get());
  add_tokens_of_file(root);
  if (const auto unk = model_->unk_token()) special_ids_.unk = added_->token_to_id(*unk);
}

void TokenizerPipeline::add_tokens_of_file(const JsonNode& root) {
  const auto list = root.find("added_tokens");
  if (!list) return;
  std::vector<AddedToken> tokens;
  const auto nodes = list->elements();
  tokens.reserve(nodes.size());
  for (const auto& node : nodes) tokens.push_back(added_token_from_json(node));
  added_->add(tokens);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (tokens[i].content.empty()) continue;
    const std::int64_t written = nodes[i].at("id").token_id();
    const auto given = added_->token_to_id(tokens[i].content);
    check_value(given == written, nodes[i].path(), " (\"", tokens[i].content, "\") has the id ",
                written, ", but its place in the vocabulary gives it ", given.value_or(-1),
                "; added tokens must be in model.vocab or follow it without gaps");
  }
}

std::vector<std::string> TokenizerPipeline::split(std::string_view text, bool begins_text) const {
  std::vector<std::string> pieces;
  if (text.empty()) return pieces;
  if (pre_tokenizer_ != nullptr) {
    pre_tokenizer_->split(text, begins_text, pieces);
  } else {
    pieces.emplace_back(text);
  }
  return pieces;
}

std::vector<std::int64_t> TokenizerPipeline::encode(std::string_view text,
                                                    EncodeOptions options) const {
  check_utf8(text);
  const auto parse_special = [&](std::size_t begin, std::size_t end) {
    return options.parse_special_tokens && !overlaps(options.literal, begin, end);
  };
  std::vector<std::int64_t> ids;
  const auto encode_text = [&](std::string_view plain, bool begins_text) {
    const std::string normal =
        normalizer_ != nullptr ? normalizer_->normalize(plain) : std::string(plain);
    // Places in normalized text are others: all of it is as plain as its plainest part.
    const auto begin = static_cast<std::size_t>(plain.data() - text.data());
    const bool parse = parse_special(begin, begin + plain.size());
    for (const Section& section :
         added_->split(normal, true, [&](std::size_t, std::size_t) { return parse; })) {
      if (section.id) {
        ids.push_back(*section.id);
        continue;
      }
      const bool begins = begins_text && section.text.data() == normal.data();
      for (const auto& piece : split(section.text, begins)) model_->tokenize(piece, ids);
    }
  };
  for (const Section& section : added_->split(text, false, parse_special)) {
    if (section.id) {
      ids.push_back(*section.id);
    } else {
      encode_text(section.text, section.text.data() == text.data());
    }
  }
  if (options.add_special_tokens && post_processor_ != nullptr) {
    ids = post_processor_->process(std::move(ids));
  }
  return ids;
}

std::vector<TextRange> TokenizerPipeline::find_special_tokens(std::string_view text) const {
  check_utf8(text);
  std::vector<TextRange> found;
  const auto parse_special = [](std::size_t, std::size_t) { return true; };
  const auto note = [&](std::string_view spelled, std::string_view whole, std::size_t first) {
    const auto begin = first + static_cast<std::size_t>(spelled.data() - whole.data());
    found.push_back({begin, begin + spelled.size()});
  };
  for (const Section& section : added_->split(text, false, parse_special)) {
    const auto first = static_cast<std::size_t>(section.text.data() - text.data());
    if (section.id) {
      if (added_->is_special(*added_->id_to_token(*section.id))) note(section.text, text, 0);
      continue;
    }
    const std::string normal =
        normalizer_ != nullptr ? normalizer_->normalize(section.text) : std::string(section.text);
    for (const Section& part : added_->split(normal, true, parse_special)) {
      if (!part.id || !added_->is_special(*added_->id_to_token(*part.id))) continue;
      // Normalized text has other places than the text itself: the whole stretch then.
      if (normal == section.text) {
        note(part.text, normal, first);
      } else if (found.empty() || found.back().begin != first) {
        found.push_back({first, first + section.text.size()});
      }
    }
  }
  return found;
}

std::string TokenizerPipeline::normalize(std::string_view text) const {
  check_utf8(text);
  return normalizer_ != nullptr ? normalizer_->normalize(text) : std::string(text);
}

std::vector<std::string> TokenizerPipeline::pre_tokenize(std::string_view text) const {
  return split(normalize(text), true);
}

const std::string& TokenizerPipeline::id_to_token(std::int64_t id) const {
  const std::string* token = added_->id_to_token(id);
  check_value(token != nullptr, "the token id ", id, " is not in the tokenizer's vocabulary of ",
              added_->vocab_size(), " tokens");
  return *token;
}

void TokenizerPipeline::decode_to(DecoderChain& chain, std::int64_t id,
                                  DecodeOptions options) const {
  const std::string& token = id_to_token(id);
  if (options.skip_special_tokens && added_->is_special(token)) return;
  chain.write(token);
}

}  // namespace kvcache::detail
