#include "generation/draft_recording.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/visitor.h"

namespace kvcache::detail {
namespace {

// How many tokens the layers that record do: those that keep every token never say that they do.
class Recorded final : public Visitor {
 public:
  void tensor(const TensorInfo&, at::Tensor&) override {}
  void count(std::string_view name, std::int64_t& value) override {
    if (value == 0 || (name != "record" && name != "record_states")) return;
    least = std::min(least.value_or(value), value);
    most = std::max(most, value);
  }

  std::optional<std::int64_t> least = {};
  std::int64_t most = 0;
};

LayeredCache* layers_of(Cache& cache) {
  if (auto* pair = dynamic_cast<EncoderDecoderCache*>(&cache)) return &pair->self_attention_cache();
  return dynamic_cast<LayeredCache*>(&cache);
}

}  // namespace

std::int64_t record_drafts(Cache& cache, std::int64_t tokens) {
  Recorded now;
  if (LayeredCache* layers = layers_of(cache)) layers->visit(now);
  const std::int64_t recorded = std::min(now.least.value_or(0), tokens);
  if (recorded == tokens || now.most > tokens) return recorded;
  try {
    cache.activate_past_recording(tokens);
    return tokens;
  } catch (const RuntimeError&) {
    return recorded;
  }
}

}  // namespace kvcache::detail
