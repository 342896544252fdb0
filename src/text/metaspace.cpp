#include "text/metaspace.h"

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

Metaspace::Prepend prepend_from_json(const JsonNode& node) {
  const std::string scheme = node.string();
  if (scheme == "always") return Metaspace::Prepend::kAlways;
  if (scheme == "first") return Metaspace::Prepend::kFirst;
  if (scheme == "never") return Metaspace::Prepend::kNever;
  throw ValueError(
      c10::str(node.path(), " is \"", scheme, "\", which is not one of always, first, never"));
}

}  // namespace

Metaspace metaspace_from_json(const JsonNode& node) {
  Metaspace result;
  result.replacement = node.at("replacement").one_character();
  if (const auto scheme = node.find("prepend_scheme")) {
    result.prepend = prepend_from_json(*scheme);
  }
  // How files wrote it before there was prepend_scheme.
  check_value(
      result.prepend == Metaspace::Prepend::kNever || node.boolean_or("add_prefix_space", true),
      node.path(), ".add_prefix_space is false, which needs a prepend_scheme of \"never\"");
  result.split = node.boolean_or("split", true);
  return result;
}

}  // namespace kvcache::detail
