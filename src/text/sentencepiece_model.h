// The unigram model of a SentencePiece file, run by libsentencepiece, which also normalizes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/model.h"
#include "text/sentencepiece_file.h"
#include "text/token_map.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace kvcache::detail {

class SentencePieceModel final : public Model {
 public:
  // `file` is what `bytes` parse to. Throws ValueError if libsentencepiece does not take them.
  SentencePieceModel(std::string_view bytes, const SentencePieceFile& file);
  ~SentencePieceModel() override;
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  // Puts a space before the piece, as the file says. Throws RuntimeError where the library fails.
  void tokenize(std::string_view piece, std::vector<std::int64_t>& ids) const override;
  std::optional<std::int64_t> token_to_id(std::string_view token) const override;
  const std::string* id_to_token(std::int64_t id) const override;
  std::int64_t vocab_size() const override;
  std::optional<std::string> unk_token() const override { return unk_token_; }

 private:
  std::unique_ptr<const sentencepiece::SentencePieceProcessor> processor_;
  std::vector<std::string> tokens_;
  TokenMap<std::int64_t> ids_;
  std::string unk_token_;
};

}  // namespace kvcache::detail
