#include "generate/arguments.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cstdint>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "kvcache/core/errors.h"
#include "kvcache/core/version.h"

namespace generate_program {
namespace {

using kvcache::check_value;
using kvcache::GenerationConfig;
using kvcache::ValueError;

constexpr int kMostThreads = 1024;

// Options as text, to be checked once all are read.
struct RawArguments {
  std::string device = "cpu";
  std::string dtype = "auto";
  std::optional<std::string> cache_config;
  bool do_sample = false;
  bool no_cache = false;
  bool version = false;
};

c10::Device parse_device(const std::string& name) {
  if (name == "cpu") return c10::kCPU;
  int index = 0;
  const bool numbered = name.starts_with("cuda:");
  if (numbered) {
    const char* end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + 5, end, index);
    if (error != std::errc() || rest != end || index > 127) index = -1;
  }
  check_value((name == "cuda" || numbered) && index >= 0,
              "--device must be cpu, cuda or cuda:N, but is ", name);
  const int count = c10::impl::hasDeviceGuardImpl(c10::kCUDA)
                        ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount()
                        : 0;
  check_value(index < count, "--device ", name, ": this program sees ", count,
              " CUDA devices; use --device cpu");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

std::optional<c10::ScalarType> parse_dtype(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "float32") return c10::kFloat;
  if (name == "bfloat16") return c10::kBFloat16;
  check_value(name == "float16", "--dtype must be auto, float32, bfloat16 or float16, but is ",
              name);
  return c10::kHalf;
}

// The whole of `text` as an integer of type T; CLI11's own conversion saturates in silence.
template <typename T>
T parse_integer(const std::string& name, const std::string& text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  check_value(error == std::errc() && rest == end, name, " must be an integer from ",
              std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max(), ", but is ",
              text);
  return value;
}

template <typename T>
void add_integer(CLI::App& app, const std::string& name, std::optional<T>& field,
                 const std::string& description) {
  app.add_option_function<std::string>(
         name, [name, &field](const std::string& text) { field = parse_integer<T>(name, text); },
         description)
      ->type_name("N");
}

// As torch.manual_seed takes it: negative seeds stand for their two's complement.
std::uint64_t parse_seed(const std::string& text) {
  if (!text.starts_with('-')) return parse_integer<std::uint64_t>("--seed", text);
  return static_cast<std::uint64_t>(parse_integer<std::int64_t>("--seed", text));
}

template <typename T>
void add_field(CLI::App& app, const std::string& name, std::optional<T>& field,
               const std::string& description) {
  app.add_option_function<T>(
      name, [&field](const T& value) { field = value; }, description);
}

void add_file(CLI::App& app, const std::string& name, std::optional<std::filesystem::path>& field,
              const std::string& description) {
  app.add_option_function<std::string>(
         name,
         [name, &field](const std::string& text) {
           check_value(!text.empty(), name, " is empty; give the name of a file");
           field = text;
         },
         description)
      ->type_name("FILE.json");
}

void add_generation_options(CLI::App& app, Arguments& arguments, RawArguments& raw) {
  GenerationConfig& config = arguments.overrides;
  add_file(app, "--generation-config", arguments.generation_config,
           "GenerationConfig's fields, over the checkpoint's own");
  add_integer(app, "--max-new-tokens", config.max_new_tokens, "tokens to make, at most");
  app.add_flag("--do-sample", raw.do_sample, "draw tokens at random instead of taking the best");
  add_field(app, "--temperature", config.temperature, "above 0; higher is more varied");
  add_integer(app, "--top-k", config.top_k, "draw from the k best tokens; 0: from all");
  add_field(app, "--top-p", config.top_p, "draw from the best tokens that add up to p");
  add_integer(app, "--num-beams", config.num_beams, "beams of beam search; 1: none");
  add_field(app, "--cache-implementation", config.cache_implementation,
            "kind of cache: dynamic (grows) or static (made once, of the text's length)");
  app.add_option_function<std::string>(
         "--cache-config", [&raw](const std::string& text) { raw.cache_config = text; },
         "the cache's settings, a JSON object")
      ->type_name("JSON");
  app.add_flag("--no-cache", raw.no_cache, "compute the whole text at each step");
  app.add_option_function<std::string>(
         "--seed", [&](const std::string& text) { arguments.seed = parse_seed(text); },
         "seeds the generator before sampling")
      ->type_name("N");
}

void add_options(CLI::App& app, Arguments& arguments, RawArguments& raw) {
  app.add_option("--model", arguments.model, "folder of a Transformers checkpoint")
      ->type_name("DIR");
  app.add_option("--prompt", arguments.prompts, "text to go on from; several make a batch")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("TEXT");
  add_file(app, "--messages", arguments.messages,
           R"([{"role": ..., "content": ...}, ...], put through the chat template)");
  add_file(app, "--input-ids", arguments.input_ids,
           R"({"input_ids": [[...]], "attention_mask": [[...]]})");
  add_generation_options(app, arguments, raw);
  app.add_option("--device", raw.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", raw.dtype, "auto, float32, bfloat16 or float16")->capture_default_str();
  add_integer(app, "--threads", arguments.threads, "threads to compute with");
  app.add_flag("--json", arguments.json, "print one JSON object instead of streaming text");
  add_file(app, "--save-logits", arguments.save_logits, "takes each step's scores");
  add_file(app, "--save-cache", arguments.save_cache, "takes the cache, at the end");
  add_file(app, "--load-cache", arguments.load_cache,
           "cache to begin from: what it has of the prompt is not computed again");
  for (const char* name : {"--save-logits", "--save-cache", "--load-cache"}) {
    app.get_option(name)->type_name("FILE.safetensors");
  }
  app.add_flag("--quiet", arguments.quiet, "nothing on standard error but errors");
  app.add_flag("--version", raw.version, "print the version");
}

void check_model(const std::filesystem::path& model) {
  check_value(!model.empty(), "--model is missing: name the folder of a checkpoint");
  std::error_code error;
  const bool folder = std::filesystem::is_directory(model, error);
  check_value(folder, "--model ", model.string(), " is not a folder",
              error ? " (" + error.message() + ")" : "", "; name that of a checkpoint");
  const auto config = std::filesystem::status(model / "config.json", error).type();
  check_value(config != std::filesystem::file_type::not_found, "--model ", model.string(),
              " is no checkpoint: it has no config.json");
  check_value(config != std::filesystem::file_type::none, "--model ", model.string(),
              ": its config.json cannot be read: ", error.message());
}

// The field's checks are the config's own; this one keeps its text from being more than a field.
std::optional<std::string> parse_cache_config(const std::string& text) {
  const auto object = nlohmann::json::parse(text, nullptr, false);
  check_value(object.is_object(), "--cache-config must be a JSON object, but is ",
              text.empty() ? "empty" : text);
  return GenerationConfig::from_json(fmt::format(R"({{"cache_config": {}}})", text),
                                     "--cache-config")
      .cache_config;
}

// What went wrong with the options, in this program's words where CLI11's are not plain.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->count() > 1 && option->get_expected_max() == 1) {
        return fmt::format("{} is given {} times; give it once", option->get_name(),
                           option->count());
      }
    }
  }
  return std::string(error.what()) + "; see --help";
}

