#pragma once
// Which group of a data-parallel engine takes a request.

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/control.hpp"
#include "messages/engine_output.hpp"
#include "messages/request.hpp"

namespace troupe {

/// The `capacity` keys that were used last, with a value each.
template <class Key, class Value>
class RecentMap {
 public:
  explicit RecentMap(std::size_t capacity) : capacity_(capacity) {}

  [[nodiscard]] const Value* find(const Key& key) const {
    const auto found = places_.find(key);
    return found == places_.end() ? nullptr : &found->second->second;
  }
  void put(const Key& key, Value value) {
    const auto [place, is_new] = places_.try_emplace(key);
    if (!is_new) entries_.erase(place->second);
    entries_.emplace_front(key, std::move(value));
    place->second = entries_.begin();
    if (entries_.size() <= capacity_) return;
    places_.erase(entries_.back().first);
    entries_.pop_back();
  }

 private:
  using Entries = std::list<std::pair<Key, Value>>;
  std::size_t capacity_;
  Entries entries_;  // latest first
  std::unordered_map<Key, typename Entries::iterator> places_;
};

/// Owns what is known of the groups: their load, the beginnings of the prompts that each has
/// served, and where sessions are. Called by the RequestJournal, which knows what is in them.
///
/// A request that names its group goes there, one of a session where the session is, as long as
/// that group takes requests. Any other goes to the group with the least
///
///   max(in flight, waiting + running) + waiting * 6 * max(0, kv cache usage - 0.5) - locality
///
/// which is vLLM's score but for the last: the number of leading pieces of the prompt that the
/// group has served, at most kMaxLocality. So a cached prefix draws requests to its group, and
/// never more than that many of them ahead of the others. Groups that are equal take turns.
class Coordinator {
 public:
  /// A piece of a prompt: what the prefix cache is likely to have is told by text, as the prompt
  /// is not tokenised yet. About two blocks.
  static constexpr std::size_t kPieceBytes = 128;
  static constexpr std::size_t kMaxPieces = 256;           ///< of a prompt that are looked at
  static constexpr std::size_t kMaxKnownPieces = 1 << 16;  ///< of each group
  static constexpr std::size_t kMaxSessions = 1 << 16;
  static constexpr std::int32_t kMaxLocality = 8;

  explicit Coordinator(std::size_t num_groups);

  /// A group that takes requests.
  struct Candidate {
    std::size_t group = 0;
    std::int32_t num_in_flight = 0;  ///< samples
  };
  /// Returns the candidate's group, and takes the request as given to it. Pre: there is one.
  [[nodiscard]] std::size_t route(const GenerateRequest& request, const Placement& placement,
                                  std::span<const Candidate> candidates);

  /// What the group's Scheduler says of itself after a step.
  void observe(std::size_t group, const SchedulerStats& stats);
  /// Its engine is gone, and so is its cache.
  void forget(std::size_t group);

 private:
  struct Empty {};
  struct Group {
    double waiting = 0;
    double running = 0;
    double kv_cache_usage = 0;
    RecentMap<std::uint64_t, Empty> pieces{kMaxKnownPieces};
  };

  [[nodiscard]] std::size_t choose(const Placement& placement,
                                   std::span<const std::uint64_t> pieces,
                                   std::span<const Candidate> candidates);
  [[nodiscard]] double score(const Candidate& candidate,
                             std::span<const std::uint64_t> pieces) const;

  std::vector<Group> groups_;
  RecentMap<std::string, std::size_t> sessions_{kMaxSessions};
  std::size_t turn_ = 0;
};

}  // namespace troupe
