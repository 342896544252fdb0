// Files of caches of every kind with one thing changed: an integer of the header, or a tensor. Each
// is refused and changes nothing, or goes on to what the file as it was goes on to.

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/contract/cache_file.h"
#include "tests/contract/subject.h"
#include "tests/support/sweep.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;

// One change of a file. `told`: the header says the tensor's new form, too. Of what a layer's spec
// leaves open the file is then one of another model, for which the next step is refused or, of an
// encoder's keys, is handed another shape.
struct Damage {
  std::string name;
  bool told;
  std::function<void(FileContent&)> apply;
};

void add_numbers(const json& header, std::vector<Damage>& damages) {
  const json flat = header.flatten();
  for (const auto& [key, found] : flat.items()) {
    if (!found.is_number_integer()) continue;
    const auto value = found.get<std::int64_t>();
    for (const std::int64_t other : {std::int64_t{-1}, std::int64_t{0}, value - 1, value + 1,
                                     std::int64_t{1} << 31, std::int64_t{1} << 62}) {
      if (other == value) continue;
      damages.push_back({c10::str(key, " = ", other, " instead of ", value), /*told=*/false,
                         [at = json::json_pointer(key), other](FileContent& content) {
                           content.header[at] = other;
                         }});
    }
  }
}

at::ScalarType other_dtype(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kLong) return at::kInt;
  if (tensor.scalar_type() == at::kBool) return at::kByte;
  return tensor.scalar_type() == at::kHalf ? at::kFloat : at::kHalf;
}

// The tensor with another size of one dimension.
at::Tensor resized(const at::Tensor& tensor, std::int64_t dim, std::int64_t size) {
  const std::int64_t had = tensor.size(dim);
  if (size <= had) return tensor.narrow(dim, 0, size).contiguous();
  std::vector<std::int64_t> more = tensor.sizes().vec();
  more[std::size_t(dim)] = size - had;
  return at::cat({tensor, at::zeros(more, tensor.options())}, dim);
}

void add_tensor(const std::string& name, const at::Tensor& tensor, std::vector<Damage>& damages) {
  using Change = std::function<at::Tensor(const at::Tensor&)>;
  std::vector<std::pair<std::string, Change>> changes;
  changes.emplace_back("removed", [](const at::Tensor&) { return at::Tensor(); });
  changes.emplace_back("of another dtype",
                       [](const at::Tensor& t) { return t.to(other_dtype(t)); });
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const std::int64_t had = tensor.size(dim);
    for (const std::int64_t size : {std::int64_t{0}, had - 1, had + 1}) {
      if (size < 0 || size == had || (size == 0 && had == 1)) continue;
      changes.emplace_back(c10::str("of size ", size, " instead of ", had, " in dimension ", dim),
                           [=](const at::Tensor& t) { return resized(t, dim, size); });
    }
    if (had == 1) {
      changes.emplace_back(c10::str("empty in dimension ", dim),
                           [=](const at::Tensor& t) { return resized(t, dim, 0); });
    }
  }
  for (const auto& [what, change] : changes) {
    for (const bool told : {false, true}) {
      damages.push_back({name + " " + what + (told ? ", as the header says" : ""), told,
                         [name = name, change = change, told](FileContent& content) {
                           at::Tensor changed = change(content.tensors.at(name));
                           content.tensors.erase(name);
                           if (changed.defined()) content.tensors[name] = std::move(changed);
                           if (told) content.say_forms();
                         }});
    }
  }
}

std::vector<Damage> damages_of(const FileContent& content) {
  std::vector<Damage> damages;
  add_numbers(content.header, damages);
  for (const auto& [name, tensor] : content.tensors) add_tensor(name, tensor, damages);
  const bool pair = !content.header.contains("layers");
  for (const std::string stray : {"stray", "layers.0.stray", "layers.0.seen"}) {
    const std::string name = pair ? "cross_attention_cache." + stray : stray;
    damages.push_back({name, /*told=*/false, [name](FileContent& changed) {
                         changed.tensors[name] = at::ones({2, 2});
                         changed.say_forms();
                       }});
  }
  return damages;
}

// What layers are handed in a step after the text of `source`, call by call.
std::vector<at::Tensor> outputs_of_layer(Step& step, const Subject& source, const StepPlan& plan,
                                         std::int64_t layer) {
  const CacheModel& model = source.model;
  const TokenRows rows = joined(model.rows, plan.added);
  const std::int64_t seen = model.seen(), end = seen + plan.tokens();
  std::vector<at::Tensor> outputs;
  const auto add = [&](const KeyValue& states) {
    outputs.push_back(states.keys.clone());
    outputs.push_back(states.values.clone());
  };
  if (model.spec(layer).donor) {
    add(dense(step.view(layer)));
  } else if (model.has_keys(layer)) {
    const KeyValue states = source.states(plan, layer);
    add(dense(step.append(layer, states.keys, states.values)));
  }
  for (std::int64_t index = 0; index < model.convolutions(layer); ++index) {
    const StateIndex state{layer, index};
    outputs.push_back(
        step.update_conv_state(layer, conv_inputs_of(rows, {seen, end}, state, source.setting),
                               {.kernel_size = state.taps(), .index = index})
            .clone());
  }
  for (std::int64_t index = 0; index < model.recurrences(layer); ++index) {
    const auto before = step.recurrent_state(layer, index);
    outputs.push_back(before ? before->clone() : at::zeros({0}));
    const std::int64_t wanted = step.wanted_states(layer);
    const Range ends{end - wanted + 1, end + 1};
    const StateIndex state{layer, index};
    step.update_recurrent_state(layer, recurrent_states_of(rows, ends, state, source.setting),
                                index);
  }
  if (!source.setting.kind.encoder) return outputs;
  if (step.cross()) {
    const TokenRows& encoder = plan.encoder.value();
    const KeyValue states =
        states_of(encoder, {0, std::int64_t(encoder[0].size())}, layer, source.setting);
    step.cross()->append(layer, states.keys, states.values);
  }
  add(dense(step.cross_view(layer)));
  return outputs;
}

