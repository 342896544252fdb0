#include "tests/contract/digest.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>

#include "tests/support/stored.h"

namespace kvcache::testing {
namespace {

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.cpu().contiguous();
  return c10::str(flat.dtype(), flat.sizes(), ": ") +
         std::string(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
}

// Tensors that lie in parts, and rows that all are one, count as what they stand for.
class Collect final : public Visitor {
 public:
  Collect(Digest& digest, std::int64_t batch) : digest_(digest), batch_(batch) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    std::vector<at::Tensor>& parts = tensors_[std::string(info.name)];
    if (!tensor.defined()) return;
    const at::Tensor live = live_of(info, tensor).cpu();
    const bool one_row = !info.batch_dim && info.token_dim;
    parts.push_back(one_row ? joined({live}, batch_) : live);
    token_dims_[std::string(info.name)] = info.token_dim.value_or(0);
  }
  void count(std::string_view name, std::int64_t& value) override {
    if (name == "seen") end_layer();
    digest_.emplace_back(label(name), std::to_string(value));
  }

  void end_layer() {
    for (const auto& [name, parts] : tensors_) {
      digest_.emplace_back(label(name),
                           parts.empty() ? "none" : bytes_of(at::cat(parts, token_dims_.at(name))));
    }
    tensors_.clear();
    ++layer_;
  }

 private:
  std::string label(std::string_view name) const { return c10::str("layer ", layer_, " ", name); }

  Digest& digest_;
  std::int64_t batch_;
  std::int64_t layer_ = -1;
  std::map<std::string, std::vector<at::Tensor>> tensors_;  // of this layer, by name
  std::map<std::string, std::int64_t> token_dims_;
};

template <typename Call>
std::string answer_of(const Call& call) {
  try {
    return std::to_string(call());
  } catch (const RuntimeError&) {
    return "refused";
  }
}

Digest digest_of_layers(LayeredCache& cache) {
  Digest digest;
  Collect collect(digest, cache.batch_size());
  cache.visit(collect);
  collect.end_layer();
  const auto number = [&](std::string label, std::int64_t value) {
    digest.emplace_back(std::move(label), std::to_string(value));
  };
  number("layers", cache.layer_count());
  number("batch", cache.batch_size());
  number("nbytes", cache.nbytes());
  const History& history = cache.history();
  number("history seen", history.seen());
  number("history batch", history.batch());
  number("history known", history.known());
  digest.emplace_back("history valid", bytes_of(history.valid()));
  if (history.known()) digest.emplace_back("history ids", bytes_of(history.ids()));
  digest.emplace_back("history stamps", bytes_of(history.content().stamps));
  for (std::int64_t tokens = 0; tokens <= 6; ++tokens) {
    digest.emplace_back(c10::str("can_crop ", tokens),
                        answer_of([&] { return cache.can_crop(tokens); }));
  }
  return digest;
}

}  // namespace

LayeredCache& layers_of(Cache& cache) {
  auto* pair = dynamic_cast<EncoderDecoderCache*>(&cache);
  return pair ? pair->self_attention_cache() : dynamic_cast<LayeredCache&>(cache);
}

LayeredCache* encoder_layers_of(Cache& cache) {
  auto* pair = dynamic_cast<EncoderDecoderCache*>(&cache);
  return pair ? &pair->cross_attention_cache() : nullptr;
}

Digest digest_of(Cache& cache) {
  Digest digest = digest_of_layers(layers_of(cache));
  if (LayeredCache* encoder = encoder_layers_of(cache)) {
    for (auto& [label, bytes] : digest_of_layers(*encoder)) {
      digest.emplace_back("encoder's " + label, std::move(bytes));
    }
  }
  return digest;
}

std::string difference(const Digest& a, const Digest& b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const auto at = [i](const Digest& digest) {
      return i < digest.size() ? digest[i] : std::pair<std::string, std::string>("nothing", "");
    };
    if (at(a) != at(b)) {
      return c10::str(at(a).first, " = ", at(a).second, " against ", at(b).first, " = ",
                      at(b).second);
    }
  }
  return {};
}

}  // namespace kvcache::testing
