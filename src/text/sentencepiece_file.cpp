#include "text/sentencepiece_file.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "kvcache/core/errors.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

// Real pieces have at most some tens of characters.
constexpr std::size_t kMaxPieceBytes = 1024;

// A field of a protocol buffer message: https://protobuf.dev/programming-guides/encoding.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t varint = 0;  // the value, if it is a varint
  std::string_view bytes;    // else
};

class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}

  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t key = read_varint();
    Field field{key >> 3, 0, {}};
    switch (key & 7) {
      case 0:
        field.varint = read_varint();
        break;
      case 1:
        field.bytes = read_bytes(8);
        break;
      case 2:
        field.bytes = read_bytes(read_varint());
        break;
      case 5:
        field.bytes = read_bytes(4);
        break;
      default:
        fail();
    }
    return field;
  }

 private:
  [[noreturn]] static void fail() {
    throw ValueError("it is damaged, or no SentencePiece model at all");
  }

  std::uint64_t read_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(read_bytes(1).front());
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail();
  }

  std::string_view read_bytes(std::uint64_t count) {
    if (count > rest_.size()) fail();
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }

  std::string_view rest_;
};

SentencePiece read_piece(std::string_view message) {
  SentencePiece piece;
  WireReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == 1) piece.text = field->bytes;
    if (field->number == 2 && field->bytes.size() == sizeof(float)) {
      std::memcpy(&piece.score, field->bytes.data(), sizeof(float));
    }
    if (field->number == 3) {
      check_value(field->varint >= 1 && field->varint <= 6, "a piece has the type ", field->varint,
                  ", known are 1 to 6");
      piece.type = static_cast<PieceType>(field->varint);
    }
  }
  return piece;
}

void read_trainer_spec(std::string_view message, SentencePieceFile& file) {
  WireReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == 3) file.model_type = field->varint;
    if (field->number == 24) file.treat_whitespace_as_suffix = field->varint != 0;
    if (field->number == 35) file.byte_fallback = field->varint != 0;
  }
}

void read_normalizer_spec(std::string_view message, SentencePieceFile& file) {
  WireReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == 2) file.charsmap = field->bytes;
    if (field->number == 3) file.add_dummy_prefix = field->varint != 0;
    if (field->number == 4) file.remove_extra_whitespaces = field->varint != 0;
    if (field->number == 5) file.escape_whitespaces = field->varint != 0;
  }
}

void read_denormalizer_spec(std::string_view message) {
  SentencePieceFile ignored;
  read_normalizer_spec(message, ignored);
  check_value(ignored.charsmap.empty(),
              "it has rules for decoded text (denormalizer_spec), which are not supported");
}

void check_pieces(const std::vector<SentencePiece>& pieces) {
  check_value(!pieces.empty(), "it has no pieces: it is damaged, or no SentencePiece model at all");
  std::unordered_set<std::string_view> seen;
  std::size_t unknown = 0;
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const SentencePiece& piece = pieces[id];
    const bool text = !piece.text.empty() && piece.text.size() <= kMaxPieceBytes &&
                      piece.text.find('\0') == std::string::npos &&
                      find_invalid_utf8(piece.text) == std::string_view::npos;
    check_value(text, "piece ", id, " is empty, longer than ", kMaxPieceBytes,
                " bytes, or no UTF-8 text");
    check_value(seen.insert(piece.text).second, "piece ", id, " (\"", piece.text,
                "\") is there twice");
    check_value(std::isfinite(piece.score), "piece ", id, " (\"", piece.text,
                "\") has a score that is no number");
    unknown += piece.type == PieceType::kUnknown ? 1 : 0;
  }
  check_value(unknown == 1, "it has ", unknown, " unknown pieces, and must have one");
}

}  // namespace

SentencePieceFile parse_sentencepiece_file(std::string_view bytes) {
  SentencePieceFile file;
  bool trainer = false;
  bool normalizer = false;
  WireReader reader(bytes);
  while (const auto field = reader.next()) {
    trainer |= field->number == 2;
    normalizer |= field->number == 3;
    if (field->number == 1) file.pieces.push_back(read_piece(field->bytes));
    if (field->number == 2) read_trainer_spec(field->bytes, file);
    if (field->number == 3) read_normalizer_spec(field->bytes, file);
    if (field->number == 5) read_denormalizer_spec(field->bytes);
  }
  check_value(trainer && normalizer, "it lacks the settings behind its pieces (trainer_spec and ",
              "normalizer_spec): it is cut short, or no SentencePiece model at all");
  check_pieces(file.pieces);
  check_charsmap(file.charsmap);
  return file;
}

}  // namespace kvcache::detail
