#include "text/split_behavior.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvcache/core/errors.h"
#include "text/json_node.h"

namespace kvcache::detail {

namespace {

constexpr std::pair<const char*, SplitBehavior> kNames[] = {
    {"Removed", SplitBehavior::kRemoved},
    {"Isolated", SplitBehavior::kIsolated},
    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    {"MergedWithNext", SplitBehavior::kMergedWithNext},
    {"Contiguous", SplitBehavior::kContiguous},
};

// Joins each span for which `joins(is_match, previous_was_match)` holds to the one before it.
template <typename Joins>
std::vector<Span> join_to_previous(const std::vector<Span>& spans, Joins joins) {
  std::vector<Span> parts;
  bool previous = false;
  for (const Span& span : spans) {
    if (!parts.empty() && joins(span.matched, previous)) {
      parts.back() = {std::min(parts.back().begin, span.begin),
                      std::max(parts.back().end, span.end), parts.back().matched};
    } else {
      parts.push_back(span);
    }
    previous = span.matched;
  }
  return parts;
}

}  // namespace

SplitBehavior split_behavior_from_json(const JsonNode& node) {
  const std::string name = node.string();
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  throw ValueError(c10::str(node.path(), " is \"", name,
                            "\", which is not one of Removed, Isolated, ",
                            "MergedWithPrevious, MergedWithNext, Contiguous"));
}

std::vector<Span> apply_split_behavior(std::vector<Span> spans, SplitBehavior behavior) {
  const auto match_after_text = [](bool match, bool previous) { return match && !previous; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(spans, [](const Span& span) { return span.matched; });
      return spans;
    case SplitBehavior::kIsolated:
      return spans;
    case SplitBehavior::kContiguous:
      return join_to_previous(spans, [](bool match, bool previous) { return match == previous; });
    case SplitBehavior::kMergedWithPrevious:
      return join_to_previous(spans, match_after_text);
    case SplitBehavior::kMergedWithNext:
      std::reverse(spans.begin(), spans.end());
      spans = join_to_previous(spans, match_after_text);
      std::reverse(spans.begin(), spans.end());
      return spans;
  }
  return spans;
}

}  // namespace kvcache::detail
