// Tokenizers of folders that hold a SentencePiece model (spiece.model, tokenizer.model): what a
// tokenizer.json would say about it comes from the file and from tokenizer_config.json.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kvcache::detail {

class TokenizerPipeline;

// From the bytes of T5's spiece.model: a unigram model, the sentinels <extra_id_...> behind its
// pieces, and </s> behind every text. `config` is the tokenizer_config.json, {} if there is none;
// it is applied. Throws ValueError on damaged bytes and on a model of another kind.
std::shared_ptr<TokenizerPipeline> make_t5_pipeline(std::string_view bytes, nlohmann::json config);

// From the bytes of a tokenizer.model as Llama 2 and Gemma have it: byte pairs with byte fallback.
// What its settings do not say (`legacy`, `add_bos_token`, `add_eos_token`) comes from `config`.
std::shared_ptr<TokenizerPipeline> make_sentencepiece_bpe_pipeline(std::string_view bytes,
                                                                   nlohmann::json config);

}  // namespace kvcache::detail
