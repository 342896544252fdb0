#include "generate/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "kvcache/chat/tokenizer_text.h"

namespace generate_program {
namespace {

using kvcache::Output;
using nlohmann::ordered_json;

constexpr kvcache::DecodeOptions kDecode{.skip_special_tokens = true};

std::vector<std::int64_t> row_of(const at::Tensor& sequences, std::int64_t row) {
  const at::Tensor ids = sequences.select(0, row).contiguous();
  const auto* data = ids.const_data_ptr<std::int64_t>();
  return {data, data + ids.numel()};
}

// 0 where no time was taken.
double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// Ids as text.
class Numbers final : public kvcache::RunningText {
 public:
  std::string push(std::int64_t id) override { return fmt::format("{} ", id); }
  std::string finish() override { return {}; }
};

struct CacheFacts {
  std::string kind = "none";
  std::int64_t length = 0;
  std::int64_t bytes = 0;
};

CacheFacts facts_of(const Output& output) {
  if (!output.cache) return {};
  return {std::string(output.cache->kind()), output.cache->get_seq_length(),
          output.cache->nbytes()};
}

std::string with_unit(std::int64_t bytes) {
  constexpr double kKilo = 1e3, kMega = 1e6, kGiga = 1e9;
  const auto count = static_cast<double>(bytes);
  if (count >= kGiga) return fmt::format("{:.2f} GB", count / kGiga);
  if (count >= kMega) return fmt::format("{:.1f} MB", count / kMega);
  return fmt::format("{:.1f} kB", count / kKilo);
}

}  // namespace

kvcache::MakeRunningText shown_text(const MaybeTokenizer& tokenizer) {
  if (tokenizer) return kvcache::running_text(*tokenizer, kDecode);
  return [] { return std::make_unique<Numbers>(); };
}

std::vector<std::string> texts(const Report& report, const at::Tensor& sequences) {
  std::vector<std::string> result;
  for (std::int64_t row = 0; row < sequences.size(0); ++row) {
    const std::vector<std::int64_t> ids = row_of(sequences, row);
    const auto first = ids.begin() + report.prompt_tokens;
    const auto last =
        std::find_if(first, ids.end(), [&](std::int64_t id) { return report.config.ends_at(id); });
    result.push_back(report.tokenizer ? report.tokenizer->decode(std::span(first, last), kDecode)
                                      : fmt::format("{}", fmt::join(first, last, " ")));
  }
  return result;
}

std::string json_report(const Report& report, const Output& output) {
  ordered_json json;
  json["sequences"] = ordered_json::array();
  for (std::int64_t row = 0; row < output.sequences.size(0); ++row) {
    json["sequences"].push_back(row_of(output.sequences, row));
  }
  if (const auto& scores = output.sequences_scores) {
    json["sequences_scores"] = ordered_json::array();
    for (std::int64_t row = 0; row < scores->numel(); ++row) {
      json["sequences_scores"].push_back((*scores)[row].item<float>());
    }
  }
  if (report.tokenizer) json["text"] = texts(report, output.sequences);
  const CacheFacts cache = facts_of(output);
  json["cache"] = {{"kind", cache.kind}, {"length", cache.length}, {"bytes", cache.bytes}};
  const kvcache::Timings& timings = output.timings;
  json["timings"] = {
      {"load_s", report.load_s},
      {"prefill_s", timings.prefill_s},
      {"decode_s", timings.decode_s},
      {"prefill_tokens_per_s", per_second(timings.prefill_tokens, timings.prefill_s)},
      {"decode_tokens_per_s", per_second(timings.decode_tokens, timings.decode_s)}};
  return json.dump();
}

std::string summary(const Report& report, const Output& output) {
  const std::int64_t rows = output.sequences.size(0);
  const kvcache::Timings& timings = output.timings;
  const CacheFacts cache = facts_of(output);
  const std::int64_t held = report.given_tokens - timings.prefill_tokens;
  return fmt::format(
      "{} new tokens (prompt of {}{} at {:.1f} tokens/s, then {:.1f} tokens/s), cache {} of {} "
      "tokens, {}",
      rows * (output.sequences.size(1) - report.prompt_tokens), report.given_tokens,
      held > 0 ? fmt::format(", {} of them held in the cache,", held) : "",
      per_second(timings.prefill_tokens, timings.prefill_s),
      per_second(timings.decode_tokens, timings.decode_s), cache.kind, cache.length,
      with_unit(cache.bytes));
}

}  // namespace generate_program
