#include "cache/cache_part.h"

#include <utility>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"

namespace kvcache {

using nlohmann::json;

namespace {

constexpr std::int64_t kNoId = -1;  // of the first token whose id is not known

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

// Its numbers alone.
detail::LayerState numbers_of(Layer& layer) {
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

// What a layer's numbers say must go together, whatever its kind; what it then holds it checks
// itself. Throws ValueError.
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
  if (const auto room = layer.room()) {
    check_value(seen <= layer.seen() + *room, seen, " tokens were seen, more than the ",
                layer.seen() + *room, " that it can hold");
  }
}

// Dtype and shape, so that a file whose tensors were exchanged is noticed where any would fit.
std::string form_of(const at::Tensor& tensor) {
  return c10::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
}

}  // namespace

json CacheFile::write(LayeredCache& cache, const std::string& prefix, Tensors& tensors) {
  LayerStack& stack = *cache.stack_;
  const std::int64_t seen = stack.check_whole();
  const History::Content history = stack.history.content();
  if (history.known < seen) history.ids.select(1, history.known).fill_(kNoId);
  tensors.emplace(prefix + "history.ids", history.ids);
  tensors.emplace(prefix + "history.valid", history.valid);
  tensors.emplace(prefix + "history.stamps", history.stamps);
  json layers = json::array();
  for (std::int64_t i = 0; i < stack.size(); ++i) {
    stack.touch_for_visit(i);
    const detail::LayerState state = detail::read_state(stack[i], stack.batch);
    json held = json::object();
    for (const auto& [name, tensor] : state.tensors) {
      if (!tensor.content.defined()) continue;
      held[name] = form_of(tensor.content);
      tensors.emplace(prefix + tensor_name(i, name), tensor.content);
    }
    layers.push_back({{"spec", to_json(stack[i].spec())},
                      {"max_length", stack[i].get_max_length()},
                      {"counts", state.counts},
                      {"tensors", std::move(held)}});
  }
  return {{"kind", cache.kind_},
          {"batch", stack.batch},
          {"seen", seen},
          {"known", history.known},
          {"layers", std::move(layers)}};
}

CacheFile::Loading::Loading(LayeredCache& cache, detail::CacheFileSection file,
                            const CacheFileOptions& options)
    : cache_(cache),
      stack_(*cache.stack_),
      file_(std::move(file)),
      options_(options),
      had_(stack_.size()),
      batch_(file_.integer("batch")),
      seen_(file_.integer("seen")) {
  stack_.check_no_step();
}

CacheFile::Loading::~Loading() {
  if (!applied_) stack_.shrink_to(had_);
}

void CacheFile::Loading::read() {
  check_whole();
  history_ = read_history();
  make_layers();
  for (std::int64_t i = 0; i < stack_.size(); ++i) states_.push_back(read_layer(i));
}

void CacheFile::Loading::fill() {
  layers_ = cache_.empty_layers();
  for (std::int64_t i = 0; i < stack_.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    naming(i, [&] {
      detail::write_state(*layers_[at], states_[at],
                          {.memory = *stack_.memory(),
                           .device = device(i),
                           .batch = batch_,
                           .dtype = options_.dtype});
      detail::KeepRecording::of(stack_[i], *layers_[at]);
    });
  }
}

void CacheFile::Loading::apply() {
  applied_ = true;
  stack_.take(std::move(layers_), std::move(history_), batch_);
}

// What is said of the cache as a whole.
void CacheFile::Loading::check_whole() const {
  const std::string kind = file_.text("kind");
  check_value(kind == cache_.kind_, file_.name(), " holds a cache of kind '", kind,
              "', but this one is of kind '", cache_.kind_, "'");
  const auto layers = static_cast<std::int64_t>(file_.layers().size());
  check_value(
      options_.devices.size() == 1 || static_cast<std::int64_t>(options_.devices.size()) == layers,
      file_.name(), ": there are ", options_.devices.size(), " devices for ", layers,
      " layers; give one, or one for each layer");
  check_value(batch_ >= 0 && seen_ >= 0 && (batch_ > 0 || seen_ == 0), file_.name(), " says that ",
              seen_, " tokens of ", batch_, " rows were seen");
}

at::Tensor CacheFile::Loading::history_tensor(const char* name, at::ScalarType dtype,
                                              at::IntArrayRef shape) const {
  at::Tensor tensor = file_.take(name);
  check_value(tensor.scalar_type() == dtype && tensor.sizes() == shape, file_.name(), ": '", name,
              "' must be ", detail::dtype_name(dtype), " ", shape, ", but is ",
              detail::dtype_name(tensor), " ", tensor.sizes());
  return tensor;
}

History CacheFile::Loading::read_history() const {
  const std::int64_t known = file_.integer("known");
  check_value(known >= 0 && known <= seen_, file_.name(), " says that ", known, " of ", seen_,
              " tokens are known");
  const History::Content content{
      .ids = history_tensor("history.ids", at::kLong, {batch_, seen_}),
      .valid = history_tensor("history.valid", at::kBool, {batch_, seen_}),
      .stamps = history_tensor("history.stamps", at::kLong, {batch_}),
      .known = known};
  check_value(known == seen_ || content.ids.select(1, known).eq(kNoId).all().item<bool>(),
              file_.name(), ": 'known' is ", known, ", but token ", known, " of ", seen_,
              " has an id; it must be the number of tokens before the first without one");
  return History(content);
}

// In a cache that makes its layers as keys come in.
void CacheFile::Loading::make_layers() {
  const auto wanted = static_cast<std::int64_t>(file_.layers().size());
  if (stack_.size() == 0 && wanted > 0) stack_.make_up_to(wanted - 1);
  check_value(stack_.size() == wanted, file_.name(), " holds ", wanted,
              " layers, but the cache has ", stack_.size());
}

detail::LayerState CacheFile::Loading::read_layer(std::int64_t index) const {
  const json& entry = file_.layers().at(static_cast<std::size_t>(index));
  Layer& layer = stack_[index];
  const json &spec = file_.field(entry, "spec"), own = to_json(layer.spec());
  check_value(spec == own, file_.name(), ": layer ", index, " is ", spec.dump(),
              ", but the cache's is ", own.dump());
  const std::int64_t max_length =
      file_.checked_integer(file_.field(entry, "max_length"), "max_length", /*least=*/-1);
  check_value(max_length == layer.get_max_length(), file_.name(), ": layer ", index, " holds ",
              max_length, " tokens at most, but the cache's ", layer.get_max_length());
  detail::LayerState state = numbers_of(layer);
  const json& counts = file_.field(entry, "counts");
  for (auto& [name, value] : state.counts) {
    value = file_.checked_integer(file_.field(counts, name.c_str()), name);
  }
  for (const auto& [name, value] : counts.items()) {
    check_value(state.counts.contains(name), file_.name(), ": layer ", index, " has a number '",
                name, "', but the cache's has none of that name");
  }
  naming(index, [&] { check_counts(layer, state.counts, seen_); });
  read_tensors(index, entry, state);
  return state;
}

void CacheFile::Loading::read_tensors(std::int64_t index, const json& entry,
                                      detail::LayerState& state) const {
  const json& forms = file_.field(entry, "tensors");
  check_value(forms.is_object(), file_.name(), ": 'tensors' of layer ", index,
              " must be an object");
  for (const auto& [name, form] : forms.items()) {
    const at::Tensor content = file_.take(tensor_name(index, name));
    check_value(form == form_of(content), file_.name(), ": layer ", index, ": ", name, " is ",
                form_of(content), ", but was saved as ", form.dump());
    state.tensors[name].content = content;
  }
}

at::Device CacheFile::Loading::device(std::int64_t layer) const {
  return options_.devices[options_.devices.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
}

template <typename Call>
void CacheFile::Loading::naming(std::int64_t layer, const Call& call) const {
  try {
    call();
  } catch (const ValueError& error) {
    throw ValueError(c10::str(file_.name(), ": layer ", layer, ": ", error.what()));
  }
}

}  // namespace kvcache
