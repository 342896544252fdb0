#include "generation/json_values.h"

#include <charconv>
#include <limits>
#include <string_view>

namespace kvcache::detail {

using nlohmann::json;

template <>
bool read_value(const json& value) {
  if (!value.is_boolean()) throw std::string("true or false");
  return value.get<bool>();
}

template <>
std::int64_t read_value(const json& value) {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargest)) {
    throw std::string("an integer");
  }
  return value.get<std::int64_t>();
}

template <>
double read_value(const json& value) {
  if (!value.is_number()) throw std::string("a number");
  return value.get<double>();
}

template <>
std::string read_value(const json& value) {
  if (!value.is_string()) throw std::string("a string");
  return value.get<std::string>();
}

namespace {

template <typename T>
std::vector<T> read_list(const json& list) {
  std::vector<T> items;
  for (const json& item : list) items.push_back(read_value<T>(item));
  return items;
}

constexpr const char* kSequenceBias =
    "a list of [[ids], bias] pairs, or an object of biases under names such as \"(1, 2)\"";

// The ids of a sequence as Transformers writes one for a name: "(1, 2)", "(1,)".
std::vector<std::int64_t> read_sequence_name(std::string_view text) {
  std::vector<std::int64_t> ids;
  if (!text.starts_with('(') || !text.ends_with(')')) throw std::string(kSequenceBias);
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    std::int64_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc()) throw std::string(kSequenceBias);
    ids.push_back(id);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty() && !text.starts_with(',')) throw std::string(kSequenceBias);
    if (!text.empty()) text.remove_prefix(1);
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  return ids;
}

SequenceBias read_sequence_bias(const json& pair) {
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_array() || !pair[1].is_number()) {
    throw std::string(kSequenceBias);
  }
  return {read_list<std::int64_t>(pair[0]), pair[1].get<double>()};
}

}  // namespace

template <>
std::vector<std::int64_t> read_value(const json& value) {
  if (value.is_number_integer()) return {read_value<std::int64_t>(value)};
  if (!value.is_array()) throw std::string("an integer or a list of integers");
  return read_list<std::int64_t>(value);
}

template <>
std::vector<std::vector<std::int64_t>> read_value(const json& value) {
  std::vector<std::vector<std::int64_t>> lists;
  if (!value.is_array()) throw std::string("a list of lists of integers");
  for (const json& list : value) {
    if (!list.is_array()) throw std::string("a list of lists of integers");
    lists.push_back(read_list<std::int64_t>(list));
  }
  return lists;
}

template <>
std::vector<std::string> read_value(const json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) throw std::string("a string or a list of strings");
  return read_list<std::string>(value);
}

template <>
EarlyStopping read_value(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? EarlyStopping::yes : EarlyStopping::no;
  if (value != "never") throw std::string("true, false or \"never\"");
  return EarlyStopping::never;
}

template <>
std::vector<SequenceBias> read_value(const json& value) {
  std::vector<SequenceBias> biases;
  if (value.is_array()) {
    for (const json& pair : value) biases.push_back(read_sequence_bias(pair));
  } else if (value.is_object()) {
    for (const auto& [name, bias] : value.items()) {
      biases.push_back({read_sequence_name(name), read_value<double>(bias)});
    }
  } else {
    throw std::string(kSequenceBias);
  }
  return biases;
}

template <>
ExponentialDecayLengthPenalty read_value(const json& value) {
  if (!value.is_array() || value.size() != 2) {
    throw std::string("a list of two, [start_index, decay_factor]");
  }
  return {read_value<std::int64_t>(value[0]), read_value<double>(value[1])};
}

}  // namespace kvcache::detail
