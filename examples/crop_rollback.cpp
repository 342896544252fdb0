// Taking tokens back: six of them, then crop(-3), in a full layer and in a sliding one.
#include <ATen/ops/arange.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <vector>

namespace {

// A layer of one head, whose keys are the tokens' numbers.
kvcache::DynamicCache six_tokens(const kvcache::LayerSpec& layer, bool record) {
  kvcache::DynamicCache cache(std::vector{layer});
  if (record) cache.activate_past_recording();
  for (int64_t token = 0; token < 6; ++token) {
    const auto states = at::arange(token, token + 1, at::kFloat).view({1, 1, 1, 1});
    cache.update(states, states, 0);
  }
  return cache;
}

void show(const char* name, kvcache::DynamicCache cache) {
  cache.crop(-3);
  const auto view = cache.append(at::arange(3, 4, at::kFloat).view({1, 1, 1, 1}),
                                 at::arange(3, 4, at::kFloat).view({1, 1, 1, 1}), 0);
  std::cout << name << ": token 3 sees";
  const auto keys = kvcache::dense(view).keys.flatten();
  for (int64_t i = 0; i < keys.numel(); ++i) std::cout << ' ' << keys[i].item<float>();
  std::cout << '\n';
}

}  // namespace

int main() try {
  const kvcache::LayerSpec full;
  const kvcache::LayerSpec sliding{.type = "sliding_attention", .window = 2};
  show("full attention", six_tokens(full, false));
  show("a window of 2", six_tokens(sliding, true));
  try {
    six_tokens(sliding, false).crop(-3);
  } catch (const kvcache::RuntimeError& error) {
    std::cout << "without recording: " << error.what() << '\n';
  }
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
