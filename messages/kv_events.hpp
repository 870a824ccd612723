#pragma once
// Changes of the prefix cache, for external subscribers (routers, indexers): the KVCacheManager
// records them, the publisher sends them.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "messages/cache.hpp"

namespace troupe {

/// The hash of a block's content. 32 bytes for the SHA-256 algorithms; 16 bytes, then zeros, for
/// the XXH3 ones.
struct BlockHash {
  std::array<std::uint8_t, 32> bytes{};
  bool operator==(const BlockHash&) const = default;
};
TROUPE_MESSAGE(BlockHash, bytes)

/// A key that is part of a block's hash besides parent and tokens: LoRA name or salt, an item's
/// identifier and its offset from the block's first token, or the digest of prompt embeddings.
using ExtraKey = std::variant<std::string, std::pair<std::string, std::int32_t>, BlockHash>;

/// Blocks of one request and one KV group that were added to the cache. `token_ids` covers
/// consecutive blocks, of which those that are not cached have no hash.
struct BlocksStored {
  std::vector<BlockHash> hashes;
  std::optional<BlockHash> parent;  ///< of the block before the first token; it may be unknown
  std::vector<TokenId> token_ids;
  std::int32_t block_size = 0;
  std::optional<LoraRequest> lora;
  std::vector<std::vector<ExtraKey>> extra_keys;  ///< parallel to hashes
  std::int32_t group = 0;
  std::string kind;                 ///< KVCacheSpec::kind_name of the group
  std::int32_t sliding_window = 0;  ///< tokens, 0: none
  std::string session_id;
  /// Parallel to hashes: the index of each within `token_ids`, and the block before it in the
  /// request.
  std::vector<std::int32_t> block_indices;
  std::vector<std::optional<BlockHash>> predecessors;
  bool again = false;  ///< reports a hit: no block was added
  std::string medium;  ///< where a KV connector has stored them; empty: in the cache itself
  bool operator==(const BlocksStored&) const = default;
};
TROUPE_MESSAGE(BlocksStored, hashes, parent, token_ids, block_size, lora, extra_keys, group, kind,
               sliding_window, session_id, block_indices, predecessors, again, medium)

/// One block that held this content no longer holds it; another one still may.
struct BlockRemoved {
  BlockHash hash;
  std::int32_t group = 0;
  std::string medium;  ///< as in BlocksStored
  bool operator==(const BlockRemoved&) const = default;
};
TROUPE_MESSAGE(BlockRemoved, hash, group, medium)

struct AllBlocksCleared {
  bool operator==(const AllBlocksCleared&) const = default;
};
TROUPE_MESSAGE(AllBlocksCleared)

using KVCacheEvent = std::variant<BlocksStored, BlockRemoved, AllBlocksCleared>;

/// KVCacheManager -> publisher: the events of a step, in order. Scheduler -> KVCacheManager: those
/// of its KV connector, for the publisher.
struct KVEventBatch {
  double time = 0;  ///< wall clock, seconds since 1970
  std::vector<KVCacheEvent> events;
  bool operator==(const KVEventBatch&) const = default;
};
TROUPE_MESSAGE(KVEventBatch, time, events)

}  // namespace troupe