void check(Arguments& arguments, const RawArguments& raw) {
  check_model(arguments.model);
  const int inputs = (arguments.prompts.empty() ? 0 : 1) + (arguments.messages ? 1 : 0) +
                     (arguments.input_ids ? 1 : 0);
  check_value(inputs == 1,
              "give one of --prompt, --messages and --input-ids to say what to go on from");
  arguments.device = parse_device(raw.device);
  arguments.dtype = parse_dtype(raw.dtype);
  const int threads = arguments.threads.value_or(1);
  check_value(threads >= 1 && threads <= kMostThreads, "--threads must be from 1 to ", kMostThreads,
              ", but is ", threads);
  if (raw.do_sample) arguments.overrides.do_sample = true;
  if (raw.no_cache) arguments.overrides.use_cache = false;
  if (raw.cache_config) arguments.overrides.cache_config = parse_cache_config(*raw.cache_config);
}

}  // namespace

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  Arguments arguments;
  RawArguments raw;
  CLI::App app("Makes text with a language model, token by token over a cache.",
               argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "generate");
  app.set_help_flag("--help", "print this help");
  add_options(app, arguments, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw ValueError(usage_error(app, error));
  }
  if (raw.version) {
    std::cout << "kvcache-generate " << kvcache::kVersion << '\n';
    return std::nullopt;
  }
  check(arguments, raw);
  return arguments;
}

}  // namespace generate_program
