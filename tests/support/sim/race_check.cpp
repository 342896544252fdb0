#include "tests/support/sim/race_check.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvcache::testing::sim {
namespace {

constexpr std::size_t kMostReports = 1000;

}  // namespace

void RaceCheck::access(const Access& access, const Actor& actor, const VectorClock& known) {
  if (access.first == access.end) return;
  split(access.first);
  split(access.end);
  auto piece = pieces_.lower_bound(access.first);
  while (piece != pieces_.end() && piece->first < access.end) {
    check(piece->second, access, &actor, known);
    piece = access.write ? pieces_.erase(piece) : std::next(piece);
  }
  if (access.write) {
    pieces_[access.first] = {access.end, actor};
  } else {
    note_read(access, actor);
  }
}

void RaceCheck::host_access(const Access& access, const VectorClock& known) {
  split(access.first);
  split(access.end);
  for (auto piece = pieces_.lower_bound(access.first);
       piece != pieces_.end() && piece->first < access.end; ++piece) {
    check(piece->second, access, nullptr, known);
  }
}

void RaceCheck::forget(std::uintptr_t first, std::uintptr_t end) {
  split(first);
  split(end);
  pieces_.erase(pieces_.lower_bound(first), pieces_.lower_bound(end));
}

std::vector<std::string> RaceCheck::take() { return std::exchange(reports_, {}); }

// Makes `at` the border of two pieces, if it lies within one.
void RaceCheck::split(std::uintptr_t at) {
  auto after = pieces_.upper_bound(at);
  if (after == pieces_.begin()) return;
  auto& [first, piece] = *std::prev(after);
  if (first == at || piece.end <= at) return;
  pieces_.emplace_hint(after, at, piece);
  piece.end = at;
}

void RaceCheck::check(const Piece& piece, const Access& access, const Actor* actor,
                      const VectorClock& known) {
  const char* verb = access.write ? "write" : "read";
  const auto unordered = [&](const Actor& earlier) {
    return !known.covers(earlier.stream, earlier.time);
  };
  if (piece.writer && unordered(*piece.writer)) report(verb, actor, "write", *piece.writer);
  if (!access.write) return;
  for (const Actor& reader : piece.readers) {
    if (unordered(reader)) report(verb, actor, "read", reader);
  }
}

void RaceCheck::report(const char* verb, const Actor* actor, const char* earlier_verb,
                       const Actor& earlier) {
  const auto by = [](const Actor& who) { return *who.name + " on " + *who.place; };
  std::string text = std::string(verb) + " by " + (actor == nullptr ? "the host" : by(*actor)) +
                     " is not ordered after " + earlier_verb + " by " + by(earlier);
  if (!reports_.empty() && reports_.back() == text) return;  // the next piece of the same bytes
  if (reports_.size() < kMostReports) reports_.push_back(std::move(text));
}

void RaceCheck::note_read(const Access& access, const Actor& actor) {
  std::uintptr_t next = access.first;  // no piece up to here
  for (auto piece = pieces_.lower_bound(next); next < access.end;) {
    if (piece == pieces_.end() || piece->first > next) {
      const std::uintptr_t end =
          piece == pieces_.end() ? access.end : std::min(piece->first, access.end);
      piece = pieces_.emplace_hint(piece, next, Piece{end});
    }
    auto& readers = piece->second.readers;
    const auto same = std::find_if(readers.begin(), readers.end(),
                                   [&](const Actor& r) { return r.stream == actor.stream; });
    if (same == readers.end()) {
      readers.push_back(actor);
    } else {
      *same = actor;
    }
    next = piece->second.end;
    ++piece;
  }
}

}  // namespace kvcache::testing::sim
