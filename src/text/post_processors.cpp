#include "text/post_processors.h"

#include <optional>
#include <utility>

#include "kvcache/core/errors.h"
#include "text/json_node.h"

namespace kvcache::detail {

namespace {

using Made = std::unique_ptr<const PostProcessor>;
using Ids = std::vector<std::int64_t>;

// A list of ids in which each absent one stands for the text.
class Template final : public PostProcessor {
 public:
  explicit Template(std::vector<std::optional<std::int64_t>> pieces) : pieces_(std::move(pieces)) {}

  Ids process(Ids ids) const override {
    Ids result;
    result.reserve(ids.size() + pieces_.size());
    for (const auto& piece : pieces_) {
      if (piece) {
        result.push_back(*piece);
      } else {
        result.insert(result.end(), ids.begin(), ids.end());
      }
    }
    return result;
  }

 private:
  std::vector<std::optional<std::int64_t>> pieces_;
};

class PostProcessorSequence final : public PostProcessor {
 public:
  explicit PostProcessorSequence(std::vector<Made> steps) : steps_(std::move(steps)) {}

  Ids process(Ids ids) const override {
    for (const auto& step : steps_) {
      if (step != nullptr) ids = step->process(std::move(ids));
    }
    return ids;
  }

 private:
  std::vector<Made> steps_;
};

// ByteLevel as a post-processor only trims offsets, which are not kept here.
Made make_byte_level(const JsonNode&) { return nullptr; }

Made make_template(const JsonNode& node) {
  std::vector<std::optional<std::int64_t>> pieces;
  for (const auto& element : node.at("single").elements()) {
    if (const auto sequence = element.find("Sequence")) {
      check_value(sequence->at("id").string() == "A", sequence->path(),
                  ".id must be \"A\": a single text has no other part");
      pieces.emplace_back(std::nullopt);
      continue;
    }
    const std::string name = element.at("SpecialToken").at("id").string();
    for (const auto& id : node.at("special_tokens").at(name).at("ids").elements()) {
      pieces.emplace_back(id.token_id());
    }
  }
  return std::make_unique<Template>(std::move(pieces));
}

// Reads the id of ["[CLS]", 101].
std::int64_t id_of_pair(const JsonNode& node) {
  const auto pair = node.elements();
  if (pair.size() != 2) node.fail("a token with its id");
  return pair[1].token_id();
}

Made make_cls_sep(const JsonNode& node) {
  std::vector<std::optional<std::int64_t>> pieces = {id_of_pair(node.at("cls")), std::nullopt,
                                                     id_of_pair(node.at("sep"))};
  return std::make_unique<Template>(std::move(pieces));
}

Made make_sequence(const JsonNode& node) {
  std::vector<Made> steps;
  for (const auto& element : node.at("processors").elements()) {
    steps.push_back(make_post_processor(element));
  }
  return std::make_unique<PostProcessorSequence>(std::move(steps));
}

constexpr ComponentKind<PostProcessor> kKinds[] = {
    {"ByteLevel", make_byte_level},   {"TemplateProcessing", make_template},
    {"BertProcessing", make_cls_sep}, {"RobertaProcessing", make_cls_sep},
    {"Sequence", make_sequence},
};

}  // namespace

std::unique_ptr<const PostProcessor> make_post_processor(const JsonNode& node) {
  return make_component<PostProcessor>(node, kKinds);
}

}  // namespace kvcache::detail
