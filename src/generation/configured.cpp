#include "generation/configured.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>

#include "kvcache/core/errors.h"
#include "kvcache/generation/stop_string_criteria.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kDefaultNewTokens = 20;

bool has_eos(const GenerationConfig& config) {
  return config.eos_token_id && !config.eos_token_id->empty();
}

bool has_stop_strings(const GenerationConfig& config) {
  return config.stop_strings && !config.stop_strings->empty();
}

at::Tensor eos_tensor(const GenerationConfig& config, const TokenRows& text) {
  return at::tensor(*config.eos_token_id, text.ids.options());
}

}  // namespace

std::int64_t max_length(const GenerationConfig& config, std::int64_t length,
                        std::int64_t max_positions) {
  if (config.max_new_tokens) return length + *config.max_new_tokens;
  const std::int64_t by_default = max_positions > 0
                                      ? std::min(length + kDefaultNewTokens, max_positions)
                                      : length + kDefaultNewTokens;
  const std::int64_t longest = config.max_length.value_or(by_default);
  check_value(longest > length, "the text is ", length,
              " tokens long before the first new one, which leaves no room within ",
              config.max_length ? "max_length = " : "the model's length of ", longest,
              "; set max_new_tokens, or a larger max_length");
  return longest;
}

StoppingCriteria stopping_criteria(const GenerationConfig& config, const Inputs& inputs,
                                   const TokenRows& text) {
  StoppingCriteria criteria = inputs.stopping_criteria;
  for (std::size_t i = 0; i < criteria.size(); ++i) {
    check_value(criteria[i] != nullptr, "stopping_criteria[", i, "] is null; leave it out");
  }
  if (has_eos(config)) {
    criteria.push_back(std::make_shared<EosTokenCriteria>(eos_tensor(config, text)));
  }
  if (has_stop_strings(config)) {
    criteria.push_back(std::make_shared<StopStringCriteria>(*config.stop_strings, inputs.text));
  }
  if (config.max_time) criteria.push_back(std::make_shared<MaxTimeCriteria>(*config.max_time));
  return criteria;
}

std::optional<std::int64_t> pad_token_id(const GenerationConfig& config, const Inputs& inputs,
                                         std::int64_t rows, std::int64_t vocab_size) {
  const bool rows_end =
      has_eos(config) || has_stop_strings(config) || !inputs.stopping_criteria.empty();
  if (rows == 1 || !rows_end) return std::nullopt;
  std::optional<std::int64_t> pad = config.pad_token_id;
  if (!pad && has_eos(config)) pad = config.eos_token_id->front();
  check_value(pad.has_value(), "a stopping criterion can end some of the ", rows,
              " rows before others, so pad_token_id must say what fills them");
  check_value(*pad < vocab_size, "pad_token_id ", *pad, " is no token of a vocabulary of ",
              vocab_size);
  return pad;
}

}  // namespace kvcache::detail
