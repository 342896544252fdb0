// Cached prefixes of texts in one process, for servers: requests that begin alike compute it once.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/core/errors.h"

namespace kvcache {

struct PrefixMatch {
  std::unique_ptr<Cache> cache;  // the caller's own; it holds `tokens` tokens
  std::int64_t tokens = 0;       // the first ones of the text that was asked for
};

// Keyed by token ids, in a tree whose paths share what texts have in common. Bounded in bytes: the
// entries used least recently go. For the caches of one model and of one kind. Safe to use from
// several threads at once; what it hands out belongs to its caller.
class PrefixStore {
 public:
  // max_bytes: of all entries' Cache::allocated_bytes(), each counted as if it shared nothing.
  // Throws ValueError for less than 0.
  explicit PrefixStore(std::int64_t max_bytes) : max_bytes_(max_bytes) {
    check_value(max_bytes >= 0, "a prefix store of ", max_bytes, " bytes; it must be at least 0");
  }

  ~PrefixStore() { remove_all(); }
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  // Keeps a fork of a cache of one row. Returns whether it is there now: not where it alone is
  // larger than the store. Throws ValueError for several rows, padding, no tokens, and a cache with
  // an encoder's side, and RuntimeError for tokens that are not known.
  bool insert(Cache& cache) {
    std::vector<std::int64_t> ids = ids_of(cache);
    const std::lock_guard lock(mutex_);
    Node& node = make_node(ids);
    if (node.entry) {
      touch(node);
      return true;
    }
    std::unique_ptr<Cache> kept;
    try {
      kept = cache.fork();
      const std::int64_t bytes = kept->allocated_bytes();
      if (bytes > max_bytes_) {
        remove_unused(&node);
        return false;
      }
      used_.push_front(&node);
      node.entry.emplace(Entry{std::move(kept), bytes, used_.begin()});
    } catch (...) {
      remove_unused(&node);
      throw;
    }
    bytes_ += node.entry->bytes;
    while (bytes_ > max_bytes_) evict();
    return true;
  }

  // A fork of the entry of which most can be used for a text, without the text's last token, whose
  // scores are still to be computed; absent: nothing fits. Pass its cache and the whole text to
  // generate().
  std::optional<PrefixMatch> find(std::span<const std::int64_t> ids) {
    const std::lock_guard lock(mutex_);
    const Found found = best(ids.empty() ? ids : ids.first(ids.size() - 1));
    if (found.node == nullptr) return std::nullopt;
    PrefixMatch match{found.node->entry->cache->fork(), found.tokens};
    const std::int64_t seen = match.cache->history().seen();
    if (found.tokens < seen) match.cache->crop(found.tokens - seen);
    touch(*found.node);
    return match;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    remove_all();
    used_.clear();
    bytes_ = 0;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return used_.size();
  }
  std::int64_t nbytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Node;

  struct Entry {
    std::unique_ptr<Cache> cache;
    std::int64_t bytes = 0;
    std::list<Node*>::iterator used;
  };

  // The text of a node: its parent's and then its edge. A node without an entry has children, the
  // root aside.
  struct Node {
    Node* parent = nullptr;
    std::vector<std::int64_t> edge = {};
    std::map<std::int64_t, std::unique_ptr<Node>> children = {};  // by their edges' first token
    std::optional<Entry> entry = {};
  };

  struct Found {
    Node* node = nullptr;
    std::int64_t tokens = 0;
  };

  static std::vector<std::int64_t> ids_of(const Cache& cache) {
    const History& history = cache.history();
    check_value(cache.kind() != "encoder_decoder",
                "a prefix store takes caches of a decoder's text alone, whose keys depend on "
                "nothing but its tokens");
    check_value(cache.batch_size() == 1 && history.seen() > 0,
                "a prefix store takes a cache of one row with tokens, but this one has ",
                cache.batch_size(), " rows and ", history.seen(),
                " tokens; batch_split() makes caches of one row");
    check_state(history.known(), "the cache's tokens are not known: it was fed by update()");
    check_value(history.all_valid(), "the cache's row is padded; feed the text without padding");
    const at::Tensor ids = history.ids().select(0, 0).contiguous();
    const auto* data = ids.const_data_ptr<std::int64_t>();
    return {data, data + ids.numel()};
  }

