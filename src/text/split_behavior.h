// What happens to the matches (delimiters) when a text is split at them.
#pragma once

#include <vector>

#include "text/pattern.h"

namespace kvcache::detail {

class JsonNode;

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Reads "Removed", "Isolated", ...; throws ValueError on another name.
SplitBehavior split_behavior_from_json(const JsonNode& node);

// The parts that `spans` (which cover a text in order) leave under `behavior`; can contain empty
// ones.
std::vector<Span> apply_split_behavior(std::vector<Span> spans, SplitBehavior behavior);

}  // namespace kvcache::detail
