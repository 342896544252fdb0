// Decoders of tokenizer.json as chains of stages that take text in fragments, so that decoding all
// ids and decoding id by id are the same code.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::detail {

class JsonNode;

// A step of one running decode. Tokens come as fragments, each whole characters; the last fragment
// of a token (maybe empty) says so. A stage passes on what is certain at once.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  virtual void write(std::string_view fragment, bool ends_token) = 0;
  // No more will come: passes on the rest. Later stages are finished by the chain.
  virtual void finish() {}

  void set_next(DecoderStage& next) { next_ = &next; }

 protected:
  void pass(std::string_view fragment, bool ends_token) { next_->write(fragment, ends_token); }

 private:
  DecoderStage* next_ = nullptr;
};

using DecoderStages = std::vector<std::unique_ptr<DecoderStage>>;

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Appends new stages in order. They may refer to this decoder, which must outlive them.
  virtual void append_stages(DecoderStages& stages) const = 0;
};

// Throws ValueError on an unknown type or a bad field.
std::unique_ptr<const Decoder> make_decoder(const JsonNode& node);

// One running decode: tokens in, text out.
class DecoderChain {
 public:
  // `decoder` may be null: tokens are then joined by spaces, as in the `tokenizers` library. It
  // must outlive the chain.
  explicit DecoderChain(const Decoder* decoder);

  void write(std::string_view token) { stages_.front()->write(token, true); }
  void finish();
  // The text that has become certain since the last call.
  std::string take();

 private:
  class Collector;

  DecoderStages stages_;
  Collector* collector_;
};

}  // namespace kvcache::detail
