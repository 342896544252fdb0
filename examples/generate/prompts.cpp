#include "generate/prompts.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "kvcache/chat/chat_template.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"

namespace generate_program {
namespace {

using kvcache::check_value;
using kvcache::ValueError;
using nlohmann::json;

std::vector<std::int64_t> encode(const std::string& text, const kvcache::Tokenizer& tokenizer,
                                 const kvcache::GenerationConfig& config) {
  std::vector<std::int64_t> ids = tokenizer.encode(text);
  if (!ids.empty()) return ids;
  check_value(config.bos_token_id.has_value(),
              "--prompt is empty, and the model has no bos_token_id to start from");
  return {*config.bos_token_id};
}

at::Tensor read_rows(const json& object, const char* name, const std::string& source) {
  const auto wrong = [&](const std::string& what) {
    return ValueError(fmt::format("{}: {} must be a list of rows of integers of one length, {}",
                                  source, name, what));
  };
  const json& rows = object.at(name);
  if (!rows.is_array() || rows.empty()) throw wrong("at least one row");
  std::vector<std::int64_t> flat;
  for (const json& row : rows) {
    if (!row.is_array()) throw wrong(fmt::format("but holds a row that is {}", row.type_name()));
    if (row.size() != rows.front().size()) {
      throw wrong(fmt::format("but holds rows of {} and {}", rows.front().size(), row.size()));
    }
    for (const json& id : row) {
      const bool too_large = id.is_number_unsigned() && id.get<std::uint64_t>() > INT64_MAX;
      if (!id.is_number_integer() || too_large) throw wrong("but holds " + id.dump());
      flat.push_back(id.get<std::int64_t>());
    }
  }
  return at::tensor(flat, at::kLong)
      .reshape(
          {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.front().size())});
}

// The parser alone would keep the last of two fields of one name, and take in any nesting, at which
// what walks or shows a value would run out of stack.
json parse_token_file(const std::filesystem::path& path) {
  using Event = json::parse_event_t;
  constexpr int kListsWithin = 3;  // the object, a field's list, a row
  std::set<std::string> names;
  const auto expected = [&](int depth, Event event, json& parsed) {
    check_value(event != Event::array_start || depth < kListsWithin, path.string(),
                " must hold lists of rows of integers, but a row holds a list");
    check_value(event != Event::object_start || depth == 0, path.string(),
                " must hold lists of rows of integers, but holds an object within its own");
    if (event == Event::key && depth == 1) {
      const auto& name = parsed.get_ref<const std::string&>();
      check_value(names.insert(name).second, path.string(), " has the field ", name, " twice");
    }
    return true;
  };
  try {
    return json::parse(kvcache::read_text_file(path), expected);
  } catch (const json::exception& error) {
    throw ValueError(fmt::format("{} is not valid JSON: {}", path.string(), error.what()));
  }
}

}  // namespace

TokenBatch tokenize(const std::vector<std::string>& texts, const kvcache::Tokenizer& tokenizer,
                    const kvcache::GenerationConfig& config) {
  std::vector<std::vector<std::int64_t>> rows;
  std::size_t longest = 0;
  for (const std::string& text : texts) {
    rows.push_back(encode(text, tokenizer, config));
    longest = std::max(longest, rows.back().size());
  }
  const auto columns = static_cast<std::int64_t>(longest);
  TokenBatch batch;
  batch.ids = at::zeros({static_cast<std::int64_t>(rows.size()), columns}, at::kLong);
  batch.ids.fill_(config.pad_token_id.value_or(0));
  batch.mask = at::zeros_like(batch.ids);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const auto tokens = static_cast<std::int64_t>(rows[i].size());
    batch.ids[row].narrow(0, columns - tokens, tokens).copy_(at::tensor(rows[i], at::kLong));
    batch.mask->select(0, row).narrow(0, columns - tokens, tokens).fill_(1);
  }
  return batch;
}

TokenBatch tokenize_messages(const std::filesystem::path& messages,
                             const std::filesystem::path& model,
                             const kvcache::Tokenizer& tokenizer) {
  const std::string json_text = kvcache::read_text_file(messages);
  const auto chat_template = kvcache::ChatTemplate::from_folder(model);
  std::string text;
  try {
    text = chat_template.render_json(json_text, {.add_generation_prompt = true});
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("{}: {}", messages.string(), error.what()));
  }
  // The template has written the special tokens.
  const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
  check_value(!ids.empty(), messages.string(), ": the chat template makes no text of the messages");
  return {.ids = at::tensor(ids, at::kLong).unsqueeze(0), .mask = {}};
}

TokenBatch read_token_file(const std::filesystem::path& path) {
  const json object = parse_token_file(path);
  check_value(
      object.is_object() && object.contains("input_ids"), path.string(),
      R"( must be an object {"input_ids": [[...], ...]}, with "attention_mask" if need be)");
  for (const auto& [name, value] : object.items()) {
    check_value(name == "input_ids" || name == "attention_mask", path.string(),
                " has a field that is neither input_ids nor attention_mask: ", name);
  }
  TokenBatch batch{.ids = read_rows(object, "input_ids", path.string()), .mask = {}};
  if (const auto mask = object.find("attention_mask"); mask != object.end() && !mask->is_null()) {
    batch.mask = read_rows(object, "attention_mask", path.string());
  }
  return batch;
}

}  // namespace generate_program
