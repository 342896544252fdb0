// Ending a text at a string.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/generation/running_text.h"
#include "kvcache/generation/stopping.h"

namespace kvcache {

// Rows whose text has one of some strings in it, with an end in the newest token: the string may
// begin in earlier tokens, the prompt's too, and begin and end anywhere within a token. A character
// that is divided over tokens counts with its last one. For one generate(); rows that go on where
// those of the call before ended cost their new token only.
class StopStringCriteria final : public StoppingCriterion {
 public:
  // Throws ValueError for no string, an empty one, or no text.
  StopStringCriteria(std::vector<std::string> stop_strings, MakeRunningText text);

  at::Tensor complete(const TokenRows& text) override;

 private:
  struct Row {
    std::unique_ptr<RunningText> text;
    std::string tail = {};  // the end of the text so far, as far as a string may begin in it
  };

  bool goes_on(const TokenRows& text) const;

  // Begins the rows with the end of their texts, the newest token aside.
  void begin(const TokenRows& text);

  // Whether a string ends in `piece`, which comes after `tail`; takes it in.
  bool ends_in(std::string& tail, std::string_view piece) const;

  std::vector<std::string> stop_strings_;
  MakeRunningText make_text_;
  std::size_t longest_ = 0;  // bytes of the longest string
  std::vector<Row> rows_;
  std::int64_t seen_ = 0;  // columns
  at::Tensor seen_ids_;    // int64 [rows, seen_]
};

}  // namespace kvcache
