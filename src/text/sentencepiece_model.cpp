#include "text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include "kvcache/core/errors.h"
#include "text/sentencepiece_flags.h"

namespace kvcache::detail {
namespace {

// As this library is loaded, after the two that it depends on.
[[maybe_unused]] const bool restored = restore_c10_flags();

}  // namespace

SentencePieceModel::SentencePieceModel(std::string_view bytes, const SentencePieceFile& file) {
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  std::string failure;
  try {
    const auto status = processor->LoadFromSerializedProto(bytes);
    if (!status.ok()) failure = status.ToString();
  } catch (const std::exception& error) {  // its trie throws
    failure = error.what();
  }
  check_value(failure.empty(), "libsentencepiece cannot load it: ", failure);
  check_value(static_cast<std::size_t>(processor->GetPieceSize()) == file.pieces.size(),
              "libsentencepiece finds ", processor->GetPieceSize(), " pieces in it, and not ",
              file.pieces.size());
  processor_ = std::move(processor);
  tokens_.reserve(file.pieces.size());
  for (const SentencePiece& piece : file.pieces) {
    ids_.emplace(piece.text, static_cast<std::int64_t>(tokens_.size()));
    tokens_.push_back(piece.text);
    if (piece.type == PieceType::kUnknown) unk_token_ = piece.text;
  }
}

SentencePieceModel::~SentencePieceModel() = default;

void SentencePieceModel::tokenize(std::string_view piece, std::vector<std::int64_t>& ids) const {
  std::vector<int> found;
  const auto status = processor_->Encode(piece, &found);
  check_state(status.ok(), "libsentencepiece cannot tokenize a text of ", piece.size(),
              " bytes: ", status.ToString());
  ids.insert(ids.end(), found.begin(), found.end());
}

std::optional<std::int64_t> SentencePieceModel::token_to_id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* SentencePieceModel::id_to_token(std::int64_t id) const {
  if (id < 0 || id >= vocab_size()) return nullptr;
  return &tokens_[static_cast<std::size_t>(id)];
}

std::int64_t SentencePieceModel::vocab_size() const {
  return static_cast<std::int64_t>(tokens_.size());
}

}  // namespace kvcache::detail