std::vector<at::Tensor> outputs_of(Cache& cache, const Subject& source, const StepPlan& plan) {
  Step step = cache.begin_step(source.input(plan));
  std::vector<at::Tensor> outputs{step.positions()};
  for (std::int64_t layer = 0; layer < source.model.layers(); ++layer) {
    for (const at::Tensor& output : outputs_of_layer(step, source, plan, layer)) {
      outputs.push_back(output);
    }
  }
  step.commit();
  return outputs;
}

// Two steps after the text of a cache, and what its layers are handed in them.
struct Continuation {
  explicit Continuation(const Subject& source) {
    Subject subject = source.clone();
    for (int i = 0; i < 2 && subject.model.fits(1); ++i) {
      before.push_back(subject.clone());
      plans.push_back(subject.random_plan());
      if (!subject.model.fits(plans.back().tokens())) plans.back() = subject.plan(1);
      outputs.push_back(outputs_of(*subject.cache, before.back(), plans.back()));
      note_step(subject, plans.back());
    }
  }

  void expect_same(Cache& cache, const Damage& damage) const {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Digest digest = digest_of(cache);
      std::vector<at::Tensor> found;
      try {
        found = outputs_of(cache, before[i], plans[i]);
      } catch (const std::exception& error) {
        EXPECT_TRUE(damage.told) << error.what();
        EXPECT_EQ(difference(digest, digest_of(cache)), "");
        return;
      }
      ASSERT_EQ(found.size(), outputs[i].size());
      for (std::size_t at = 0; at < found.size(); ++at) {
        if (damage.told && found[at].sizes() != outputs[i][at].sizes()) return;
        EXPECT_TRUE(at::equal(found[at], outputs[i][at])) << "output " << at << " of step " << i;
      }
    }
  }

  std::vector<Subject> before;
  std::vector<StepPlan> plans;
  std::vector<std::vector<at::Tensor>> outputs;
};

enum class Text { some, taken_back, all_taken_back, none };

// A cache that has seen that much.
Subject with_text(const Setting& setting, Text text) {
  Subject subject(setting, std::uint64_t(text));
  if (text == Text::none) return subject;
  for (int i = 0; i < 3; ++i) take_step(subject, subject.random_plan());
  if (text == Text::taken_back) crop(subject, 1);
  if (text == Text::all_taken_back) crop(subject, subject.model.seen());
  return subject;
}

class DamagedFiles : public ::testing::TestWithParam<Setting> {
 protected:
  ~DamagedFiles() override { std::filesystem::remove(path_); }

  // Saves a cache; files are loaded from then on to where its layers lie.
  FileContent save(const Subject& source) {
    save_cache(*source.cache, path_);
    options_.devices.clear();
    for (std::int64_t i = 0; i < source.layers().layer_count(); ++i) {
      options_.devices.push_back(GetParam().device_of(i));
    }
    if (options_.devices.empty()) options_.devices = {at::kCPU};
    return FileContent::read(path_);
  }

  // Whether the file is refused, as it must be: naming it, and leaving the cache as it was.
  bool refused(Cache& cache, const Digest& before) const {
    try {
      load_cache(cache, path_, options_);
      return false;
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(path_.string()));
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not a ValueError: " << error.what();
    }
    EXPECT_EQ(difference(before, digest_of(cache)), "");
    return true;
  }

  CacheFileOptions options_;
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / c10::str("kvcache_damaged_", ::getpid());
};

TEST_P(DamagedFiles, AreRefusedOrGoOnAsBefore) {
  for (const Text text : {Text::some, Text::taken_back, Text::all_taken_back, Text::none}) {
    const Subject source = with_text(GetParam(), text);
    const Continuation continuation(source);
    const FileContent content = save(source);
    std::vector<Damage> damages = damages_of(content);
    std::shuffle(damages.begin(), damages.end(), std::mt19937_64(std::uint64_t(text)));
    const auto count = std::int64_t(damages.size());
    damages.resize(std::size_t(std::min(count, sweep_count(8, count))));
    Subject target = with_text(GetParam(), Text::some);
    const Digest before = target.digest();
    for (const Damage& damage : damages) {
      SCOPED_TRACE(c10::str("text ", int(text), ": ", damage.name));
      FileContent damaged = content;
      damage.apply(damaged);
      damaged.write(path_);
      if (refused(*target.cache, before)) continue;
      continuation.expect_same(*target.cache, damage);
      target = with_text(GetParam(), Text::some);
    }
    for (int i = 0; i < 2; ++i) take_step(target, target.random_plan());
  }
}

// Of each kind one that records and one that does not, of another dtype and number of rows.
std::vector<Setting> some_settings() {
  std::vector<Setting> result;
  for (const Setting& setting : settings()) {
    const bool small = !setting.recorded && setting.batch == 1 && setting.dtype == at::kBFloat16;
    const bool large = setting.recorded && setting.batch == 2 && setting.dtype == at::kFloat;
    if (small || large) result.push_back(setting);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DamagedFiles, ::testing::ValuesIn(some_settings()),
                         [](const auto& setting) { return name_of(setting.param); });

}  // namespace
}  // namespace kvcache::testing
