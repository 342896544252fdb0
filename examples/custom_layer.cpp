// A kind of layer of one's own: it keeps what a full layer keeps, and counts the tokens that came
// in, those taken back among them. What is a layer's own state goes through these few functions, so
// that copies, forks, files and undone steps hold for it, too.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <memory>
#include <utility>

namespace {

class MeteredLayer final : public kvcache::AttentionLayer {
 public:
  MeteredLayer(const kvcache::LayerSpec& spec, std::shared_ptr<kvcache::Memory> memory)
      : AttentionLayer(spec, kvcache::Retention::full(),
                       std::make_unique<kvcache::GrowingStorage>(std::move(memory))) {}

  int64_t fed() const { return fed_; }

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new MeteredLayer(*this));
  }

 private:
  MeteredLayer(const MeteredLayer&) = default;

  void publish_state(int64_t tokens) noexcept override {  // a step became true
    AttentionLayer::publish_state(tokens);
    fed_ += tokens;
  }
  void reset_state() noexcept override {
    AttentionLayer::reset_state();
    fed_ = 0;
  }
  void visit_state(kvcache::Visitor& visitor) override {  // in files and comparisons
    visitor.count("fed", fed_);
    AttentionLayer::visit_state(visitor);
  }

  int64_t fed_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: custom_layer CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);

  // Under a name of its own, for the model's first layer; or under "full_attention", for all.
  kvcache::DynamicCacheOptions options;
  kvcache::add_layer<MeteredLayer>(options.layers, "metered");
  auto layers = model->config().layer_specs();
  layers.at(0).type = "metered";
  kvcache::DynamicCache cache(layers, options);

  // Drafts that the model does not follow are taken back.
  const auto prompt = at::tensor({5L, 6L, 7L, 5L, 6L, 7L, 5L, 6L}, at::kLong).unsqueeze(0);
  kvcache::generate(*model, {.input_ids = prompt},
                    {.max_new_tokens = 16, .prompt_lookup_num_tokens = 4}, &cache);
  const auto& layer = dynamic_cast<const MeteredLayer&>(cache.layer(0));
  std::cout << layer.seen() << " tokens held, " << layer.fed() << " came in\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
