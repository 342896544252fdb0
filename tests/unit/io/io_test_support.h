// What the io tests share: safetensors files put together by hand.
#pragma once

#include <gtest/gtest.h>
#include <kvcache/core/errors.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::testing {

// A safetensors file with this header, as it stands, and these data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = "") {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(header).append(data);
}

// The message of the ValueError that `action` throws; a test failure if it throws none.
template <typename Action>
std::string value_error(Action&& action) {
  try {
    action();
  } catch (const ValueError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected a ValueError, got: " << error.what();
    return "";
  }
  ADD_FAILURE() << "expected a ValueError, but nothing was thrown";
  return "";
}

}  // namespace kvcache::testing
