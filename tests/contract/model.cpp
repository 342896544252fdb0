#include "tests/contract/model.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace kvcache::testing {

KeyValue states_of(const TokenRows& rows, Range range, std::int64_t layer, const Setting& setting) {
  const auto fill = [&](std::int64_t dim, std::int64_t sign) {
    at::Tensor states =
        at::empty({std::int64_t(rows.size()), setting.heads, range.length(), dim}, at::kFloat);
    auto* out = states.data_ptr<float>();
    for (const std::vector<Token>& row : rows) {
      for (std::int64_t head = 0; head < setting.heads; ++head) {
        for (std::int64_t at = range.first; at < range.end; ++at) {
          const Token& token = row[std::size_t(at)];
          const std::int64_t content = token.content + 53 * layer + 11 * head;
          for (std::int64_t d = 0; d < dim; ++d) {
            *out++ = token.blank ? 0 : float(sign * ((content + 3 * d) % 251));
          }
        }
      }
    }
    return states.to(setting.device_of(layer), setting.dtype);
  };
  return {fill(kKeyDim, 1), fill(kValueDim, -1)};
}

bool has_keys(const LayerSpec& spec) {
  for (const std::string_view type : {kLinearAttention, kConvolution, kDummy, kShared}) {
    if (spec.type == type) return false;
  }
  return true;
}

at::Tensor conv_inputs_of(const TokenRows& rows, Range range, StateIndex state,
                          const Setting& setting) {
  at::Tensor inputs = at::empty({std::int64_t(rows.size()), kChannels, range.length()}, at::kFloat);
  auto* out = inputs.data_ptr<float>();
  for (const std::vector<Token>& row : rows) {
    for (std::int64_t channel = 0; channel < kChannels; ++channel) {
      const std::int64_t offset = 53 * state.layer + 11 * channel + 29 * state.index;
      for (std::int64_t at = range.first; at < range.end; ++at) {
        const Token token = at < 0 ? Token{.blank = true} : row[std::size_t(at)];
        *out++ = token.blank ? 0 : float((token.content + offset) % 250 + 1);
      }
    }
  }
  return inputs.to(setting.device_of(state.layer), setting.dtype);
}

at::Tensor recurrent_states_of(const TokenRows& rows, Range ends, StateIndex state,
                               const Setting& setting) {
  at::Tensor states = at::empty({ends.length(), std::int64_t(rows.size()), kStateSize}, at::kFloat);
  auto* out = states.data_ptr<float>();
  const auto row_size = std::int64_t(rows.size()) * kStateSize;
  for (const std::vector<Token>& row : rows) {
    std::int64_t number = 1;
    for (std::int64_t at = 0; at < ends.end; ++at) {
      if (at >= ends.first) {
        for (std::int64_t i = 0; i < kStateSize; ++i) {
          out[(at - ends.first) * row_size + i] = float(number + i);
        }
      }
      if (at + 1 == ends.end || row[std::size_t(at)].blank) continue;
      const std::int64_t content = row[std::size_t(at)].content;
      number = (3 * number + content + 17 * state.layer + 5 * state.index) % 65521;
    }
    out += kStateSize;
  }
  return states.to(setting.device_of(state.layer));
}

TokenRows joined(TokenRows rows, const TokenRows& added) {
  if (rows.empty()) return added;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].insert(rows[i].end(), added[i].begin(), added[i].end());
  }
  return rows;
}

namespace {

bool all_ids_known(const TokenRows& rows) {
  return rows.empty() || std::all_of(rows[0].begin(), rows[0].end(),
                                     [](const Token& token) { return token.id.has_value(); });
}

}  // namespace

bool EncoderModel::ids_known() const { return all_ids_known(rows); }

bool EncoderModel::holds(const TokenRows& input, std::int64_t decoder_rows) const {
  if (!held() || std::int64_t(input[0].size()) != tokens()) return false;
  if (!ids_known() || !all_ids_known(input)) return false;
  for (std::int64_t row = 0; row < decoder_rows; ++row) {
    const auto& own = rows[std::size_t(row * batch() / decoder_rows)];
    const auto& other = input[std::size_t(row * std::int64_t(input.size()) / decoder_rows)];
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i].real != other[i].real) return false;
      if (own[i].real && own[i].id != other[i].id) return false;
    }
  }
  return true;
}

std::vector<std::int64_t> EncoderModel::chosen(const std::vector<std::int64_t>& indices,
                                               std::int64_t decoder_rows) const {
  std::vector<std::int64_t> owners;
  for (const std::int64_t index : indices) owners.push_back(index * batch() / decoder_rows);
  for (std::size_t count = 1;; ++count) {
    if (owners.size() % count != 0) continue;
    const std::size_t each = owners.size() / count;
    std::vector<std::int64_t> result;
    bool equal = true;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (i % each == 0) result.push_back(owners[i]);
      equal = equal && owners[i] == result.back();
    }
    if (equal) return result;
  }
}

