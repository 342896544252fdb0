#include "kvcache/chat/tokenizer_text.h"

#include <memory>
#include <string>
#include <utility>

#include "kvcache/text/incremental_decoder.h"

namespace kvcache {
namespace {

class TokenizerText final : public RunningText {
 public:
  TokenizerText(const Tokenizer& tokenizer, DecodeOptions options) : decoder_(tokenizer, options) {}

  std::string push(std::int64_t id) override { return decoder_.push(id); }
  std::string finish() override { return decoder_.finish(); }

 private:
  IncrementalDecoder decoder_;
};

}  // namespace

MakeRunningText running_text(const Tokenizer& tokenizer, DecodeOptions options) {
  return [tokenizer, options] { return std::make_unique<TokenizerText>(tokenizer, options); };
}

}  // namespace kvcache
