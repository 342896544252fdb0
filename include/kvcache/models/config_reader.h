// Typed access to a JSON object such as config.json. Every message names the file and the field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache {

// A cheap view: copies and nested objects share the parsed file. A field that is null counts as
// absent, except for contains(). Accessors throw ValueError for a value of another type.
class ConfigReader {
 public:
  // Throw ValueError if the file cannot be read, or is not one JSON object.
  static ConfigReader from_file(const std::filesystem::path& path);
  // `what` stands for the file in messages.
  static ConfigReader from_text(std::string_view text, std::string_view what);

  // Whether the field is there, even as null.
  bool contains(std::string_view name) const;

  // Whether the field is a string.
  bool is_text(std::string_view name) const;

  std::optional<std::int64_t> integer(std::string_view name) const;
  // An integer of at least 1 and at most `limit`.
  std::optional<std::int64_t> size(std::string_view name, std::int64_t limit = kMaxSize) const;
  // Finite; integers count.
  std::optional<double> number(std::string_view name) const;
  std::optional<bool> flag(std::string_view name) const;
  std::optional<std::string> text(std::string_view name) const;
  std::optional<std::vector<std::string>> texts(std::string_view name) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view name) const;
  std::optional<std::vector<double>> numbers(std::string_view name) const;  // finite
  // The same, which may be infinite: {"__float__": "Infinity"}, or the bare word that older files
  // have.
  std::optional<std::vector<double>> numbers_to_infinity(std::string_view name) const;
  // Token ids: one integer or a list of them. Negative ones, which old files use for "none", are
  // left out.
  std::optional<std::vector<std::int64_t>> ids(std::string_view name) const;
  std::optional<ConfigReader> object(std::string_view name) const;

  // The field for messages: "<file>: <outer>.<name>".
  std::string field(std::string_view name) const;

  static constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;

 private:
  struct Node;
  explicit ConfigReader(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

  std::shared_ptr<const Node> node_;
};

}  // namespace kvcache
