// Whether a cache's layers can serve a model's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/layer_stack.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/retention/retention.h"

namespace kvcache::detail {

// Of layers that are made as keys come in, all of them full attention, before the first is.
inline void check_unmade_layers(const std::vector<LayerSpec>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const LayerSpec& spec = wanted[i];
    check_value(
        !has_states(spec) && !spec.donor, "layer ", i, " of the model (", spec.type,
        spec.donor ? ") reads another layer's keys" : ") keeps convolution or recurrent states",
        ", but the cache was constructed without layers and makes full attention ones as "
        "keys come in: construct it from the model's config, "
        "DynamicCache(model.config())");
  }
}

// Refuses a layer that keeps no keys, or less of them than a model's sees.
inline void check_attention(const LayerStack& stack, std::int64_t index, const LayerSpec& wanted) {
  constexpr std::int64_t kLate = std::int64_t{1} << 40;  // when every window has moved on
  const auto retention = Retention::of(wanted);
  if (!retention) return;
  check_value(stack.port(index).visible(kLate, 1).offset <= retention->visible(kLate, 1).offset,
              "layer ", index, " of the cache keeps less than the model's ", wanted.type, " layer",
              wanted.window > 0 ? c10::str(" of window ", wanted.window) : std::string(),
              " sees; make the cache from the model's config");
}

// Refuses a layer without states, or made for states of other sizes than a model's.
inline void check_states(const LayerStack& stack, std::int64_t index, const LayerSpec& wanted) {
  if (!has_states(wanted)) return;
  stack.states(index);
  const std::optional<StateSizes>& own = stack[index].spec().state_sizes;
  if (!own || !wanted.state_sizes) return;
  check_value(*own == *wanted.state_sizes, "layer ", index, " of the cache is made for ", *own,
              ", but the model's has ", *wanted.state_sizes,
              "; make the cache from the model's config");
}

inline std::string donor_text(const LayerSpec& spec) {
  return spec.donor ? c10::str("the keys of layer ", *spec.donor) : "no other layer's keys";
}

// Refuses another number of layers than a model has, windows shorter than the model's, layers
// without the states that the model's have or made for others, and other donors. Throws ValueError.
inline void check_layers(const LayerStack& stack, const std::vector<LayerSpec>& wanted) {
  if (stack.is_unmade()) return check_unmade_layers(wanted);
  check_value(stack.size() == static_cast<std::int64_t>(wanted.size()), "the cache has ",
              stack.size(), " layers, but the model ", wanted.size(),
              "; make the cache from the model's config");
  for (std::int64_t i = 0; i < stack.size(); ++i) {
    const LayerSpec& spec = wanted[static_cast<std::size_t>(i)];
    check_attention(stack, i, spec);
    check_states(stack, i, spec);
    check_value(stack[i].spec().donor == spec.donor, "layer ", i, " of the cache reads ",
                donor_text(stack[i].spec()), ", but the model's reads ", donor_text(spec),
                "; make the cache from the model's config");
  }
}

}  // namespace kvcache::detail
