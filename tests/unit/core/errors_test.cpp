#include "kvcache/core/errors.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

TEST(Errors, ValueErrorJoinsItsMessageParts) {
  try {
    check_value(false, "crop: ", -3, " tokens asked for, ", 2, " held");
    FAIL() << "check_value(false) returned";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "crop: -3 tokens asked for, 2 held");
  }
}

TEST(Errors, KindsAreTold) {
  EXPECT_THROW(check_value(false, "x"), std::invalid_argument);
  EXPECT_THROW(check_state(false, "x"), RuntimeError);
  EXPECT_THROW(check_state(false, "x"), std::runtime_error);
  EXPECT_NO_THROW(check_value(true, "x"));
  EXPECT_NO_THROW(check_state(true, "x"));
}

}  // namespace
}  // namespace kvcache
