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
// that is divided over tokens counts with its last one. For one generate().
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

  // Begins the rows with the end of the prompts, the newest token aside.
  void begin(const TokenRows& text);

  // Whether a string ends in `piece`, which comes after `tail`; takes it in.
  bool ends_in(std::string& tail, std::string_view piece) const;

  std::vector<std::string> stop_strings_;
  MakeRunningText make_text_;
  std::size_t longest_ = 0;  // bytes of the longest string
  std::vector<Row> rows_;
  std::int64_t seen_ = 0;  // columns
};

}  // namespace kvcache
