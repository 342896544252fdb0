#include "kvcache/cache/serialization.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/posix_file.h"
#include "io/strict_json.h"
#include "kvcache/cache/layer_state.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/safetensors.h"
#include "kvcache/storage/check.h"

// The file. Metadata "kvcache.cache" is JSON:
//   {"version": 1, "kind", "fingerprint", "batch", "seen", "known",
//    "layers": [{"spec": {...}, "max_length", "counts": {name: integer}, "tensors": [name]}]}
// Tensors: "history.ids" int64 [batch, seen] (any number where not known), "history.valid" bool
// [batch, seen], "history.stamps" int64 [batch], and "layers.<i>.<name>": what is live, in order of
// time, its token dimension as long as that.

namespace kvcache {

namespace {

using nlohmann::json;

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 50;  // of any integer in a file
constexpr const char* kHeaderName = "kvcache.cache";

std::string tensor_name(std::int64_t layer, const std::string& name) {
  return c10::str("layers.", layer, ".", name);
}

// Without the sizes of states: the tensors have them, and the layer that takes them in checks them.
json to_json(const LayerSpec& spec) {
  json result{{"type", spec.type},       {"window", spec.window},       {"kv_heads", spec.kv_heads},
              {"key_dim", spec.key_dim}, {"value_dim", spec.value_dim}, {"states", spec.states}};
  if (spec.donor) result["donor"] = *spec.donor;
  return result;
}

// A file's header, read with messages that name what is wrong.
class Header {
 public:
  explicit Header(const SafetensorsFile& file) : file_(file) {
    const auto found = file.metadata().find(kHeaderName);
    check_value(found != file.metadata().end(), name(), " is not the file of a cache: it has no '",
                kHeaderName, "' among its metadata");
    root_ = detail::parse_strict_json(found->second, name(), /*max_depth=*/5);
    check_value(root_.is_object() && integer(root_, "version") == kVersion, name(),
                " is of version ", integer(root_, "version"), ", but this library reads version ",
                kVersion);
  }

  std::string name() const {
    return c10::str("cache file ", detail::in_quotes(file_.path().native()));
  }
  const SafetensorsFile& file() const { return file_; }

  std::string text(const char* key) const {
    const json& value = field(root_, key);
    check_value(value.is_string(), name(), ": '", key, "' must be a string");
    return value.get<std::string>();
  }
  std::int64_t integer(const char* key) const { return integer(root_, key); }

  const json& layers() const {
    const json& list = field(root_, "layers");
    check_value(list.is_array(), name(), ": 'layers' must be a list");
    return list;
  }

  const json& field(const json& object, const char* key) const {
    check_value(object.is_object() && object.contains(key), name(), ": there is no '", key, "'");
    return object.at(key);
  }

  std::int64_t integer(const json& object, const char* key) const {
    return checked_integer(field(object, key), key);
  }

  std::int64_t checked_integer(const json& value, const std::string& key,
                               std::int64_t least = 0) const {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMostNumber)) &&
                      value.get<std::int64_t>() >= least &&
                      value.get<std::int64_t>() <= kMostNumber;
    check_value(fits, name(), ": '", key, "' must be an integer from ", least, " to ", kMostNumber);
    return value.get<std::int64_t>();
  }

 private:
  const SafetensorsFile& file_;
  json root_;
};

// What a layer's numbers say must go together, whatever its kind. Throws ValueError.
void check_counts(Layer& layer, const std::map<std::string, std::int64_t>& counts,
                  std::int64_t seen) {
  const auto number = [&](const char* name, std::int64_t otherwise) {
    const auto found = counts.find(name);
    return found == counts.end() ? otherwise : found->second;
  };
  check_value(number("seen", -1) == seen, "it has seen ", number("seen", -1), " tokens, the cache ",
              seen);
  check_value(number("held_end", seen) == seen && number("held_first", 0) >= 0 &&
                  number("held_first", 0) <= seen,
              "it holds tokens ", number("held_first", 0), " to ", number("held_end", seen), " of ",
              seen);
  if (const KeyValuePort* port = layer.key_values(); port != nullptr) {
    const std::int64_t needed = port->visible(seen, 1).offset;
    check_value(number("held_first", 0) <= needed, "a query needs tokens from ", needed,
                " on, but it holds them from ", number("held_first", 0), " on");
  }
  const std::int64_t held = seen - number("held_first", seen);
  const std::int64_t least = std::max(held, layer.get_max_length());
  check_value(number("slots", least) >= least, "it has ", number("slots", least),
              " slots, but needs ", least);
  check_value(
      layer.get_max_length() < 0 || layer.spec().window > 0 || seen <= layer.get_max_length(), seen,
      " tokens are more than the ", layer.get_max_length(), " that it can hold");
}

