#pragma once
// What a tier of LMCache's store holds, and what goes first.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::lmcache {

/// A chunk of an engine's KV cache: its hash, and the tags of its key.
struct ChunkId {
  std::uint64_t hash = 0;  ///< the bits of a negative one
  std::string tags;        ///< as in the key: "@tenant%a@user%b"
  bool operator==(const ChunkId&) const = default;
};
struct ChunkIdHash {
  std::size_t operator()(const ChunkId& id) const noexcept {
    return static_cast<std::size_t>(id.hash) ^ std::hash<std::string>()(id.tags);
  }
};

enum class CachePolicy : std::uint8_t {
  kLru,   ///< what was not used for the longest time
  kLfu,   ///< what was used least often; of these what came there first
  kFifo,  ///< what was added first
  kMru,   ///< what was used last
};
/// "LRU" and so on. Errors: kInvalidArgument naming the value.
[[nodiscard]] Result<CachePolicy> parse_cache_policy(std::string_view name);

/// At most max_bytes of chunks.
class TierIndex {
 public:
  /// max_bytes 0: no limit.
  TierIndex(std::int64_t max_bytes, CachePolicy policy) : max_bytes_(max_bytes), policy_(policy) {}

  [[nodiscard]] bool has(const ChunkId& id) const { return chunks_.contains(id); }
  /// It is used. False: it is not there.
  bool touch(const ChunkId& id);
  /// Adds one that is not there. `removed` gets those that had to go. False: it is larger than the
  /// limit, or than what pinned ones leave of it; nothing was changed.
  bool add(const ChunkId& id, std::int64_t num_bytes, std::vector<ChunkId>& removed);
  bool remove(const ChunkId& id);
  void clear();
  /// It stays until it is unpinned as often, or removed. False: it is not there.
  bool pin(const ChunkId& id);
  void unpin(const ChunkId& id);
  /// Removes all that are not pinned.
  [[nodiscard]] std::vector<ChunkId> clear_unpinned();

  [[nodiscard]] std::size_t size() const noexcept { return chunks_.size(); }
  [[nodiscard]] std::int64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  /// The smallest one goes first.
  using Rank = std::pair<std::uint64_t, std::uint64_t>;
  struct Held {
    std::int64_t num_bytes = 0;
    std::uint64_t num_uses = 0;
    Rank rank;
    std::int32_t num_pins = 0;
  };
  [[nodiscard]] Rank next_rank(const Held& chunk);

  std::int64_t max_bytes_;
  CachePolicy policy_;
  std::int64_t num_bytes_ = 0;
  std::int64_t num_pinned_bytes_ = 0;
  std::uint64_t last_use_ = 0;
  std::unordered_map<ChunkId, Held, ChunkIdHash> chunks_;
  std::map<Rank, ChunkId> by_rank_;  // without those that are pinned
};

}  // namespace troupe::lmcache
