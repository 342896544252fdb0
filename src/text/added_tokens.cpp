#include "text/added_tokens.h"

#include <algorithm>

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0) {
    std::size_t before = begin;
    if (is_word(previous_code_point(text, before))) return false;
  }
  if (end < text.size()) {
    std::size_t behind = end;
    if (is_word(next_code_point(text, behind))) return false;
  }
  return true;
}

std::size_t begin_of_space_before(std::string_view text, std::size_t at) {
  while (at > 0) {
    std::size_t previous = at;
    if (!is_white_space(previous_code_point(text, previous))) break;
    at = previous;
  }
  return at;
}

std::size_t end_of_space_behind(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_white_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

}  // namespace

AddedToken added_token_from_json(const JsonNode& node) {
  AddedToken token;
  token.content = node.at("content").string();
  token.special = node.boolean_or("special", false);
  token.single_word = node.boolean_or("single_word", false);
  token.lstrip = node.boolean_or("lstrip", false);
  token.rstrip = node.boolean_or("rstrip", false);
  token.normalized = node.boolean_or("normalized", !token.special);
  return token;
}

void AddedTokens::Matcher::add(const std::string& text, std::int64_t id) {
  if (text.empty()) return;
  const auto [other, fresh] = ids.emplace(text, id);
  check_value(fresh, "two added tokens, with the ids ", other->second, " and ", id,
              ", are both looked for as \"", text, "\"");
  auto& of_first = lengths[static_cast<unsigned char>(text.front())];
  const auto place =
      std::lower_bound(of_first.begin(), of_first.end(), text.size(), std::greater<>());
  if (place == of_first.end() || *place != text.size()) of_first.insert(place, text.size());
}

std::optional<std::int64_t> AddedTokens::Matcher::longest(std::string_view text, std::size_t at,
                                                          std::size_t& length) const {
  for (const std::size_t candidate : lengths[static_cast<unsigned char>(text[at])]) {
    if (candidate > text.size() - at) continue;
    const auto found = ids.find(text.substr(at, candidate));
    if (found == ids.end()) continue;
    length = candidate;
    return found->second;
  }
  return std::nullopt;
}

void AddedTokens::add(const std::vector<AddedToken>& tokens) {
  std::int64_t next_id = model_->vocab_size();
  for (const auto& [id, entry] : entries_) next_id = std::max(next_id, id + 1);
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const auto known = token_to_id(token.content);
    const std::int64_t id = known ? *known : next_id++;
    const bool changes = token.normalized && normalizer_ != nullptr;
    entries_.insert_or_assign(
        id, Entry{token, changes ? normalizer_->normalize(token.content) : token.content});
    ids_.insert_or_assign(token.content, id);
    if (token.special) special_.insert(token.content);
  }
  rebuild_matchers();
}

void AddedTokens::rebuild_matchers() {
  raw_ = {};
  normalized_ = {};
  for (const auto& [id, entry] : entries_) {
    (entry.token.normalized ? normalized_ : raw_).add(entry.text, id);
  }
}

std::vector<Section> AddedTokens::split(std::string_view text, bool normalized,
                                        const ParseSpecial& parse_special) const {
  const Matcher& matcher = normalized ? normalized_ : raw_;
  std::vector<Section> sections;
  std::size_t covered = 0;
  std::size_t length = 0;
  for (std::size_t at = 0; at < text.size(); at += std::max<std::size_t>(length, 1)) {
    length = 0;
    const auto id = matcher.longest(text, at, length);
    if (!id) continue;
    const AddedToken& token = entries_.at(*id).token;
    std::size_t begin = at;
    std::size_t end = at + length;
    if (is_special(token.content) && !parse_special(begin, end)) continue;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(begin_of_space_before(text, begin), covered);
    if (token.rstrip) end = end_of_space_behind(text, end);
    if (covered < begin) sections.push_back({text.substr(covered, begin - covered), std::nullopt});
    sections.push_back({text.substr(at, length), id});
    covered = end;
  }
  if (covered < text.size()) sections.push_back({text.substr(covered), std::nullopt});
  return sections;
}

std::optional<std::int64_t> AddedTokens::token_to_id(std::string_view token) const {
  const auto found = ids_.find(token);
  return found != ids_.end() ? found->second : model_->token_to_id(token);
}

const std::string* AddedTokens::id_to_token(std::int64_t id) const {
  const auto found = entries_.find(id);
  return found != entries_.end() ? &found->second.text : model_->id_to_token(id);
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(content);
  return found != ids_.end() ? &entries_.at(found->second).token : nullptr;
}

std::int64_t AddedTokens::vocab_size() const {
  const auto fresh = std::count_if(ids_.begin(), ids_.end(), [this](const auto& entry) {
    return !model_->token_to_id(entry.first).has_value();
  });
  return model_->vocab_size() + fresh;
}

}  // namespace kvcache::detail
