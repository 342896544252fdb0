#include "io/strict_json.h"

#include <kvcache/core/errors.h>

#include <string>
#include <utility>
#include <vector>

#include "io/posix_file.h"

namespace kvcache::detail {
namespace {

using Json = nlohmann::json;

// Builds the document as the parser reports its parts.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(std::string_view what, int max_depth) : what_(what), max_depth_(max_depth) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    check_value(!open_.back()->contains(name), what_, ": the name ", in_quotes(name),
                " occurs twice in one object");
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string_view reason = error.what();
    if (const auto tag = reason.find("] "); tag != reason.npos) reason.remove_prefix(tag + 2);
    throw ValueError(
        c10::str(what_, ": not valid JSON at byte ", position, ": ", in_quotes(reason)));
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json container) {
    check_value(static_cast<int>(open_.size()) < max_depth_, what_, ": JSON nested deeper than ",
                max_depth_, " levels");
    open_.push_back(&place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // Addresses in open_ stay valid: a container gets a new element only when all inside it closed.
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (!parent.is_array()) return parent[key_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  std::string_view what_;
  int max_depth_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

}  // namespace

Json parse_strict_json(std::string_view text, std::string_view what, int max_depth) {
  const std::size_t nul = text.find('\0');
  check_value(nul == text.npos, what, ": not valid JSON: a NUL byte at byte ", nul);
  StrictBuilder builder(what, max_depth);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace kvcache::detail
