// Post-processors of tokenizer.json: the special tokens that a text as a whole gets.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace kvcache::detail {

class JsonNode;

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  virtual std::vector<std::int64_t> process(std::vector<std::int64_t> ids) const = 0;
};

// Throws ValueError on an unknown type or a bad field. The result may be null: nothing to add.
std::unique_ptr<const PostProcessor> make_post_processor(const JsonNode& node);

}  // namespace kvcache::detail
