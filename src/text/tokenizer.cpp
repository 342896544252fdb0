#include "kvcache/text/tokenizer.h"

#include <utility>

#include "io/posix_file.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"
#include "kvcache/text/incremental_decoder.h"
#include "text/decoders.h"
#include "text/json_node.h"
#include "text/pipeline.h"

namespace kvcache {

namespace {

using detail::DecoderChain;
using detail::JsonNode;
using detail::TokenizerPipeline;

// Makes the pipeline, with `name` (a path, or "tokenizer.json") before every message.
std::shared_ptr<TokenizerPipeline> make_pipeline(std::string_view json, const std::string& name) {
  const auto parsed = detail::parse_json(json, name);
  try {
    return std::make_shared<TokenizerPipeline>(JsonNode(parsed, "tokenizer"));
  } catch (const ValueError& error) {
    throw ValueError(c10::str(name, ": ", error.what()));
  }
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerPipeline> pipeline)
    : pipeline_(std::move(pipeline)) {}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json) {
  return Tokenizer(make_pipeline(tokenizer_json, "tokenizer.json"));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
  return Tokenizer(make_pipeline(read_text_file(tokenizer_json), tokenizer_json.string()));
}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  auto pipeline = make_pipeline(read_text_file(file), file.string());
  const auto config_file = folder / "tokenizer_config.json";
  if (detail::is_present(config_file)) {
    const auto config = detail::parse_json(read_text_file(config_file), config_file.string());
    try {
      pipeline->apply_config(JsonNode(config, "tokenizer_config"));
    } catch (const ValueError& failure) {
      throw ValueError(c10::str(config_file.string(), ": ", failure.what()));
    }
  }
  return Tokenizer(std::move(pipeline));
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return pipeline_->encode(text, options);
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
