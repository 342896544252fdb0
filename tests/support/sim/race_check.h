// Who touched which bytes last, and whether the next one is ordered after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/sim/vector_clock.h"

namespace kvcache::testing::sim {

// Bytes [first, end) of device memory, by the addresses that tensors carry, or of pinned memory.
struct Access {
  std::uintptr_t first = 0;
  std::uintptr_t end = 0;
  bool write = false;
};

// The task that accesses. `name` and `place` outlive the check.
struct Actor {
  std::size_t stream = 0;  // number of its stream
  std::uint64_t time = 0;  // of that stream
  const std::string* name = nullptr;
  const std::string* place = nullptr;  // "stream 0 of sim:0"
};

class RaceCheck {
 public:
  // `known`: what happened before the access. Reports what it conflicts with, then notes it.
  void access(const Access& access, const Actor& actor, const VectorClock& known);

  // As access(), by the host, which does nothing later that is not ordered after it.
  void host_access(const Access& access, const VectorClock& known);

  // The bytes are nobody's any more.
  void forget(std::uintptr_t first, std::uintptr_t end);

  std::vector<std::string> take();

 private:
  struct Piece {
    std::uintptr_t end = 0;
    std::optional<Actor> writer = {};
    std::vector<Actor> readers = {};  // since the write, one a stream
  };
  using Pieces = std::map<std::uintptr_t, Piece>;

  void split(std::uintptr_t at);
  void check(const Piece& piece, const Access& access, const Actor* actor,
             const VectorClock& known);
  void report(const char* verb, const Actor* actor, const char* earlier_verb, const Actor& earlier);
  void note_read(const Access& access, const Actor& actor);

  Pieces pieces_;  // by first byte; disjoint
  std::vector<std::string> reports_;
};

}  // namespace kvcache::testing::sim
