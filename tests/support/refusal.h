// What an action is refused with, to be matched in an assertion.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kvcache/core/errors.h"

namespace kvcache::testing {

// The message of the `Error` that `action` throws, and a test failure if it throws none; any other
// exception passes through.
template <typename Error, typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "(nothing was thrown)";
}

}  // namespace kvcache::testing
