// Text to token ids and back, from a Hugging Face tokenizer.json (byte pairs: byte-level as Qwen
// and Llama 3 have them, SentencePiece's as Llama 2, Mistral, Phi-3 and Gemma) or a SentencePiece
// model (T5). The ids equal those of `tokenizers` or sentencepiece; what cannot be exact is
// refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

namespace detail {
class TokenizerPipeline;
}

// Bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool operator==(const TextRange&) const = default;
};

struct EncodeOptions {
  // Adds what the tokenizer's post-processor adds (Llama 3: the token that begins a text).
  bool add_special_tokens = true;
  // false: text that spells a special token ("<|im_end|>") stays plain text. For text from outside.
  bool parse_special_tokens = true;
  // Where they stay plain text all the same, for text from outside within a text of one's own; in
  // any order. A special token that overlaps one of them is none.
  std::span<const TextRange> literal = {};
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

// The ids that tokenizer_config.json names; absent where it names none.
struct SpecialTokenIds {
  std::optional<std::int64_t> bos;
  std::optional<std::int64_t> eos;
  std::optional<std::int64_t> pad;
  std::optional<std::int64_t> unk;
};

// Immutable once made, cheap to copy (copies share the vocabulary), and safe to use from any number
// of threads at once.
//
// Differs from the oracle on purpose: an id that is not in the vocabulary is refused, not dropped;
// truncation and padding written in tokenizer.json are ignored (a batch is padded where it is
// made); an added token whose id in the file is not the one the `tokenizers` library would give it
// is refused; a file says what is done with it, where Transformers' LlamaTokenizer puts rules of
// its own in place of the file's. Character classes in patterns (\p{L}, ...) follow PCRE2's Unicode
// version, normalization that of utf8proc; code points that a later Unicode version assigned or
// changed can come out differently.
class Tokenizer {
 public:
  // Reads a tokenizer.json alone: no names for bos, eos, pad. Throws ValueError naming the file and
  // the field where it cannot be read, is damaged, or has a component of an unknown type.
  static Tokenizer from_file(const std::filesystem::path& tokenizer_json);

  // Reads what a checkpoint's folder holds: tokenizer.json, if its model is BPE; else spiece.model,
  // taken as T5's (sentinels <extra_id_99> to <extra_id_0> behind its pieces, </s> behind a text);
  // else tokenizer.model, of byte pairs without normalization, as Llama 2's. Throws ValueError if
  // there is none.
  //
  // Of tokenizer_config.json, if present, count the special tokens it names, and
  // added_tokens_decoder. As in Transformers 5.24, add_bos_token, add_eos_token and legacy do not
  // count beside a tokenizer.json (its post-processor does) but do for a tokenizer.model, extra_ids
  // does for spiece.model, and clean_up_tokenization_spaces has no effect.
  static Tokenizer from_folder(const std::filesystem::path& folder);

  // As from_file, from the file's content.
  static Tokenizer from_json(std::string_view tokenizer_json);

  // Ids of `text`, which must be UTF-8. Throws ValueError with the byte offset where it is not, and
  // RuntimeError where a pattern runs out of its resources (PCRE2's limits).
  std::vector<std::int64_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // Where encode() finds special tokens in `text`, in order.
  std::vector<TextRange> find_special_tokens(std::string_view text) const;

  // Text of `ids`. Bytes that form no character become U+FFFD. Throws ValueError on an unknown id.
  std::string decode(std::span<const std::int64_t> ids, DecodeOptions options = {}) const;

  std::optional<std::int64_t> token_to_id(std::string_view token) const;
  // The token as the vocabulary spells it (byte-level alphabet). Throws ValueError on an unknown
  // id.
  std::string id_to_token(std::int64_t id) const;

  // Number of tokens, added ones included. A model's own vocabulary may be larger (padded).
  std::int64_t vocab_size() const;

  const SpecialTokenIds& special_ids() const;

  // The first two steps of encode alone, without added tokens: for looking at what a tokenizer
  // does. (A spiece.model normalizes and splits within its model: both leave the text as it is.)
  std::string normalize(std::string_view text) const;
  std::vector<std::string> pre_tokenize(std::string_view text) const;

 private:
  friend class IncrementalDecoder;
  explicit Tokenizer(std::shared_ptr<const detail::TokenizerPipeline> pipeline);

  std::shared_ptr<const detail::TokenizerPipeline> pipeline_;
};

}  // namespace kvcache
