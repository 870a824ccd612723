#pragma once
// What an engine has of chunks on its own hosts, for those that ask from outside: LMCache's
// controller and its lookup clients.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/kv_transfer/lmcache/chunk_hash.hpp"
#include "runtime/kv_transfer/lmcache/tier_index.hpp"

namespace troupe::lmcache {

/// The tiers that LMCache reports, under its names of their backends.
enum class Location : std::uint8_t { kCpu, kDisk };
inline constexpr std::array<const char*, 2> kLocationNames = {"LocalCPUBackend",
                                                              "LocalDiskBackend"};
/// nullopt: it is none of these.
[[nodiscard]] std::optional<Location> parse_location(std::string_view name);

/// Written by the Scheduler's side of the connector, which must not wait, and read by the threads
/// of sockets. What they order is carried out by the connector before it plans the next step; here
/// it has happened at once, since nothing is added or removed in between.
///
/// Chunks with tags (of a tenant, of an adapter) are not reported: who asks knows tokens only, and
/// would be promised what belongs to others.
class ChunkBoard {
 public:
  using Clock = std::chrono::steady_clock;

  /// `hasher`: of the engine's chunks; `signed_hashes`: its hashes are Python's.
  ChunkBoard(ChunkHasher hasher, bool signed_hashes)
      : hasher_(hasher), signed_hashes_(signed_hashes) {}

  // ---- the connector's --------------------------------------------------------------------------

  void admit(Location location, const ChunkId& id);
  void evict(Location location, const ChunkId& id);
  /// Evicts all, pinned ones too.
  void forget_all();

  struct Order {
    enum class Kind : std::uint8_t { kPin, kRemove, kClear };
    Kind kind = Kind::kPin;
    Location location = Location::kCpu;
    std::vector<ChunkId> chunks;  ///< but for kClear
    Clock::time_point until;      ///< kPin
  };
  /// Since the last call.
  [[nodiscard]] std::vector<Order> take_orders();

  // ---- the sockets' -----------------------------------------------------------------------------

  /// A chunk that came or went.
  struct Change {
    Location location = Location::kCpu;
    bool is_there = false;
    PythonInt key;
  };
  /// Calls this when there is something to take, on the connector's thread; must not wait.
  void set_listener(std::function<void()> listener);
  /// Since the last call.
  [[nodiscard]] std::vector<Change> take_changes();
  /// All chunks; what changed before is not to be taken any more.
  [[nodiscard]] std::vector<Change> snapshot();
  [[nodiscard]] std::vector<PythonInt> keys(Location location);

  /// How many of these tokens' chunks, from the first one on, are at the location; they stay there
  /// until then. The number of their tokens.
  std::int64_t pin(Location location, std::span<const std::int64_t> tokens,
                   Clock::time_point until);
  /// The chunks of these tokens, from the first one on, that are at the location.
  [[nodiscard]] std::vector<ChunkId> leading(Location location,
                                             std::span<const std::int64_t> tokens);
  /// Those of them that are there and not pinned.
  void remove(Location location, std::span<const ChunkId> chunks, Clock::time_point now);
  /// All that is not pinned. The number of tokens.
  std::int64_t clear(Location location, Clock::time_point now);
  /// Tokens of a chunk.
  [[nodiscard]] std::size_t chunk_size() const noexcept { return hasher_.chunk_size(); }
  /// How many of these chunks, from the first one on, are at any location.
  [[nodiscard]] std::size_t count_leading(std::span<const PythonInt> keys);

 private:
  /// Of each chunk until when it is pinned.
  using Held = std::unordered_map<ChunkId, Clock::time_point, ChunkIdHash>;

  [[nodiscard]] Held& held(Location location) { return held_[static_cast<std::size_t>(location)]; }
  [[nodiscard]] PythonInt key_of(const ChunkId& id) const noexcept;
  void note(Location location, const ChunkId& id, bool is_there);

  const ChunkHasher hasher_;
  const bool signed_hashes_;
  std::mutex mutex_;
  std::array<Held, kLocationNames.size()> held_;
  std::vector<Change> changes_;
  std::vector<Order> orders_;
  std::function<void()> listener_;  // null: changes are not kept
};

}  // namespace troupe::lmcache