CacheModel::CacheModel(const Setting& setting) : shows_room_(!setting.kind.packed) {
  for (const LayerSpec& spec : setting.kind.layers) layers_.push_back({spec, setting.kind.fixed});
}

std::int64_t CacheModel::LayerModel::window() const {
  return fixed && spec.window >= fixed->max_cache_len ? 0 : spec.window;
}

std::int64_t CacheModel::LayerModel::bound() const {
  return fixed && testing::has_keys(spec) && window() == 0 ? fixed->max_cache_len : 0;
}

std::int64_t CacheModel::first_needed(const LayerModel& layer, std::int64_t seen) {
  return layer.window() == 0 ? 0 : std::max<std::int64_t>(seen - layer.window() + 1, 0);
}

Visible CacheModel::visible(std::int64_t layer, std::int64_t tokens) const {
  const LayerModel& model = layers_[std::size_t(source(layer))];
  Visible result;
  result.offset = first_needed(model, seen());
  result.length = seen() + tokens - result.offset;
  if (model.window() == 0) return result;
  if (model.spec.type == kChunkedAttention) {
    result.chunk = model.window();
  } else {
    result.window = model.window();
  }
  return result;
}

std::int64_t CacheModel::columns(std::int64_t layer, std::int64_t tokens) const {
  const LayerModel& model = layers_[std::size_t(source(layer))];
  const std::int64_t length = visible(layer, tokens).length;
  return shows_room_ && model.fixed && testing::has_keys(model.spec)
             ? std::max({length, model.window(), model.bound()})
             : length;
}

std::optional<std::int64_t> CacheModel::capacity() const {
  std::optional<std::int64_t> least;
  for (const LayerModel& layer : layers_) {
    if (layer.bound() > 0) least = std::min(layer.bound(), least.value_or(layer.bound()));
  }
  return least;
}

// A ring makes room for recorded tokens before its first token, or was given some.
bool CacheModel::can_record() const {
  return seen() == 0 || std::all_of(layers_.begin(), layers_.end(), [](const LayerModel& layer) {
           return !layer.fixed || layer.window() == 0 || layer.record > 0 ||
                  layer.fixed->record_slack > 0;
         });
}

std::int64_t CacheModel::convolutions(std::int64_t layer) const {
  const auto& sizes = spec(layer).state_sizes;
  if (sizes) return std::int64_t(sizes->convolutions.size());
  return kvcache::has_states(spec(layer)) ? spec(layer).states : 0;
}

std::int64_t CacheModel::recurrences(std::int64_t layer) const {
  const auto& sizes = spec(layer).state_sizes;
  if (sizes) return std::int64_t(sizes->recurrences.size());
  return spec(layer).type == kConvolution ? 0 : convolutions(layer);
}

bool CacheModel::all_have_keys_alone() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const LayerModel& layer) {
    return testing::has_keys(layer.spec) && !kvcache::has_states(layer.spec);
  });
}

bool CacheModel::is_donor(std::int64_t index) const {
  return std::any_of(layers_.begin(), layers_.end(),
                     [&](const LayerModel& layer) { return layer.spec.donor == index; });
}

std::int64_t CacheModel::wanted_states(std::int64_t layer, std::int64_t tokens) const {
  return std::min(tokens, layers_[std::size_t(layer)].record_states + 1);
}

bool CacheModel::can_crop(std::int64_t tokens) const {
  if (tokens == 0) return true;
  if (tokens > seen()) return false;
  return std::all_of(layers_.begin(), layers_.end(), [&](const LayerModel& layer) {
    return layer.first <= first_needed(layer, seen() - tokens) &&
           (!kvcache::has_states(layer.spec) || tokens <= layer.recorded);
  });
}

void CacheModel::append(const TokenRows& added, const std::vector<std::int64_t>& new_stamps) {
  rows = joined(std::move(rows), added);
  stamps.resize(rows.size());
  if (!new_stamps.empty()) stamps = new_stamps;
  for (LayerModel& layer : layers_) {
    layer.first = std::max(layer.first, first_needed(layer, seen() - layer.record));
    layer.recorded = std::min(layer.recorded + std::int64_t(added[0].size()), layer.record_states);
  }
}

