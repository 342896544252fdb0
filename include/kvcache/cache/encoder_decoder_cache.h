// Transformers' EncoderDecoderCache: the cache of a decoder's own tokens beside that of the
// encoder's output, which its cross-attention reads. The latter is filled once an encoder input and
// then only read, so most operations concern the former alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/batch_operations.h"
#include "kvcache/cache/cache.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/layered_cache.h"

namespace kvcache {

// The cross-attention layers beside these of a decoder: full ones, whatever the decoder's windows.
inline std::vector<LayerSpec> cross_attention_layers(const std::vector<LayerSpec>& decoder) {
  std::vector<LayerSpec> layers;
  layers.reserve(decoder.size());
  for (const LayerSpec& spec : decoder) {
    layers.push_back(
        {.kv_heads = spec.kv_heads, .key_dim = spec.key_dim, .value_dim = spec.value_dim});
  }
  return layers;
}

// Each encoder row serves as many neighbouring rows of the decoder: the beams, or the several
// answers, of one input share its keys.
class EncoderDecoderCache final : public Cache {
 public:
  // Of any two kinds. Throws ValueError if the second one has layers that keep less than all
  // tokens.
  EncoderDecoderCache(std::unique_ptr<LayeredCache> self_attention_cache,
                      std::unique_ptr<LayeredCache> cross_attention_cache)
      : self_(std::move(self_attention_cache), kOwner),
        cross_(std::move(cross_attention_cache), kOwner) {
    constexpr std::int64_t kLate = std::int64_t{1} << 40;  // when every window has moved on
    const LayerStack& encoder = *cross_->stack_;
    for (std::int64_t i = 0; i < encoder.size(); ++i) {
      check_value(encoder.port(i).visible(kLate, 1).offset == 0, "layer ", i,
                  " of the cross-attention cache (", encoder[i].spec().type,
                  ") does not keep the whole encoder output; make it of full layers");
    }
  }

  template <std::derived_from<LayeredCache> Self, std::derived_from<LayeredCache> Cross>
  EncoderDecoderCache(Self self_attention_cache, Cross cross_attention_cache)
      : EncoderDecoderCache(std::make_unique<Self>(std::move(self_attention_cache)),
                            std::make_unique<Cross>(std::move(cross_attention_cache))) {}

  // Growing caches for a model: EncoderDecoderCache(model.config()).
  explicit EncoderDecoderCache(const HasLayerSpecs auto& config,
                               const DynamicCacheOptions& options = {})
      : EncoderDecoderCache(DynamicCache(config, options),
                            DynamicCache(cross_attention_layers(config.layer_specs()), options)) {}

  LayeredCache& self_attention_cache() { return *self_; }
  const LayeredCache& self_attention_cache() const { return *self_; }
  LayeredCache& cross_attention_cache() { return *cross_; }
  const LayeredCache& cross_attention_cache() const { return *cross_; }

  // Whether a layer holds keys of an encoder's output.
  bool is_updated(std::int64_t layer) const { return cross_->get_seq_length(layer) > 0; }

  // Whether the keys held are known to be those of this encoder input, for a decoder of `rows`
  // rows. Throws ValueError for tensors that are not as CrossInput says.
  bool holds(const CrossInput& input, std::int64_t rows) const;

  std::string_view kind() const override;

  // The encoder's input goes in with input.cross: see Step.
  Step begin_step(const StepInput& input) override;

  KeyValue update(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) override {
    return self_->update(keys, values, layer);
  }
  View append(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) override {
    return self_->append(keys, values, layer);
  }

  std::int64_t get_seq_length(std::int64_t layer = 0) const override {
    return self_->get_seq_length(layer);
  }
  std::pair<std::int64_t, std::int64_t> get_mask_sizes(std::int64_t tokens,
                                                       std::int64_t layer) const override {
    return self_->get_mask_sizes(tokens, layer);
  }
  std::int64_t get_max_length(std::optional<std::int64_t> layer = std::nullopt) const override {
    return self_->get_max_length(layer);
  }
  std::optional<std::int64_t> capacity() const override { return self_->capacity(); }
  std::int64_t batch_size() const override {
    return self_->batch_size() > 0 ? self_->batch_size() : cross_->batch_size();
  }
  bool has_previous_state(std::optional<std::int64_t> layer = std::nullopt,
                          std::int64_t index = 0) const override {
    return self_->has_previous_state(layer, index);
  }
  const History& history() const override { return self_->history(); }

