#include "kvcache/generation/resilient_generate.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "generation/cache_choice.h"
#include "generation/config_checks.h"
#include "generation/configured.h"
#include "generation/prompt.h"
#include "generation/replay_streamer.h"
#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

// What an attempt changes and a retry must find unchanged.
class Start {
 public:
  Start(const std::optional<at::Generator>& generator, Cache* cache)
      : generator_(generator), cache_(cache) {
    if (generator_ && generator_->defined()) {
      const std::lock_guard lock(generator_->mutex());
      generator_state_ = generator_->get_state();
    }
    if (cache_ != nullptr && cache_->batch_size() > 0) mark_.emplace(cache_->snapshot());
  }

  void go_back() {
    if (generator_state_.defined()) {
      const std::lock_guard lock(generator_->mutex());
      generator_->set_state(generator_state_);
    }
    if (mark_) {
      cache_->restore(*mark_);
    } else if (cache_ != nullptr) {
      cache_->reset();
    }
  }

 private:
  std::optional<at::Generator> generator_;
  Cache* cache_;
  at::Tensor generator_state_;
  std::optional<Snapshot> mark_;  // absent: the cache is empty
};

// Gives back what allocators hold of freed memory, on the devices of the model's scores and of the
// loop's own tensors.
void empty_device_memory(const LanguageModel& model, const Inputs& inputs) {
  std::set<c10::DeviceType> types{model.device().type()};
  if (inputs.input_ids.defined()) types.insert(inputs.input_ids.device().type());
  types.erase(c10::kCPU);
  for (const c10::DeviceType type : types) c10::getDeviceAllocator(type)->emptyCache();
}

// What is tried, and what it is going to take. Checks the inputs.
GenerationAttempt planned_attempt(const LanguageModel& model, const Inputs& inputs,
                                  const GenerationConfig& config, Cache* cache) {
  const detail::Prompt prompt = detail::make_prompt(inputs, config, model, cache);
  std::unique_ptr<Cache> made;
  if (cache == nullptr) {
    if (!config.use_cache.value_or(true)) return {.cache = "none", .planned_bytes = 0};
    made =
        detail::new_cache(config, model.config(), detail::room_for(config, prompt, prompt.longest));
    cache = made.get();
  }
  GenerationAttempt attempt{
      .cache = std::string(made != nullptr ? detail::cache_kind(config) : cache->kind())};
  const std::int64_t held = prompt.longest - 1;
  PlanInput input{.batch = prompt.rows() * config.num_beams.value_or(1),
                  .tokens = std::max<std::int64_t>(held, 1),
                  .dtype = model.dtype()};
  if (prompt.encoder) {
    input.cross_tokens = prompt.encoder->input_ids.size(1);
    input.cross_batch = prompt.encoder->input_ids.size(0);
  }
  try {
    attempt.planned_bytes = cache->plan(input).total;
  } catch (const ValueError&) {
  }
  return attempt;
}

std::string describe(const std::vector<GenerationAttempt>& attempts) {
  std::string text = c10::str("memory ran out in each of ", attempts.size(), " attempts: ");
  std::int64_t number = 0;
  for (const GenerationAttempt& attempt : attempts) {
    text += c10::str(++number > 1 ? "; " : "", number, ", cache \"", attempt.cache, "\"");
    if (attempt.planned_bytes) text += c10::str(" of ", *attempt.planned_bytes, " bytes");
    text += ": " + attempt.error;
  }
  return text + " -- make fewer rows or tokens, or add a config that needs less";
}

// LibTorch's allocator on the CPU throws a plain Error.
bool ran_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         error.msg().find("DefaultCPUAllocator: can't allocate memory") != std::string::npos;
}

}  // namespace

ResilientOutput resilient_generate(Runner& runner, const Inputs& inputs,
                                   const std::vector<GenerationConfig>& configs,
                                   Cache* past_key_values) {
  check_value(!configs.empty(), "there is no config to generate with; pass at least one");
  for (const GenerationConfig& config : configs) detail::check_call(config, past_key_values);
  Start start(inputs.generator, past_key_values);
  detail::ReplayStreamer streamer(inputs.streamer);
  Inputs watched = inputs;
  if (inputs.streamer != nullptr) watched.streamer = &streamer;
  ResilientOutput result;
  for (const GenerationConfig& config : configs) {
    result.attempts.push_back(planned_attempt(runner.model(), inputs, config, past_key_values));
    bool done = false;
    try {
      result.output = runner.generate(watched, config, past_key_values);
      done = true;
    } catch (const c10::Error& error) {
      if (!ran_out_of_memory(error)) throw;
      result.attempts.back().error = error.what_without_backtrace();
    }
    if (done) {
      streamer.finish();
      return result;
    }
    start.go_back();
    runner.release_caches();
    empty_device_memory(runner.model(), inputs);
  }
  throw c10::OutOfMemoryError(describe(result.attempts));
}

ResilientOutput resilient_generate(const LanguageModel& model, const Inputs& inputs,
                                   const std::vector<GenerationConfig>& configs,
                                   Cache* past_key_values) {
  Runner runner(model);
  return resilient_generate(runner, inputs, configs, past_key_values);
}

}  // namespace kvcache