void CacheModel::crop(std::int64_t tokens) {
  for (auto& row : rows) row.resize(row.size() - std::size_t(tokens));
  shared_end_ = std::min(shared_end_, seen());
  for (LayerModel& layer : layers_) {
    layer.first = std::max(layer.first, first_needed(layer, seen()));
    layer.recorded = 0;
  }
}

void CacheModel::record(std::optional<std::int64_t> max_tokens) {
  for (LayerModel& layer : layers_) {
    if (kvcache::has_states(layer.spec)) {
      layer.record_states = max_tokens.value_or(16);
      layer.recorded = std::min(layer.recorded, layer.record_states);
    }
    if (layer.window() == 0) continue;
    layer.record = max_tokens.value_or(INT64_MAX / 2);
    if (!layer.fixed) continue;
    layer.record = layer.fixed->record_slack > 0 ? layer.fixed->record_slack
                                                 : layer.fixed->max_cache_len - layer.window() + 1;
  }
}

void CacheModel::reset() {
  rows.clear();
  stamps.clear();
  encoder.rows.clear();
  shared_end_ = 0;
  for (LayerModel& layer : layers_) layer.first = layer.recorded = 0;
}

void CacheModel::select(const std::vector<std::int64_t>& indices) {
  if (encoder.held()) {
    TokenRows chosen;
    for (const std::int64_t row : encoder.chosen(indices, batch())) {
      chosen.push_back(encoder.rows[std::size_t(row)]);
    }
    encoder.rows = std::move(chosen);
  }
  TokenRows chosen;
  std::vector<std::int64_t> chosen_stamps;
  for (const std::int64_t index : indices) {
    chosen.push_back(rows[std::size_t(index)]);
    chosen_stamps.push_back(stamps[std::size_t(index)]);
  }
  rows = std::move(chosen);
  stamps = std::move(chosen_stamps);
}

void CacheModel::expand(std::int64_t count) {
  if (count > 1) shared_end_ = seen();
  if (rows.empty()) return;
  rows.resize(std::size_t(count), TokenRows::value_type(rows[0]));
  stamps.resize(std::size_t(count), std::int64_t(stamps[0]));
}

std::vector<CacheModel> CacheModel::split(std::int64_t part) const {
  std::vector<CacheModel> parts;
  for (std::int64_t first = 0; first < batch(); first += part) {
    std::vector<std::int64_t> indices(std::size_t(std::min(part, batch() - first)));
    std::iota(indices.begin(), indices.end(), first);
    parts.push_back(*this);
    parts.back().select(indices);
  }
  return parts;
}

// Rows that shared a prefix each have it then, and a text of which some ids are unknown has none.
// Of each layer those columns are held that every row holds; what a row that lost none does not
// have is padding.
void CacheModel::join(const std::vector<CacheModel>& parts) {
  std::int64_t longest = 0;
  bool known = true;
  for (const CacheModel& part : parts) {
    longest = std::max(longest, part.seen());
    known = known && part.ids_known();
  }
  const Token blank{.id = 0, .real = false, .blank = true};
  rows.clear();
  stamps.clear();
  for (const CacheModel& part : parts) {
    for (auto row : part.rows) {
      row.insert(row.begin(), std::size_t(longest - part.seen()), blank);
      for (Token& token : row) {
        if (!known) token.id.reset();
      }
      rows.push_back(std::move(row));
    }
    stamps.insert(stamps.end(), part.stamps.begin(), part.stamps.end());
  }
  shared_end_ = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].first = 0;
    layers_[i].recorded = parts[0].layers_[i].recorded;
    for (const CacheModel& part : parts) {
      const std::int64_t first = part.layers_[i].first;
      if (first > 0) layers_[i].first = std::max(layers_[i].first, first + longest - part.seen());
    }
  }
}

// Encoder rows are shared by as many rows as they are in every part.
void CacheModel::join_encoders(const std::vector<CacheModel>& parts) {
  if (!encoder.held()) return;
  const auto shared_by = [](const CacheModel& part) { return part.batch() / part.encoder.batch(); };
  std::int64_t common = 0;
  for (const CacheModel& part : parts) common = std::gcd(common, shared_by(part));
  encoder.rows.clear();
  for (const CacheModel& part : parts) {
    for (const auto& row : part.encoder.rows) {
      encoder.rows.insert(encoder.rows.end(), std::size_t(shared_by(part) / common), row);
    }
  }
}

bool CacheModel::ids_known() const { return all_ids_known(rows); }

std::int64_t CacheModel::real_tokens(std::int64_t row) const {
  if (rows.empty()) return 0;
  const auto& tokens = rows[std::size_t(row)];
  return std::count_if(tokens.begin(), tokens.end(), [](const Token& token) { return token.real; });
}

}  // namespace kvcache::testing
