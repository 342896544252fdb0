// How much of each stream's work is known to have happened before.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache::testing::sim {

class VectorClock {
 public:
  std::uint64_t at(std::size_t stream) const { return stream < times_.size() ? times_[stream] : 0; }
  bool covers(std::size_t stream, std::uint64_t time) const { return at(stream) >= time; }

  void tick(std::size_t stream) {
    if (stream >= times_.size()) times_.resize(stream + 1);
    ++times_[stream];
  }

  void merge(const VectorClock& other) {
    times_.resize(std::max(times_.size(), other.times_.size()));
    for (std::size_t i = 0; i < other.times_.size(); ++i) {
      times_[i] = std::max(times_[i], other.times_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> times_;
};

}  // namespace kvcache::testing::sim
