#include "text/model.h"

#include "kvcache/core/errors.h"
#include "text/bpe.h"
#include "text/json_node.h"

namespace kvcache::detail {

namespace {

constexpr ComponentKind<Model> kKinds[] = {
    {"BPE", make_bpe},
};

}  // namespace

std::unique_ptr<const Model> make_model(const JsonNode& node) {
  // Old files do not name the type; merges are BPE's alone.
  if (!node.find("type") && node.find("merges")) return make_bpe(node);
  check_value(node.at("type").value() != "Unigram", node.path(), ".type is Unigram, which is read ",
              "from spiece.model: load the folder that holds both");
  return make_component<Model>(node, kKinds);
}

}  // namespace kvcache::detail
