// A storage that holds nothing: the keys and values of a step are what its queries read, and are
// gone once the layer is sealed. A forward pass without a cache runs over it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kvcache/storage/storage.h"

namespace kvcache {

class TransientStorage final : public Storage {
 public:
  Range held() const override { return {}; }
  std::optional<std::int64_t> capacity() const override { return std::nullopt; }
  void reserve(std::int64_t) override {}

  View stage(const StageInput& input) override {
    View view;
    view.visible = input.visible;
    view.batch = input.keys.size(0);
    view.segments.push_back({input.keys, input.values, input.visible.offset});
    return view;
  }

  View read(const Visible& visible) const override {
    View view;
    view.visible = visible;
    return view;
  }

  void seal() override {}
  void publish() noexcept override {}
  void settle() override {}
  void discard() noexcept override {}
  void trim(Range) override {}
  void reset() noexcept override {}
  void visit(Visitor&) override {}
  void check_filled(const LayerSpec&, std::int64_t) const override {}
  std::unique_ptr<Storage> clone() const override { return std::make_unique<TransientStorage>(); }
};

}  // namespace kvcache
