// Batches whose rows end at different times, and what each row must be: its run alone.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/stopping.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {

// Ends row i with its tokens[i]th new token.
class EndAfter final : public StoppingCriterion {
 public:
  explicit EndAfter(std::vector<std::int64_t> tokens) : tokens_(std::move(tokens)) {}

  at::Tensor complete(const TokenRows& text) override {
    if (before_ < 0) before_ = text.length() - 1;
    shapes.push_back(text.ids.sizes().vec());
    const at::Tensor limits = at::tensor(tokens_, at::kLong).add(before_);
    return limits.le(text.length());
  }

  std::vector<std::vector<std::int64_t>> shapes;  // of the texts it was asked about

 private:
  std::vector<std::int64_t> tokens_;
  std::int64_t before_ = -1;  // columns before the first new token
};

// Rows of different lengths, padded on the left to that of the longest, or to `columns`.
struct Padded {
  at::Tensor ids;
  at::Tensor mask;
};

inline Padded padded(const Rows& rows, std::size_t columns = 0) {
  std::size_t longest = columns;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  Rows ids, mask;
  for (const auto& row : rows) {
    ids.emplace_back(longest - row.size(), 0);
    ids.back().insert(ids.back().end(), row.begin(), row.end());
    mask.emplace_back(longest - row.size(), 0);
    mask.back().insert(mask.back().end(), row.size(), 1);
  }
  return {ids_tensor(ids), ids_tensor(mask)};
}

inline std::vector<std::int64_t> numbers_of(const at::Tensor& row) {
  const at::Tensor host = row.contiguous();
  const auto* data = host.const_data_ptr<std::int64_t>();
  return {data, data + host.numel()};
}

// What a row gets alone, without a cache: so many new tokens after `row`.
inline std::vector<std::int64_t> alone(const LanguageModel& model,
                                       const std::vector<std::int64_t>& row, std::int64_t tokens,
                                       Inputs inputs = {}) {
  const at::Tensor ids = ids_tensor({row});
  (model.is_encoder_decoder() ? inputs.decoder_input_ids : inputs.input_ids) = ids;
  const GenerationConfig config{.max_new_tokens = tokens, .use_cache = false};
  return numbers_of(generate(model, inputs, config).sequences[0].narrow(0, ids.size(1), tokens));
}

// What the cache holds of a row, without padding.
inline std::vector<std::int64_t> held_tokens(const Cache& cache, std::int64_t row) {
  return numbers_of(cache.history().ids()[row].masked_select(cache.history().valid()[row]));
}

// A model that notes how many rows and tokens each forward pass has.
class NotingModel final : public LanguageModel {
 public:
  explicit NotingModel(const LanguageModel& model)
      : LanguageModel(model.config(), model.dtype(), model.device()), model_(model) {}

  bool needs_whole_text(const ForwardInput& input, Cache& cache) const override {
    return model_.needs_whole_text(input, cache);
  }

  mutable std::vector<std::int64_t> rows;
  mutable std::vector<std::int64_t> tokens;

 protected:
  at::Tensor run(const ForwardInput& input, Cache* cache) const override {
    rows.push_back(input.input_ids.size(0));
    tokens.push_back(input.input_ids.size(1));
    return model_.forward(input, cache);
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }  // never asked

 private:
  const LanguageModel& model_;
};

// --- Three rows that end after two, six and four tokens, over any model and cache ----------------

inline constexpr std::int64_t kPad = 3;
inline constexpr std::int64_t kRoom = 32;  // tokens of a static cache

inline const Rows kPrompts = {{5, 6, 7, 8, 9, 10, 11, 7, 8}, {12, 13, 14}, {20, 9, 21, 22, 23}};
inline const std::vector<std::int64_t> kEnds = {2, 6, 4};  // new tokens of each row
inline const Rows kMore = {{30, 31}, {32, 33}, {34, 35}};

// A model by its name: a checkpoint, or a kind of tiny_model().
inline const CausalLM& model_named(const std::string& name) {
  static std::map<std::string, std::unique_ptr<CausalLM>> tiny;
  if (name != "chunked" && name != "mixed") return checkpoint(name);
  if (!tiny[name]) tiny[name] = tiny_model(name);
  return *tiny[name];
}

struct ModelAndCache {
  const char* model;
  const char* cache;  // "Dynamic", "Static" or "Early", a static one of a shape that is fixed

  friend std::ostream& operator<<(std::ostream& out, const ModelAndCache& value) {
    return out << value.model << value.cache;
  }
};

inline std::unique_ptr<Cache> cache_for(
    const CausalLM& model, const std::string& kind,
    std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>()) {
  if (kind == "Dynamic") {
    return std::make_unique<DynamicCache>(model.config(),
                                          DynamicCacheOptions{.memory = std::move(memory)});
  }
  auto cache = std::make_unique<StaticCache>(
      model.config(), StaticCacheOptions{.max_cache_len = kRoom, .memory = std::move(memory)});
  if (kind == "Early") cache->early_initialization({.batch = 3, .dtype = model.dtype()});
  return cache;
}

}  // namespace kvcache::testing
