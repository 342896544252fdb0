// What a subject is fed: random steps, and how the cache is told of them.

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tests/contract/subject.h"

namespace kvcache::testing {
namespace {

template <typename Number, typename Value>
at::Tensor table(const TokenRows& rows, at::ScalarType dtype, const Value& value) {
  at::Tensor result = at::empty({std::int64_t(rows.size()), std::int64_t(rows[0].size())}, dtype);
  auto* out = result.data_ptr<Number>();
  for (const auto& row : rows) {
    for (const Token& token : row) *out++ = value(token);
  }
  return result;
}

bool is_real(const Token& token) { return token.real; }

std::int64_t id_of(const Token& token) { return *token.id; }

void without_ids(TokenRows& rows) {
  for (auto& row : rows) {
    for (Token& token : row) token.id = {};
  }
}

}  // namespace

StepPlan Subject::plan(std::int64_t tokens) {
  const std::int64_t batch = model.rows.empty() ? setting.batch : model.batch();
  StepPlan plan{.added = new_tokens(batch, tokens)};
  if (setting.kind.encoder && !model.encoder.held()) plan.encoder = random_encoder_input(batch);
  return plan;
}

TokenRows Subject::new_tokens(std::int64_t batch, std::int64_t tokens) {
  TokenRows rows(static_cast<std::size_t>(batch));
  for (auto& row : rows) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      row.push_back({.content = next_content_ % 1000 * 7, .id = random.below(50)});
      ++next_content_;
    }
  }
  return rows;
}

TokenRows Subject::random_encoder_input(std::int64_t batch) {
  std::int64_t share = 1 + random.below(batch);
  while (batch % share != 0) --share;
  TokenRows rows = new_tokens(batch / share, 1 + random.below(9));
  if (random.one_in(6)) without_ids(rows);
  if (!random.one_in(3)) return rows;
  for (auto& row : rows) {
    for (Token& token : row) token.real = !random.one_in(3);
    row[std::size_t(random.below(std::int64_t(row.size())))].real = true;
  }
  return rows;
}

// Nothing, or what is held once more; before the first token also something else.
std::optional<TokenRows> Subject::next_encoder_input(std::int64_t batch) {
  const std::int64_t choice = random.below(4);
  if (choice < 2) return {};
  if (choice == 2 && model.seen() == 0) return random_encoder_input(batch);
  if (!model.encoder.ids_known() && model.seen() > 0) return {};
  TokenRows again = model.encoder.rows;
  for (auto& row : again) {
    for (Token& token : row) {
      if (!token.real && token.id) token.id = *token.id + 1;  // what padding says is nothing
    }
  }
  if (random.one_in(2)) return again;
  TokenRows spread;
  for (std::int64_t row = 0; row < batch; ++row) {
    spread.push_back(again[std::size_t(row * std::int64_t(again.size()) / batch)]);
  }
  return spread;
}

StepPlan Subject::random_plan() {
  const std::int64_t choice = random.below(12);
  StepPlan result = plan(choice < 7    ? 1 + random.below(3)
                         : choice < 11 ? 1 + random.below(12)
                                       : 40);
  if (random.one_in(2)) {
    for (std::int64_t row = 0; row < result.batch(); ++row) {
      result.stamps.push_back(random.below(9));
    }
  }
  result.with_ids = !random.one_in(6);
  if (!result.with_ids) without_ids(result.added);
  if (model.encoder.held()) result.encoder = next_encoder_input(result.batch());
  const std::int64_t mask = random.below(6);
  if (mask > 1) return result;
  const auto pad = [&](TokenRows& rows) {
    for (auto& row : rows) {
      for (Token& token : row) token.real = !random.one_in(3);
    }
  };
  pad(result.added);
  result.mask = StepPlan::Mask::own;
  if (mask == 0 && model.seen() > 0) {
    result.mask = StepPlan::Mask::whole;
    result.past = model.rows;
    pad(result.past);
  }
  return result;
}

StepInput Subject::input(const StepPlan& plan) const {
  StepInput input{.tokens = plan.tokens(), .batch = plan.batch()};
  if (plan.with_ids) input.ids = table<std::int64_t>(plan.added, at::kLong, id_of);
  if (plan.mask == StepPlan::Mask::own) input.valid = table<bool>(plan.added, at::kBool, is_real);
  if (plan.mask == StepPlan::Mask::whole) {
    input.valid = table<std::int64_t>(joined(plan.past, plan.added), at::kLong, is_real);
  }
  if (plan.encoder) input.cross = cross_input(*plan.encoder);
  return input;
}

CrossInput cross_input(const TokenRows& rows) {
  CrossInput input{.tokens = std::int64_t(rows[0].size()), .batch = std::int64_t(rows.size())};
  if (rows[0][0].id) input.ids = table<std::int64_t>(rows, at::kLong, id_of);
  const at::Tensor valid = table<std::int64_t>(rows, at::kLong, is_real);
  if (!valid.all().item<bool>()) input.valid = valid;
  return input;
}

KeyValue Subject::states(const StepPlan& plan, std::int64_t layer) const {
  return states_of(plan.added, {0, plan.tokens()}, layer, setting);
}

}  // namespace kvcache::testing
