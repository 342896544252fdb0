// Makes text with a checkpoint in Transformers' format: generate --model DIR --prompt TEXT. See
// generate --help for the rest.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "generate/arguments.h"
#include "generate/cache_file.h"
#include "generate/output_file.h"
#include "generate/prompts.h"
#include "generate/report.h"
#include "kvcache/chat/tokenizer_text.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "kvcache/generation/text_streamer.h"
#include "kvcache/io/read_text_file.h"
#include "kvcache/io/safetensors.h"
#include "kvcache/models/registry.h"

namespace generate_program {
namespace {

using kvcache::check_value;
using kvcache::GenerationConfig;

// The options over the file.
GenerationConfig given_config(const Arguments& arguments) {
  GenerationConfig file;
  if (const auto& path = arguments.generation_config) {
    file = GenerationConfig::from_json(kvcache::read_text_file(*path), path->string());
  }
  return arguments.overrides.over(file);
}

// That over the checkpoint's own.
GenerationConfig merged_config(const Arguments& arguments, const GenerationConfig& given) {
  GenerationConfig config = given.over(GenerationConfig::from_pretrained(arguments.model));
  if (arguments.save_logits) config.output_logits = true;
  config.validate();
  return config;
}

// A missing tokenizer is no fault where ids come in and go out.
MaybeTokenizer load_tokenizer(const Arguments& arguments) {
  const auto missing = [&](const char* name) {
    std::error_code ignored;  // what hinders the look-up hinders the loading too
    const auto status = std::filesystem::status(arguments.model / name, ignored);
    return status.type() == std::filesystem::file_type::not_found;
  };
  if (missing("tokenizer.json") && missing("tokenizer.model") && missing("spiece.model")) {
    check_value(arguments.input_ids.has_value(), arguments.messages ? "--messages" : "--prompt",
                " needs a tokenizer, but ", arguments.model.string(),
                " has no tokenizer.json; pass --input-ids instead");
    return std::nullopt;
  }
  return kvcache::Tokenizer::from_folder(arguments.model);
}

TokenBatch read_input(const Arguments& arguments, const Report& report) {
  if (arguments.input_ids) return read_token_file(*arguments.input_ids);
  if (arguments.messages) {
    return tokenize_messages(*arguments.messages, arguments.model, *report.tokenizer);
  }
  return tokenize(arguments.prompts, *report.tokenizer, report.config);
}

std::unique_ptr<kvcache::LanguageModel> load(const Arguments& arguments, double& seconds) {
  const bool show = !arguments.quiet && isatty(STDERR_FILENO) != 0;
  if (show) std::cerr << "loading " << arguments.model.string() << " ..." << std::flush;
  const auto start = std::chrono::steady_clock::now();
  auto model = kvcache::load_language_model(arguments.model,
                                            {.dtype = arguments.dtype, .device = arguments.device});
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (show) std::cerr << "\r\033[K" << std::flush;
  return model;
}

void print(const Arguments& arguments, const Report& report, const kvcache::Output& output,
           bool streamed) {
  if (arguments.json) std::cout << json_report(report, output) << std::endl;
  if (!arguments.json && !streamed) {
    for (const std::string& text : texts(report, output.sequences)) std::cout << text << '\n';
    std::cout << std::flush;
  }
  if (!arguments.json && !arguments.quiet) std::cerr << summary(report, output) << std::endl;
}

void run(const Arguments& arguments) {
  if (arguments.threads) at::set_num_threads(*arguments.threads);
  if (arguments.save_logits) check_output_file("--save-logits", *arguments.save_logits);
  const GenerationConfig given = given_config(arguments);
  Report report{.config = merged_config(arguments, given)};
  const auto held = check_cache_files(arguments, given, report.config);
  if (held) report.config.cache_implementation.reset();  // the file's, not a new one
  report.tokenizer = load_tokenizer(arguments);
  const TokenBatch batch = read_input(arguments, report);
  const auto model = load(arguments, report.load_s);
  report.prompt_tokens = model->is_encoder_decoder() ? 1 : batch.ids.size(1);  // its start token
  const bool beams = report.config.num_beams.value_or(1) > 1;  // which come after the prompt
  const std::int64_t rows =
      batch.ids.size(0) * (beams ? 1 : report.config.num_return_sequences.value_or(1));
  report.given_tokens =
      rows * report.prompt_tokens + (model->is_encoder_decoder() ? batch.ids.numel() : 0);
  std::unique_ptr<kvcache::Cache> loaded;
  if (held) loaded = load_cache(arguments, *held, *model, rows);

  kvcache::Inputs inputs{.input_ids = batch.ids, .attention_mask = batch.mask};
  inputs.generator = kvcache::make_generator(arguments.seed.value_or(std::random_device{}()));
  if (report.tokenizer) inputs.text = kvcache::running_text(*report.tokenizer);
  kvcache::TextStreamer streamer(
      shown_text(report.tokenizer), [](auto text) { std::cout << text << std::flush; },
      report.config.eos_token_id.value_or(std::vector<std::int64_t>{}));
  const bool stream = rows == 1 && !beams && !arguments.json;
  if (stream) inputs.streamer = &streamer;
  kvcache::Output output = kvcache::generate(*model, inputs, report.config, loaded.get());
  if (stream) std::cout << std::endl;
  if (loaded) output.cache = std::move(loaded);
  if (arguments.save_logits) {
    kvcache::save_safetensors(*arguments.save_logits, {{"logits", *output.logits}});
  }
  if (arguments.save_cache) save_cache(arguments, *output.cache, *model);
  print(arguments, report, output, stream);
}

int fail(int code, std::string_view message) {
  std::cerr << "error: " << message.substr(0, message.find('\n')) << std::endl;
  return code;
}

}  // namespace
}  // namespace generate_program

int main(int argc, char** argv) {
  using generate_program::fail;
  constexpr int kBadInput = 2, kFailure = 3;
  try {
    const auto arguments = generate_program::parse_arguments(argc, argv);
    if (arguments) generate_program::run(*arguments);
    if (!std::cout.flush()) return fail(kFailure, "standard output could not be written");
    return 0;
  } catch (const kvcache::ValueError& error) {
    return fail(kBadInput, error.what());
  } catch (const c10::Error& error) {
    return fail(kFailure, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return fail(kFailure, "out of memory");
  } catch (const std::exception& error) {
    return fail(kFailure, error.what());
  }
}
