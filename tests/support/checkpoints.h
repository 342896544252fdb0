// The tiny checkpoints of tests/parity, loaded once.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kvcache/models/causal_lm.h"
#include "kvcache/models/registry.h"

namespace kvcache::testing {

// tests/parity/checkpoints/<name>, in its own dtype.
inline const CausalLM& checkpoint(const std::string& name) {
  static std::map<std::string, std::unique_ptr<CausalLM>> loaded;
  std::unique_ptr<CausalLM>& model = loaded[name];
  if (!model) model = load_model(KVCACHE_TEST_DATA_DIR "/parity/checkpoints/" + name);
  return *model;
}

// tests/parity/seq2seq_checkpoints/<name>, a model with an encoder.
inline const LanguageModel& seq2seq_checkpoint(const std::string& name) {
  static std::map<std::string, std::unique_ptr<LanguageModel>> loaded;
  std::unique_ptr<LanguageModel>& model = loaded[name];
  if (!model) {
    model = load_language_model(KVCACHE_TEST_DATA_DIR "/parity/seq2seq_checkpoints/" + name);
  }
  return *model;
}

// Either of the two.
inline const LanguageModel& checkpoint_of_either_sort(const std::string& name) {
  if (name == "t5") return seq2seq_checkpoint(name);
  return checkpoint(name);
}

}  // namespace kvcache::testing
