#include "kvcache/text/tokenizer.h"

#include <utility>

#include "kvcache/core/errors.h"
#include "kvcache/text/incremental_decoder.h"
#include "text/decoders.h"
#include "text/pipeline.h"

namespace kvcache {

namespace {

using detail::DecoderChain;
using detail::TokenizerPipeline;

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerPipeline> pipeline)
    : pipeline_(std::move(pipeline)) {}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return pipeline_->encode(text, options);
}

std::vector<TextRange> Tokenizer::find_special_tokens(std::string_view text) const {
  return pipeline_->find_special_tokens(text);
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, DecodeOptions options) const {
  DecoderChain chain(pipeline_->decoder());
  for (const std::int64_t id : ids) pipeline_->decode_to(chain, id, options);
  chain.finish();
  return chain.take();
}

std::optional<std::int64_t> Tokenizer::token_to_id(std::string_view token) const {
  return pipeline_->added_tokens().token_to_id(token);
}

std::string Tokenizer::id_to_token(std::int64_t id) const { return pipeline_->id_to_token(id); }

std::int64_t Tokenizer::vocab_size() const { return pipeline_->added_tokens().vocab_size(); }

const SpecialTokenIds& Tokenizer::special_ids() const { return pipeline_->special_ids(); }

std::string Tokenizer::normalize(std::string_view text) const { return pipeline_->normalize(text); }

std::vector<std::string> Tokenizer::pre_tokenize(std::string_view text) const {
  return pipeline_->pre_tokenize(text);
}

struct IncrementalDecoder::State {
  State(std::shared_ptr<const TokenizerPipeline> source, DecodeOptions decode_options)
      : pipeline(std::move(source)), chain(pipeline->decoder()), options(decode_options) {}

  std::shared_ptr<const TokenizerPipeline> pipeline;
  DecoderChain chain;
  DecodeOptions options;
  bool finished = false;
};

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, DecodeOptions options)
    : state_(std::make_unique<State>(tokenizer.pipeline_, options)) {}
IncrementalDecoder::~IncrementalDecoder() = default;
IncrementalDecoder::IncrementalDecoder(IncrementalDecoder&&) noexcept = default;
IncrementalDecoder& IncrementalDecoder::operator=(IncrementalDecoder&&) noexcept = default;

std::string IncrementalDecoder::push(std::int64_t id) { return push(std::span(&id, 1)); }

std::string IncrementalDecoder::push(std::span<const std::int64_t> ids) {
  check_state(!state_->finished, "push() after finish(): begin another stream with a new decoder");
  for (const std::int64_t id : ids)
    state_->pipeline->id_to_token(id);  // all known, or nothing done
  for (const std::int64_t id : ids) state_->pipeline->decode_to(state_->chain, id, state_->options);
  return state_->chain.take();
}

std::string IncrementalDecoder::finish() {
  if (!state_->finished) state_->chain.finish();
  state_->finished = true;
  return state_->chain.take();
}

}  // namespace kvcache