// Keys and values are read by attention, which trusts a layer to hold a pair that fits.
void check_key_values(const LayerSpec& spec, const detail::LayerState& state) {
  const auto keys = state.tensors.find("keys"), values = state.tensors.find("values");
  check_value((keys == state.tensors.end()) == (values == state.tensors.end()),
              "there are keys without values or values without keys");
  if (keys == state.tensors.end()) return;
  const at::Tensor &k = keys->second.content, &v = values->second.content;
  check_value(k.dim() == 4 && v.dim() == 4 && k.is_floating_point() &&
                  k.scalar_type() == v.scalar_type() &&
                  k.sizes().slice(0, 3) == v.sizes().slice(0, 3),
              "keys ", k.dtype(), " ", k.sizes(), " and values ", v.dtype(), " ", v.sizes(),
              " do not go together: [batch, kv_heads, tokens, head_dim] of one floating dtype");
  detail::check_heads(spec, k, "keys", spec.key_dim);
  detail::check_heads(spec, v, "values", spec.value_dim);
}

}  // namespace

// A friend of LayeredCache: works on its layers.
class CacheFile {
 public:
  static void save(LayeredCache& cache, const std::filesystem::path& path,
                   const CacheFileOptions& options) {
    LayerStack& stack = *cache.stack_;
    const std::int64_t seen = stack.check_whole();
    const History::Content history = stack.history.content();
    std::map<std::string, at::Tensor> tensors{{"history.ids", history.ids},
                                              {"history.valid", history.valid},
                                              {"history.stamps", history.stamps}};
    json layers = json::array();
    for (std::int64_t i = 0; i < stack.size(); ++i) {
      stack.touch_for_visit(i);
      const detail::LayerState state = detail::read_state(stack[i], stack.batch);
      json held = json::array();
      for (const auto& [name, tensor] : state.tensors) {
        if (!tensor.content.defined()) continue;
        held.push_back(name);
        tensors.emplace(tensor_name(i, name), tensor.content);
      }
      layers.push_back({{"spec", to_json(stack[i].spec())},
                        {"max_length", stack[i].get_max_length()},
                        {"counts", state.counts},
                        {"tensors", std::move(held)}});
    }
    const json header{{"version", kVersion},        {"kind", cache.kind_},
                      {"batch", stack.batch},       {"seen", seen},
                      {"known", history.known},     {"fingerprint", options.fingerprint},
                      {"layers", std::move(layers)}};
    save_safetensors(path, tensors,
                     {{kHeaderName, header.dump(-1, ' ', false, json::error_handler_t::replace)}});
  }

  static void load(LayeredCache& cache, const std::filesystem::path& path,
                   const CacheFileOptions& options) {
    cache.stack_->check_no_step();
    const SafetensorsFile file = SafetensorsFile::open(path);
    const Header header(file);
    const std::int64_t had = cache.stack_->size();
    try {
      Loading(cache, header, options).run();
    } catch (...) {
      cache.stack_->shrink_to(had);
      throw;
    }
  }

 private:
  class Loading {
   public:
    Loading(LayeredCache& cache, const Header& header, const CacheFileOptions& options)
        : cache_(cache),
          stack_(*cache.stack_),
          header_(header),
          options_(options),
          batch_(header.integer("batch")),
          seen_(header.integer("seen")) {}