  static std::size_t common(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                    a.begin());
  }

  // The node of a text, made if need be. What throws leaves the tree as it was.
  Node& make_node(std::span<const std::int64_t> ids) {
    Node* node = &root_;
    while (!ids.empty()) {
      const auto child = node->children.find(ids.front());
      if (child == node->children.end()) return add_child(*node, ids);
      const std::size_t shared = common(child->second->edge, ids);
      if (shared < child->second->edge.size()) split(child->second, shared);
      node = child->second.get();
      ids = ids.subspan(shared);
    }
    return *node;
  }

  static Node& add_child(Node& parent, std::span<const std::int64_t> edge) {
    auto child = std::make_unique<Node>();
    child->parent = &parent;
    child->edge.assign(edge.begin(), edge.end());
    return *(parent.children[edge.front()] = std::move(child));
  }

  // Puts a node in the middle of the edge that leads to `child`.
  static void split(std::unique_ptr<Node>& child, std::size_t at) {
    auto upper = std::make_unique<Node>();
    upper->parent = child->parent;
    const auto middle = child->edge.begin() + static_cast<std::ptrdiff_t>(at);
    upper->edge.assign(child->edge.begin(), middle);
    std::unique_ptr<Node>& lower = upper->children[*middle];
    child->edge.erase(child->edge.begin(), middle);
    child->parent = upper.get();
    lower = std::move(child);
    child = std::move(upper);
  }

  // Removes a node without an entry where the tree does not need it, and its parents likewise.
  static void remove_unused(Node* node) noexcept {
    while (node->parent != nullptr && !node->entry && node->children.empty()) {
      Node* parent = node->parent;
      parent->children.erase(node->edge.front());
      node = parent;
    }
  }

  // Leaves before what they hang on, each as it is reached: a text of which every beginning is kept
  // makes a tree as deep as it has tokens, whose nodes must not end within each other.
  void remove_all() noexcept {
    for (Node* node = &root_; node != &root_ || !node->children.empty();) {
      if (!node->children.empty()) {
        node = node->children.begin()->second.get();
        continue;
      }
      node = node->parent;
      node->children.erase(node->children.begin());  // the one that was come from
    }
  }

  // The entry that has most in common with `ids` as far as its cache can go back to it.
  Found best(std::span<const std::int64_t> ids) {
    Found found;
    Node* node = &root_;
    std::int64_t depth = 0;
    while (true) {
      if (node->entry) found = {node, depth};
      const auto child = ids.empty() ? node->children.end() : node->children.find(ids.front());
      if (child == node->children.end()) break;
      const std::size_t shared = common(child->second->edge, ids);
      node = child->second.get();
      depth += static_cast<std::int64_t>(shared);
      if (shared < node->edge.size()) break;
      ids = ids.subspan(shared);
    }
    if (depth > found.tokens) improve(*node, depth, found);
    return found;
  }

  // Looks below a node, whose texts all begin with the same `depth` tokens.
  static void improve(Node& top, std::int64_t depth, Found& found) {
    std::vector<Node*> waiting{&top};  // the next one last
    while (!waiting.empty() && found.tokens < depth) {
      Node* node = waiting.back();
      waiting.pop_back();
      if (node->entry) {
        const std::int64_t reusable = node->entry->cache->reusable_prefix(depth);
        if (reusable > found.tokens) found = {node, reusable};
      }
      for (auto child = node->children.rbegin(); child != node->children.rend(); ++child) {
        waiting.push_back(child->second.get());
      }
    }
  }

  void touch(Node& node) { used_.splice(used_.begin(), used_, node.entry->used); }

  void evict() {
    Node* node = used_.back();
    used_.pop_back();
    bytes_ -= node->entry->bytes;
    node->entry.reset();
    remove_unused(node);
  }

  mutable std::mutex mutex_;
  std::int64_t max_bytes_;
  std::int64_t bytes_ = 0;
  Node root_;
  std::list<Node*> used_;  // nodes with an entry, the one used last first
};

}  // namespace kvcache
