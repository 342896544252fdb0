// What generate() drives: a model that scores the next tokens of a text, over a cache. Of two
// sorts: a decoder alone (CausalLM), or one that attends to an encoder's output (Seq2SeqLM).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "kvcache/cache/cache.h"
#include "kvcache/models/config.h"

namespace kvcache {

struct EncoderInput {
  at::Tensor input_ids;  // int64 or int32 [rows, tokens], on any device
  // Integer or bool [rows, tokens], 1 = real token, at least one a row; absent: all real.
  std::optional<at::Tensor> attention_mask = {};
};

struct ForwardInput {
  at::Tensor input_ids;  // int64 or int32 [batch, tokens], on any device
  // Integer or bool [batch, tokens] or [batch, seen + tokens], 1 = real token; absent: all real.
  std::optional<at::Tensor> attention_mask = {};
  // Logits of the last `logits_to_keep` positions are computed (of all, if there are fewer); 0:
  // all.
  std::int64_t logits_to_keep = 0;
  // Of a model with an encoder, whose input_ids above are the decoder's: its rows, each for
  // batch / rows neighbouring rows of the decoder. Absent: what the cache holds of the encoder.
  std::optional<EncoderInput> encoder = {};
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  const ModelConfig& config() const { return config_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }  // of logits; layers may lie elsewhere
  // Tells models apart in files of caches: model_type and a hash of config.json and of the weights'
  // names and shapes. Empty for a model that was not loaded, unless it is given one.
  const std::string& fingerprint() const { return fingerprint_; }
  void set_fingerprint(std::string fingerprint) { fingerprint_ = std::move(fingerprint); }

  bool is_encoder_decoder() const { return config_.seq2seq.has_value(); }

  // Logits [batch, tokens or logits_to_keep, vocab_size] in the model's dtype, on its device.
  // Without a cache the input is the whole text. Throws ValueError for ids outside the vocabulary,
  // an empty input, shapes that do not fit the cache, and padding that would not be left out:
  // between a row's tokens under layers with windows or states, or in a past that was computed
  // otherwise; and RuntimeError where needs_whole_text(). The cache is then as it was. Safe to call
  // from several threads, each with a cache of its own.
  at::Tensor forward(const ForwardInput& input, Cache* past_key_values = nullptr) const {
    return run(input, past_key_values);
  }

  // Whether a row grows past a length at which its rope (dynamic, longrope) changes its
  // frequencies, or was cropped back behind one: its cached keys no longer fit. The whole text must
  // then go through an empty cache at once; generate() sees to it. Throws as forward() does for bad
  // input.
  virtual bool needs_whole_text(const ForwardInput& /*input*/, Cache& /*past_key_values*/) const {
    return false;
  }

 protected:
  LanguageModel(ModelConfig config, at::ScalarType dtype, at::Device device)
      : config_(std::move(config)), dtype_(dtype), device_(device) {}

  virtual at::Tensor run(const ForwardInput& input, Cache* past_key_values) const = 0;

  // Logits of hidden states [batch, n, hidden_size] -> [batch, n, vocab_size].
  virtual at::Tensor head(const at::Tensor& hidden) const = 0;

  // Logits of the last positions of hidden states [batch, tokens, hidden_size], all for keep = 0: a
  // tensor that the caller may write to, also where this is called in InferenceMode.
  at::Tensor last_logits(const at::Tensor& hidden, std::int64_t keep) const;

 private:
  ModelConfig config_;
  at::ScalarType dtype_;
  at::Device device_;
  std::string fingerprint_;
};

}  // namespace kvcache
