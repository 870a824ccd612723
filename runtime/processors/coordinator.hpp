#pragma once
// Load balancing over the groups of a data-parallel engine.

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
#include "runtime/config/group_roles.hpp"

namespace troupe {

/// An LRU map of `capacity` keys.
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

/// Owns the state of the groups: their load, the prefixes of the prompts that each has served, and
/// the location of sessions. Used by the RequestJournal, which knows which requests each group has.
///
/// A request that selects a group goes there, and a request of a session to the session's group, as
/// long as that group accepts requests. Any other goes to the group with the lowest score:
///
///   max(in flight, waiting + running) + waiting * 6 * max(0, kv cache usage - 0.5) - locality
///
/// A group that has served the request's adapter counts as having served kAdapterLocality pieces
/// more: others may have to read it from its folder.
///
/// This is vLLM's score plus locality: the number of leading pieces of the prompt that the group
/// has served, at most kMaxLocality. A cached prefix thus attracts requests to its group, but at
/// most that many ahead of the others. Ties are resolved round-robin.
///
/// Groups with the role kPrefill get only prompts of which the decode group would have to compute
/// at least min_split_tokens, and whole requests while there is no other group.
class Coordinator {
 public:
  /// A piece of a prompt: the cached prefix is estimated by text, since the prompt is not tokenized
  /// yet. About two blocks.
  static constexpr std::size_t kPieceBytes = 128;
  static constexpr std::size_t kMaxPieces = 256;           ///< considered per prompt
  static constexpr std::size_t kMaxKnownPieces = 1 << 16;  ///< per group
  static constexpr std::size_t kMaxSessions = 1 << 16;
  static constexpr std::int32_t kMaxLocality = 8;
  static constexpr std::size_t kMaxKnownAdapters = 64;  ///< per group
  static constexpr std::int32_t kAdapterLocality = 4;

  static constexpr std::size_t kBytesPerToken = 4;  ///< of token ids; of text, a guess

  explicit Coordinator(std::size_t num_groups);
  /// A prompt of at least min_split_tokens is computed by a group of the role kPrefill.
  Coordinator(std::vector<GroupRole> roles, std::int64_t min_split_tokens);

  /// A group that accepts requests.
  struct Candidate {
    std::size_t group = 0;
    std::int32_t num_in_flight = 0;  ///< samples
  };
  struct Route {
    std::size_t group = 0;
    bool prefill_only = false;  ///< of a request that may be split
    bool operator==(const Route&) const = default;
  };
  /// Selects one of the candidates, and counts the request as sent to its group. Pre: candidates is
  /// not empty.
  [[nodiscard]] Route route(const GenerateRequest& request, const Placement& placement,
                            std::span<const Candidate> candidates, bool may_split = false);

  /// The load report of the group's Scheduler after a step.
  void observe(std::size_t group, const SchedulerStats& stats);
  /// The group's engine has ended, together with its cache.
  void forget(std::size_t group);

 private:
  struct Empty {};
  struct Group {
    double waiting = 0;
    double running = 0;
    double kv_cache_usage = 0;
    RecentMap<std::uint64_t, Empty> pieces{kMaxKnownPieces};
    RecentMap<std::int32_t, Empty> adapters{kMaxKnownAdapters};
  };

  /// The parts of a request that groups may have cached.
  struct Known {
    std::vector<std::uint64_t> pieces;
    std::int32_t adapter = 0;  ///< its id; 0: none
  };
  [[nodiscard]] std::size_t choose(const Placement& placement, const Known& request,
                                   std::span<const Candidate> candidates);
  [[nodiscard]] double score(const Candidate& candidate, const Known& request) const;

  [[nodiscard]] std::size_t num_known_pieces(std::size_t group,
                                             std::span<const std::uint64_t> pieces) const;

  std::vector<GroupRole> roles_;
  std::int64_t min_split_tokens_ = 0;
  std::vector<Group> groups_;
  RecentMap<std::string, std::size_t> sessions_{kMaxSessions};
  std::size_t turn_ = 0;
};

}  // namespace troupe