  // `layers`: the decoder's own.
  void check_fits(const std::vector<LayerSpec>& layers, at::ScalarType dtype) override;

  // These concern the decoder's tokens alone.
  bool can_crop(std::int64_t tokens) const override { return self_->can_crop(tokens); }
  std::int64_t reusable_prefix(std::int64_t length) const override {
    return self_->reusable_prefix(length);
  }
  void crop(std::int64_t minus_tokens) override { self_->crop(minus_tokens); }
  void activate_past_recording(std::optional<std::int64_t> max_tokens = std::nullopt) override {
    self_->activate_past_recording(max_tokens);
  }
  void reserve(std::int64_t tokens) override { self_->reserve(tokens); }

  // Forgets the encoder's output, too.
  void reset() override;

  // As many rows as before change in place.
  void batch_select_indices(const at::Tensor& rows) override;

  // Leaves the encoder's side alone as long as rows stay among those of one encoder row.
  void reorder_cache(const at::Tensor& beam_idx) override;

  // The repeated rows share their encoder row, once there are rows of the decoder.
  void batch_repeat_interleave(std::int64_t repeats) override;

  // Every row keeps its encoder row. What neighbours share, they share where all caches do.
  std::unique_ptr<Cache> concatenate(const std::vector<Cache*>& others) override;

  // The encoder's output goes with them: shared where its layers can share it.
  std::unique_ptr<Cache> copy_rows(const at::Tensor& rows) override;
  std::unique_ptr<Cache> move_out() override;
  void put_together(const std::vector<Cache*>& parts, const at::Tensor& rows) override;
  bool has_bound_rows() override { return self_->has_bound_rows(); }
  bool move_padding_to_front(const std::vector<std::int64_t>& padding) override {
    return self_->move_padding_to_front(padding);
  }

  void restore(const Snapshot& mark) override;
  void expand(std::int64_t rows) override;

  std::unique_ptr<Cache> clone() override;
  std::unique_ptr<Cache> fork() override;

  // Of the layers of both caches.
  CachePlan plan(const PlanInput& input) const override;

  std::int64_t nbytes() override { return self_->nbytes() + cross_->nbytes(); }
  std::int64_t allocated_bytes() override {
    return self_->allocated_bytes() + cross_->allocated_bytes();
  }

 private:
  // What operations of a layered cache make is one, too.
  static std::unique_ptr<LayeredCache> layered(std::unique_ptr<Cache> cache) {
    return std::unique_ptr<LayeredCache>(static_cast<LayeredCache*>(cache.release()));
  }

  static EncoderDecoderCache& checked_pair(Cache& other) {
    auto* pair = dynamic_cast<EncoderDecoderCache*>(&other);
    check_value(pair != nullptr, "a cache of kind '", other.kind(),
                "' cannot go with an EncoderDecoderCache");
    return *pair;
  }

  void check_whole() const {
    self_->stack_->check_whole();
    cross_->stack_->check_whole();
  }

  // The side whose rows are the cache's: the encoder's as long as the decoder has seen nothing.
  LayeredCache& with_rows() { return self_->batch_size() > 0 ? *self_ : *cross_; }

  // Rows of the decoder for each of the encoder. Throws RuntimeError where they do not fit.
  std::int64_t share() const;
  std::vector<std::int64_t> cross_rows(const std::vector<std::int64_t>& rows) const;
  void change_rows(const std::vector<std::int64_t>& rows);

  static constexpr const char* kOwner = "an EncoderDecoderCache";

