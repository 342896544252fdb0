#include "generation/prompt.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "generation/configured.h"
#include "generation/padding.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

bool is_integer(const at::Tensor& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

// A text as the caller gave it, and the names of its parts in messages.
struct GivenText {
  at::Tensor ids;
  std::optional<at::Tensor> mask;
  const char* ids_name = "input_ids";
  const char* mask_name = "attention_mask";
};

GivenText encoder_text(const Inputs& inputs) { return {inputs.input_ids, inputs.attention_mask}; }

// The text that is gone on from; where none is given, the config's first token.
GivenText decoder_text(const Inputs& inputs, const GenerationConfig& config) {
  GivenText text = encoder_text(inputs);
  if (text.ids.defined()) return text;
  check_value(config.bos_token_id.has_value(),
              "there are no input_ids to start from; pass some, or set bos_token_id");
  check_value(!text.mask, "there is an attention_mask, but no input_ids");
  text.ids = at::full({1, 1}, *config.bos_token_id, at::kLong);
  return text;
}

// The same of a model with an encoder.
GivenText decoder_text_with_encoder(const Inputs& inputs, const GenerationConfig& config,
                                    const Seq2SeqConfig& model) {
  GivenText text{inputs.decoder_input_ids, inputs.decoder_attention_mask, "decoder_input_ids",
                 "decoder_attention_mask"};
  if (text.ids.defined()) return text;
  check_value(!text.mask, "there is a decoder_attention_mask, but no decoder_input_ids");
  check_value(!inputs.continuation,
              "a continuation goes on from decoder_input_ids, but there are none");
  std::optional<std::int64_t> start = config.decoder_start_token_id;
  if (!start) start = model.decoder_start_token_id;
  if (!start) start = config.bos_token_id;
  check_value(start.has_value(),
              "there are no decoder_input_ids to start from; pass some, or set "
              "decoder_start_token_id");
  text.ids = at::full({inputs.input_ids.size(0), 1}, *start, inputs.input_ids.options());
  return text;
}

at::Tensor checked_ids(const GivenText& text, std::int64_t vocab_size) {
  const at::Tensor& ids = text.ids;
  check_value(ids.defined() && ids.dim() == 2 &&
                  (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              text.ids_name, " must be int64 or int32 [batch, tokens], but are ",
              ids.defined() ? c10::str(dtype_name(ids), " ", ids.sizes()) : "undefined");
  check_value(ids.size(0) > 0 && ids.size(1) > 0, text.ids_name,
              " must hold at least one row and one token, but have shape ", ids.sizes(),
              "; leave them out to start from bos_token_id");
  const auto smallest = ids.min().item<std::int64_t>();
  const auto largest = ids.max().item<std::int64_t>();
  check_value(smallest >= 0 && largest < vocab_size, text.ids_name, " hold ",
              smallest < 0 ? smallest : largest, ", which is no token of a vocabulary of ",
              vocab_size);
  return ids.to(at::kLong);
}

// bool [batch, tokens or cached + tokens] on the ids' device; absent if there is none.
std::optional<at::Tensor> checked_mask(const GivenText& text, std::int64_t cached) {
  if (!text.mask) return std::nullopt;
  const at::Tensor& mask = *text.mask;
  const std::int64_t rows = text.ids.size(0), tokens = text.ids.size(1);
  check_value(mask.defined() && (is_integer(mask) || mask.scalar_type() == at::kBool),
              text.mask_name, " must hold integers or bools");
  check_value(mask.dim() == 2 && mask.size(0) == rows &&
                  (mask.size(1) == tokens || mask.size(1) == cached + tokens),
              text.mask_name, " must have the shape of ", text.ids_name, ", ", text.ids.sizes(),
              ", or include the ", cached, " cached tokens: [", rows, ", ", cached + tokens,
              "]; but it is ", mask.sizes());
  check_value(mask.eq(1).logical_or(mask.eq(0)).all().item<bool>(), text.mask_name,
              " must hold 0 for padding and 1 for tokens, nothing else");
  return mask.to(text.ids.device(), at::kBool);
}

// The same, but absent if no row has padding, of a text that goes on behind its last column.
std::optional<at::Tensor> checked_open_mask(const GivenText& text, std::int64_t cached) {
  const std::optional<at::Tensor> valid = checked_mask(text, cached);
  if (!valid) return std::nullopt;
  const at::Tensor last = valid->select(1, -1);
  check_value(last.all().item<bool>(), "row ", first_false(last), " of ", text.mask_name,
              " ends in padding, so that no token could follow; pad on the left");
  if (valid->all().item<bool>() && cached == 0) return std::nullopt;
  return valid;
}

// The encoder's input, whole. Absent in a continuation without one.
std::optional<EncoderInput> checked_encoder(const Inputs& inputs, std::int64_t vocab_size) {
  const GivenText text = encoder_text(inputs);
  if (inputs.continuation && !text.ids.defined()) {
    check_value(!text.mask, "there is an attention_mask, but no input_ids");
    return std::nullopt;
  }
  check_value(text.ids.defined(), "there are no input_ids for the encoder");
  EncoderInput encoder{checked_ids(text, vocab_size), checked_mask(text, 0)};
  if (encoder.attention_mask) {
    const at::Tensor real = encoder.attention_mask->any(1);
    check_value(real.all().item<bool>(), "row ", first_false(real),
                " of attention_mask holds padding alone");
  }
  return encoder;
}

void check_kind(const LanguageModel& model, const Cache& cache) {
  const bool pair = dynamic_cast<const EncoderDecoderCache*>(&cache) != nullptr;
  check_value(pair == model.is_encoder_decoder(), "the cache is of kind ", cache.kind(), ", but a ",
              model.config().model_type,
              pair ? " has no encoder; pass another kind of cache"
                   : " has an encoder; pass an EncoderDecoderCache");
}

void check_cache(const Prompt& prompt, const Cache& cache, bool beams) {
  if (cache.batch_size() <= 1 || cache.batch_size() == prompt.rows()) return;
  throw ValueError(c10::str(
      "the cache holds ", cache.batch_size(), " rows, but ", prompt.rows(),
      beams ? " texts are to be gone on with (rows of input_ids; beams come later); "
            : " sequences are to be made (rows of input_ids x num_return_sequences); ",
      "change its rows with batch_repeat_interleave or batch_select_indices, or reset it"));
}

}  // namespace

Prompt make_prompt(const Inputs& inputs, const GenerationConfig& config, const LanguageModel& model,
                   Cache* cache) {
  const std::int64_t cached = cache == nullptr ? 0 : cache->history().seen();
  const std::int64_t vocab_size = model.config().vocab_size;
  check_value(cache != nullptr || !inputs.continuation,
              "a continuation needs the cache that it continues, as past_key_values");
  if (cache != nullptr) check_kind(model, *cache);
  Prompt prompt;
  GivenText text;
  if (const auto& seq2seq = model.config().seq2seq) {
    prompt.encoder = checked_encoder(inputs, vocab_size);
    text = decoder_text_with_encoder(inputs, config, *seq2seq);
  } else {
    check_value(!inputs.decoder_input_ids.defined() && !inputs.decoder_attention_mask,
                "there are decoder_input_ids, but a ", model.config().model_type,
                " has no encoder; pass its ids as input_ids");
    text = decoder_text(inputs, config);
  }
  prompt.ids = checked_ids(text, vocab_size);
  check_value(!prompt.encoder || prompt.encoder->input_ids.size(0) == prompt.rows(),
              "decoder_input_ids have ", prompt.rows(), " rows, but input_ids ",
              prompt.encoder ? prompt.encoder->input_ids.size(0) : 0);
  prompt.valid = checked_open_mask(text, cached);
  prompt.continuation = cached > 0 && (inputs.continuation ||
                                       (prompt.valid && prompt.valid->size(1) > prompt.tokens()));
  const bool beams = config.num_beams.value_or(1) > 1;
  const std::int64_t copies = beams ? 1 : config.num_return_sequences.value_or(1);
  if (copies > 1) {
    prompt.ids = prompt.ids.repeat_interleave(copies, 0);
    if (prompt.valid) prompt.valid = prompt.valid->repeat_interleave(copies, 0);
  }
  prompt.given = prompt.ids;
  prompt.longest = max_length(config, prompt.tokens() + (prompt.continuation ? cached : 0),
                              model.config().max_position_embeddings);
  if (!prompt.continuation) move_padding_before(prompt);
  if (cache != nullptr) {
    cache->check_fits(model.config().layer_specs(), model.dtype());
    check_cache(prompt, *cache, beams);
    check_padding(prompt, model, *cache);
    go_on_from_rows(prompt, model, *cache);
    move_padding_behind_prefix(prompt, model, *cache);
  }
  prompt.ids = prompt.ids.contiguous();
  return prompt;
}

TokenRows whole_text(const Prompt& prompt, const Cache* cache) {
  if (!prompt.continuation) return {prompt.ids, prompt.valid};
  const History& history = cache->history();
  const auto like_past = [&](at::ScalarType dtype) {
    return at::zeros({prompt.rows(), history.seen()}, prompt.ids.options().dtype(dtype));
  };
  const at::Device device = prompt.ids.device();
  const bool known = history.known();
  const auto past = [&](const at::Tensor& held) {
    return held.to(device).expand({prompt.rows(), -1});
  };
  const at::Tensor past_ids = known ? past(history.ids()) : like_past(at::kLong);
  const at::Tensor ids = at::cat({past_ids, prompt.ids}, 1);
  if (known && prompt.valid && prompt.valid->size(1) == ids.size(1)) return {ids, prompt.valid};
  if (known && !prompt.valid && history.all_valid()) return {ids};
  const at::Tensor past_valid = known ? past(history.valid()) : like_past(at::kBool);
  const auto new_valid = prompt.last_valid(prompt.tokens());
  return {ids,
          at::cat({past_valid, new_valid ? *new_valid : at::ones_like(prompt.ids, at::kBool)}, 1)};
}

std::optional<TokenRows> encoder_rows(const Prompt& prompt, const Cache* cache) {
  if (prompt.encoder) return TokenRows{prompt.encoder->input_ids, prompt.encoder->attention_mask};
  const auto& held = dynamic_cast<const EncoderDecoderCache&>(*cache);
  const History& history = held.cross_attention_cache().history();
  if (history.batch() == 0 || !history.known()) return std::nullopt;
  const at::Device device = prompt.ids.device();
  return TokenRows{history.ids().to(device), history.valid().to(device)};
}

bool holds_encoder(const Prompt& prompt, Cache& cache) {
  if (!prompt.encoder) return true;
  const EncoderInput& encoder = *prompt.encoder;
  const auto host = [](const at::Tensor& t) { return t.to(at::kCPU).contiguous(); };
  CrossInput input{.tokens = encoder.input_ids.size(1),
                   .batch = encoder.input_ids.size(0),
                   .ids = host(encoder.input_ids)};
  if (encoder.attention_mask) input.valid = host(*encoder.attention_mask);
  return dynamic_cast<EncoderDecoderCache&>(cache).holds(input, prompt.rows());
}

std::int64_t keep_common_prefix(const Prompt& prompt, Cache& cache) {
  const std::int64_t seen = cache.history().seen();
  if (cache.batch_size() == 1 && prompt.rows() > 1) {
    const bool compares = !prompt.continuation && seen > 0;
    if (compares) cache.common_prefix(prompt.ids.narrow(0, 0, 1));  // throws for unknown tokens
    cache.expand(prompt.rows());
  }
  if (prompt.continuation || seen == 0) return 0;
  // The last token is computed again if need be: its scores are what generation starts from.
  const std::int64_t most = prompt.tokens() - 1;
  std::optional<at::Tensor> valid = prompt.valid;
  if (valid) valid = valid->narrow(1, 0, most);
  const std::int64_t keep = cache.can_reuse(prompt.ids.narrow(1, 0, most), valid);
  // The keys of the same encoder input are worth keeping also where nothing of the decoder is.
  const bool worth_it =
      prompt.encoder ? holds_encoder(prompt, cache) && cache.can_crop(seen - keep) : keep > 0;
  if (worth_it) {
    if (keep < seen) cache.crop(keep - seen);
    return keep;
  }
  cache.reset();
  return 0;
}

}  // namespace kvcache::detail
