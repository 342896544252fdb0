#include "chat/json_values.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

constexpr std::size_t kMaxDepth = 100;

// Builds the value as the parser reads. (A parsed nlohmann::json would have its keys sorted and
// large integers rounded.)
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(std::string_view name) : name_(name) {}

  Value take() { return std::move(result_); }

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    check_value(value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
                name_, ": the integer ", value, " exceeds 64 bits");
    return add(Value::integer(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    check_value(text.find_first_of(".eE") != std::string::npos, name_, ": the integer ", text,
                " exceeds 64 bits");
    return add(Value::real(value));
  }
  bool string(string_t& value) override { return add(Value::text(std::move(value))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(true); }
  bool key(string_t& value) override {
    open_.back().key = std::move(value);
    return true;
  }
  bool end_object() override {
    Value value = Value::dict(std::move(open_.back().entries));
    open_.pop_back();
    return add(std::move(value));
  }
  bool start_array(std::size_t) override { return open(false); }
  bool end_array() override {
    Value value = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    throw ValueError(c10::str(name_, " is not valid JSON: ", error.what()));
  }

 private:
  struct Open {
    bool object = false;
    std::string key;
    std::vector<std::pair<Value, Value>> entries;
    std::unordered_map<std::string, std::size_t> places;
    std::vector<Value> items;
  };

  bool open(bool object) {
    check_value(open_.size() < kMaxDepth, name_, " nests deeper than ", kMaxDepth, " levels");
    open_.emplace_back().object = object;
    return true;
  }

  // Of equal keys the first one's place and the last one's value count, as in Python.
  bool add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (Open& top = open_.back(); !top.object) {
      top.items.push_back(std::move(value));
    } else if (const auto [place, added] = top.places.emplace(top.key, top.entries.size()); added) {
      top.entries.emplace_back(Value::text(std::move(top.key)), std::move(value));
    } else {
      top.entries[place->second].second = std::move(value);
    }
    return true;
  }

  std::string_view name_;
  std::vector<Open> open_;
  Value result_;
};

}  // namespace

Value parse_json_value(std::string_view text, std::string_view name) {
  Builder builder(name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace kvcache::detail::jinja
