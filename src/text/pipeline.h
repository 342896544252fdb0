// What a tokenizer.json describes, put together: added tokens, normalizer, pre-tokenizer, model,
// post-processor, decoder. Immutable once the Tokenizer has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/text/tokenizer.h"
#include "text/added_tokens.h"
#include "text/decoders.h"
#include "text/model.h"
#include "text/normalizers.h"
#include "text/post_processors.h"
#include "text/pre_tokenizers.h"

namespace kvcache::detail {

class TokenizerPipeline {
 public:
  // From the root of a tokenizer.json.
  explicit TokenizerPipeline(const JsonNode& root);
  // From all but the model, whose tokens added_tokens may name.
  TokenizerPipeline(std::unique_ptr<const Model> model, const JsonNode& root);

  // Takes over what a tokenizer_config.json says.
  void apply_config(const JsonNode& root);

  std::vector<std::int64_t> encode(std::string_view text, EncodeOptions options) const;
  std::vector<TextRange> find_special_tokens(std::string_view text) const;
  std::string normalize(std::string_view text) const;
  std::vector<std::string> pre_tokenize(std::string_view text) const;

  // Writes the token to a running decode, unless it is a special one to be skipped. Throws
  // ValueError on an unknown id.
  void decode_to(DecoderChain& chain, std::int64_t id, DecodeOptions options) const;
  const Decoder* decoder() const { return decoder_.get(); }

  const std::string& id_to_token(std::int64_t id) const;
  const AddedTokens& added_tokens() const { return *added_; }
  const SpecialTokenIds& special_ids() const { return special_ids_; }

 private:
  std::vector<std::string> split(std::string_view text, bool begins_text) const;
  void add_tokens_of_file(const JsonNode& root);
  void add_named_tokens(const JsonNode& root);
  void set_special_ids(const JsonNode& root);

  std::unique_ptr<const Model> model_;
  std::unique_ptr<const Normalizer> normalizer_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const PostProcessor> post_processor_;
  std::unique_ptr<const Decoder> decoder_;
  std::unique_ptr<AddedTokens> added_;
  SpecialTokenIds special_ids_;
};

}  // namespace kvcache::detail