    void run() {
      check_whole();
      History history = read_history();
      make_layers();
      std::vector<detail::LayerState> states;
      for (std::int64_t i = 0; i < stack_.size(); ++i) states.push_back(read_layer(i));
      check_tensors_taken();
      std::vector<std::unique_ptr<Layer>> layers = cache_.empty_layers();
      for (std::int64_t i = 0; i < stack_.size(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        naming(i, [&] {
          detail::write_state(*layers[at], states[at],
                              {.memory = *stack_.memory(),
                               .device = device(i),
                               .batch = batch_,
                               .dtype = options_.dtype});
        });
      }
      cache_.take_over(std::move(layers), std::move(history), batch_);
    }

   private:
    // What is said of the cache as a whole.
    void check_whole() const {
      const std::string kind = header_.text("kind");
      check_value(kind == cache_.kind_, header_.name(), " holds a cache of kind '", kind,
                  "', but this one is of kind '", cache_.kind_, "'");
      const std::string fingerprint = header_.text("fingerprint");
      check_value(options_.fingerprint.empty() || fingerprint == options_.fingerprint,
                  header_.name(), " was made with the model '", fingerprint,
                  "', but this model is '", options_.fingerprint, "'");
      const auto layers = static_cast<std::int64_t>(header_.layers().size());
      check_value(options_.devices.size() == 1 ||
                      static_cast<std::int64_t>(options_.devices.size()) == layers,
                  "there are ", options_.devices.size(), " devices for ", layers,
                  " layers; give one, or one for each layer");
      check_value(batch_ >= 0 && seen_ >= 0 && (batch_ > 0 || seen_ == 0), header_.name(),
                  " says that ", seen_, " tokens of ", batch_, " rows were seen");
    }

    at::Tensor history_tensor(const char* name, at::ScalarType dtype, at::IntArrayRef shape) {
      at::Tensor tensor = take(name);
      check_value(tensor.scalar_type() == dtype && tensor.sizes() == shape, header_.name(), ": '",
                  name, "' must be ", dtype, " ", shape, ", but is ", tensor.dtype(), " ",
                  tensor.sizes());
      return tensor;
    }

    History read_history() {
      const std::int64_t known = header_.integer("known");
      check_value(known >= 0 && known <= seen_, header_.name(), " says that ", known, " of ", seen_,
                  " tokens are known");
      return History({.ids = history_tensor("history.ids", at::kLong, {batch_, seen_}),
                      .valid = history_tensor("history.valid", at::kBool, {batch_, seen_}),
                      .stamps = history_tensor("history.stamps", at::kLong, {batch_}),
                      .known = known});
    }

    // In a cache that makes its layers as keys come in.
    void make_layers() {
      const auto wanted = static_cast<std::int64_t>(header_.layers().size());
      if (stack_.size() == 0 && wanted > 0) stack_.make_up_to(wanted - 1);
      check_value(stack_.size() == wanted, header_.name(), " holds ", wanted,
                  " layers, but the cache has ", stack_.size());
    }

    detail::LayerState read_layer(std::int64_t index) {
      const json& entry = header_.layers().at(static_cast<std::size_t>(index));
      Layer& layer = stack_[index];
      const json &spec = header_.field(entry, "spec"), own = to_json(layer.spec());
      check_value(spec == own, header_.name(), ": layer ", index, " is ", spec.dump(),
                  ", but the cache's is ", own.dump());
      const std::int64_t max_length =
          header_.checked_integer(header_.field(entry, "max_length"), "max_length", /*least=*/-1);
      check_value(max_length == layer.get_max_length(), header_.name(), ": layer ", index,
                  " holds ", max_length, " tokens at most, but the cache's ",
                  layer.get_max_length());
      detail::LayerState state = numbers_of(layer);
      const json& counts = header_.field(entry, "counts");
      for (auto& [name, value] : state.counts) {
        value = header_.checked_integer(header_.field(counts, name.c_str()), name);
      }
      check_value(counts.size() == state.counts.size(), header_.name(), ": layer ", index, " has ",
                  counts.size(), " numbers, but the cache's ", state.counts.size());
      naming(index, [&] { check_counts(layer, state.counts, seen_); });
      read_tensors(index, entry, state);
      return state;
    }

    static detail::LayerState numbers_of(Layer& layer) {
      struct Collect final : Visitor {
        void tensor(const TensorInfo&, at::Tensor&) override {}
        void count(std::string_view name, std::int64_t& value) override {
          state.counts[std::string(name)] = value;
        }

        detail::LayerState state;
      };
      Collect collect;
      layer.visit(collect);
      return std::move(collect.state);
    }

    void read_tensors(std::int64_t index, const json& entry, detail::LayerState& state) {
      const json& names = header_.field(entry, "tensors");
      check_value(names.is_array(), header_.name(), ": 'tensors' must be a list");
      for (const json& name : names) {
        check_value(name.is_string(), header_.name(), ": 'tensors' must be a list of names");
        const auto key = name.get<std::string>();
        state.tensors[key].content = take(tensor_name(index, key));
      }
      naming(index, [&] { check_key_values(stack_[index].spec(), state); });
    }

    at::Tensor take(const std::string& name) {
      ++taken_;
      return header_.file().tensor(name);
    }

    void check_tensors_taken() const {
      const std::size_t there = header_.file().names().size();
      check_value(there == taken_, header_.name(), " has ", there, " tensors, but the cache ",
                  taken_);
    }

    at::Device device(std::int64_t layer) const {
      return options_.devices[options_.devices.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
    }

    template <typename Call>
    void naming(std::int64_t layer, const Call& call) const {
      try {
        call();
      } catch (const ValueError& error) {
        throw ValueError(c10::str(header_.name(), ": layer ", layer, ": ", error.what()));
      }
    }

    LayeredCache& cache_;
    LayerStack& stack_;
    const Header& header_;
    const CacheFileOptions& options_;
    std::int64_t batch_;
    std::int64_t seen_;
    std::size_t taken_ = 0;
  };
};

void save_cache(LayeredCache& cache, const std::filesystem::path& path,
                const CacheFileOptions& options) {
  CacheFile::save(cache, path, options);
}

void load_cache(LayeredCache& cache, const std::filesystem::path& path,
                const CacheFileOptions& options) {
  CacheFile::load(cache, path, options);
}

}  // namespace kvcache