  detail::Owned<LayeredCache> self_;
  detail::Owned<LayeredCache> cross_;
};

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE std::string_view EncoderDecoderCache::kind() const { return "encoder_decoder"; }

KVCACHE_INLINE bool EncoderDecoderCache::holds(const CrossInput& input, std::int64_t rows) const {
  detail::check_cross_input(input);
  return cross_->stack_->check_whole() > 0 && detail::holds(*cross_->stack_, input, rows);
}

KVCACHE_INLINE Step EncoderDecoderCache::begin_step(const StepInput& input) {
  return Step(*self_->stack_, input, *cross_->stack_);
}

KVCACHE_INLINE void EncoderDecoderCache::check_fits(const std::vector<LayerSpec>& layers,
                                                    at::ScalarType dtype) {
  self_->check_fits(layers, dtype);
  cross_->check_fits(cross_attention_layers(layers), dtype);
}

KVCACHE_INLINE void EncoderDecoderCache::reset() {
  self_->stack_->check_no_step();
  cross_->stack_->check_no_step();
  self_->reset();
  cross_->reset();
}

KVCACHE_INLINE void EncoderDecoderCache::batch_select_indices(const at::Tensor& rows) {
  check_whole();
  change_rows(detail::checked_rows(rows, batch_size()));
}

KVCACHE_INLINE void EncoderDecoderCache::reorder_cache(const at::Tensor& beam_idx) {
  check_whole();
  const std::vector<std::int64_t> rows = detail::checked_rows(beam_idx, batch_size());
  check_value(static_cast<std::int64_t>(rows.size()) == batch_size(), "reorder_cache takes ",
              batch_size(), " indices, one a row, but got ", rows.size(),
              "; batch_select_indices changes the number of rows");
  change_rows(rows);
}

KVCACHE_INLINE void EncoderDecoderCache::batch_repeat_interleave(std::int64_t repeats) {
  check_whole();
  with_rows().batch_repeat_interleave(repeats);
}

KVCACHE_INLINE void EncoderDecoderCache::expand(std::int64_t rows) {
  check_whole();
  with_rows().expand(rows);
}

KVCACHE_INLINE std::unique_ptr<Cache> EncoderDecoderCache::clone() {
  return std::make_unique<EncoderDecoderCache>(layered(self_->clone()), layered(cross_->clone()));
}

KVCACHE_INLINE std::unique_ptr<Cache> EncoderDecoderCache::fork() {
  return std::make_unique<EncoderDecoderCache>(layered(self_->fork()), layered(cross_->fork()));
}

KVCACHE_INLINE std::int64_t EncoderDecoderCache::share() const {
  const std::int64_t rows = batch_size(), encoder = cross_->batch_size();
  check_state(encoder > 0 && rows % encoder == 0, "the cache's ", rows,
              " rows are no multiple of its encoder's ", encoder);
  return rows / encoder;
}

// Which encoder rows there are once the decoder's rows are `rows`: as few as neighbours can share.
KVCACHE_INLINE std::vector<std::int64_t> EncoderDecoderCache::cross_rows(
    const std::vector<std::int64_t>& rows) const {
  const std::int64_t each = share();
  std::int64_t common = 0;  // divides the length of every run of one encoder row
  for (std::size_t i = 0, start = 0; i < rows.size(); ++i) {
    if (i + 1 < rows.size() && rows[i] / each == rows[i + 1] / each) continue;
    common = std::gcd(common, static_cast<std::int64_t>(i + 1 - start));
    start = i + 1;
  }
  std::vector<std::int64_t> chosen;
  for (std::size_t i = 0; i < rows.size(); i += static_cast<std::size_t>(common)) {
    chosen.push_back(rows[i] / each);
  }
  return chosen;
}

KVCACHE_INLINE void EncoderDecoderCache::change_rows(const std::vector<std::int64_t>& rows) {
  std::vector<detail::RowChange> changes;
  if (self_->batch_size() > 0) changes.emplace_back(*self_->stack_, rows);
  if (const std::int64_t held = cross_->batch_size(); held > 0) {
    const std::vector<std::int64_t> chosen = cross_rows(rows);
    std::vector<std::int64_t> unchanged(static_cast<std::size_t>(held));
    std::iota(unchanged.begin(), unchanged.end(), 0);
    if (chosen != unchanged) changes.emplace_back(*cross_->stack_, chosen);
  }
  for (detail::RowChange& each : changes) each.prepare();
  for (detail::RowChange& each : changes) each.apply();
}

KVCACHE_INLINE std::unique_ptr<Cache> EncoderDecoderCache::concatenate(
    const std::vector<Cache*>& others) {
  std::vector<EncoderDecoderCache*> pairs{this};
  for (Cache* other : others) {
    check_value(other != nullptr, "cache ", pairs.size(), " of ", others.size() + 1,
                " to join is null");
    pairs.push_back(&checked_pair(*other));
  }
  std::int64_t common = 0;
  for (const EncoderDecoderCache* pair : pairs) {
    check_value(pair->cross_->batch_size() > 0,
                "a cache has no rows to join: nothing was fed to it");
    common = std::gcd(common, pair->share());
  }
  std::vector<std::unique_ptr<Cache>> crosses;  // with as many rows as their share is common
  std::vector<Cache*> selves, others_crosses;
  for (EncoderDecoderCache* pair : pairs) {
    crosses.push_back(pair->cross_->fork());
    crosses.back()->batch_repeat_interleave(pair->share() / common);
  }
  for (std::size_t i = 1; i < pairs.size(); ++i) {
    selves.push_back(&*pairs[i]->self_);
    others_crosses.push_back(crosses[i].get());
  }
  std::unique_ptr<Cache> self = self_->concatenate(selves);
  return std::make_unique<EncoderDecoderCache>(
      layered(std::move(self)), layered(crosses.front()->concatenate(others_crosses)));
}

KVCACHE_INLINE std::unique_ptr<Cache> EncoderDecoderCache::copy_rows(const at::Tensor& rows) {
  check_whole();
  const std::vector<std::int64_t> chosen = detail::checked_rows(rows, batch_size());
  std::unique_ptr<LayeredCache> encoder = layered(cross_->fork());
  if (cross_->batch_size() > 0) encoder->select_rows(cross_rows(chosen));
  std::unique_ptr<Cache> decoder = self_->batch_size() > 0 ? self_->copy_rows(rows) : self_->fork();
  return std::make_unique<EncoderDecoderCache>(layered(std::move(decoder)), std::move(encoder));
}

KVCACHE_INLINE std::unique_ptr<Cache> EncoderDecoderCache::move_out() {
  check_whole();
  std::unique_ptr<LayeredCache> encoder = layered(cross_->fork());
  return std::make_unique<EncoderDecoderCache>(layered(self_->move_out()), std::move(encoder));
}

KVCACHE_INLINE void EncoderDecoderCache::put_together(const std::vector<Cache*>& parts,
                                                      const at::Tensor& rows) {
  check_whole();
  std::vector<Cache*> decoders;
  for (Cache* part : parts) {
    check_value(part != nullptr && part != this, "a part to put together is ",
                part == nullptr ? "null" : "the cache itself");
    decoders.push_back(&*checked_pair(*part).self_);
  }
  const std::int64_t held = cross_->batch_size();
  check_value(held == 0 || (rows.defined() && rows.numel() % held == 0),
              "the rows put together must be a multiple of the encoder's ", held);
  self_->put_together(decoders, rows);
}

KVCACHE_INLINE CachePlan EncoderDecoderCache::plan(const PlanInput& input) const {
  const std::int64_t rows = input.cross_batch == 0 ? input.batch : input.cross_batch;
  check_value(input.cross_tokens >= 1 && rows >= 1 && input.batch % rows == 0,
              "a plan of an encoder-decoder cache needs an encoder's output, of at least one token "
              "and of rows that its decoder's are a multiple of, but got ",
              input.cross_tokens, " tokens and ", rows, " rows for a decoder of ", input.batch);
  CachePlan plan =
      self_->plan({.batch = input.batch, .tokens = input.tokens, .dtype = input.dtype});
  const CachePlan cross =
      cross_->plan({.batch = rows, .tokens = input.cross_tokens, .dtype = input.dtype});
  plan.layers.insert(plan.layers.end(), cross.layers.begin(), cross.layers.end());
  plan.total += cross.total;
  return plan;
}

KVCACHE_INLINE void EncoderDecoderCache::restore(const Snapshot& mark) {
  self_->stack_->check_no_step();
  cross_->stack_->check_no_step();
  EncoderDecoderCache& held = checked_pair(mark.state());
  LayeredCache& decoder = self_->checked_mark(*held.self_);
  LayeredCache& encoder = cross_->checked_mark(*held.cross_);
  held.check_whole();
  std::vector<std::unique_ptr<Layer>> layers = self_->layers_holding(decoder);
  std::vector<std::unique_ptr<Layer>> encoder_layers = cross_->layers_holding(encoder);
  History history = decoder.history(), encoder_history = encoder.history();
  self_->stack_->take(std::move(layers), std::move(history), decoder.batch_size());
  cross_->stack_->take(std::move(encoder_layers), std::move(encoder_history), encoder.batch_size());
}

#endif

}  // namespace kvcache
