#include "tests/contract/digest.h"

#include <algorithm>

#include "tests/support/stored.h"

namespace kvcache::testing {
namespace {

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.cpu().contiguous();
  return c10::str(flat.dtype(), flat.sizes(), ": ") +
         std::string(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
}

class Collect final : public Visitor {
 public:
  explicit Collect(Digest& digest) : digest_(digest) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    digest_.emplace_back(label(info.name),
                         tensor.defined() ? bytes_of(live_of(info, tensor)) : "none");
  }
  void count(std::string_view name, std::int64_t& value) override {
    if (name == "seen") ++layer_;
    digest_.emplace_back(label(name), std::to_string(value));
  }

 private:
  std::string label(std::string_view name) const { return c10::str("layer ", layer_, " ", name); }

  Digest& digest_;
  std::int64_t layer_ = -1;
};

template <typename Call>
std::string answer_of(const Call& call) {
  try {
    return std::to_string(call());
  } catch (const RuntimeError&) {
    return "refused";
  }
}

}  // namespace

Digest digest_of(LayeredCache& cache) {
  Digest digest;
  Collect collect(digest);
  cache.visit(collect);
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
  for (std::int64_t tokens = 0; tokens <= 6; ++tokens) {
    digest.emplace_back(c10::str("can_crop ", tokens),
                        answer_of([&] { return cache.can_crop(tokens); }));
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
