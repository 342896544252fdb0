#include "generation/draft_source.h"

#include "generation/draft_model.h"
#include "generation/prompt_lookup.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

void check_assistant(const LanguageModel& assistant, const LanguageModel& model) {
  check_value(!assistant.is_encoder_decoder() && !model.is_encoder_decoder(),
              "assistant_model drafts for decoders alone, and is one: not for a ",
              model.config().model_type, " by a ", assistant.config().model_type);
  check_value(assistant.config().vocab_size == model.config().vocab_size,
              "assistant_model has a vocabulary of ", assistant.config().vocab_size,
              ", but the model of ", model.config().vocab_size, "; it must have the same tokens");
}

}  // namespace

std::optional<std::int64_t> longest_draft(const GenerationConfig& config,
                                          const LanguageModel* assistant) {
  if (config.prompt_lookup_num_tokens) return config.prompt_lookup_num_tokens;
  if (assistant == nullptr) return std::nullopt;
  return config.num_assistant_tokens.value_or(DraftModel::kDefaultTokens);
}

std::unique_ptr<DraftSource> make_draft_source(const GenerationConfig& config, const Inputs& inputs,
                                               const LanguageModel& model, std::int64_t rows) {
  const bool lookup = config.prompt_lookup_num_tokens.has_value();
  if (!lookup && inputs.assistant_model == nullptr) return nullptr;
  check_value(!lookup || inputs.assistant_model == nullptr,
              "prompt_lookup_num_tokens and an assistant_model both draft; leave out one of them");
  check_value(rows == 1, "drafts are for one row, but there are ", rows,
              "; leave prompt_lookup_num_tokens and assistant_model out for a batch");
  check_value(config.use_cache.value_or(true),
              "drafts are checked over a cache; leave use_cache out");
  if (lookup) return std::make_unique<PromptLookup>(config);
  check_assistant(*inputs.assistant_model, model);
  return std::make_unique<DraftModel>(*inputs.assistant_model, config);
}

}  // namespace kvcache::detail
