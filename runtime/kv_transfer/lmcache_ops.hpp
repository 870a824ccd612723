#pragma once
// The metadata of LMCacheConnectorV1 for the workers' side in each step.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/cache.hpp"
#include "messages/ids.hpp"
#include "messages/kv_events.hpp"
#include "messages/reflect.hpp"

namespace troupe {

/// Where chunks are kept; as bits.
enum ChunkTier : std::uint8_t { kCpuTier = 1, kDiskTier = 2, kRemoteTier = 4 };

/// A chunk, and the blocks that hold it or are to.
struct ChunkBlocks {
  std::uint64_t hash = 0;
  std::string tags;             ///< of its key
  BlockHash digest;             ///< of the prefix that it completes, as the KVCacheManager's
  std::uint8_t tiers = 0;       ///< to write it to, or to remove it from; of a load: to add it to
  std::vector<BlockId> blocks;  ///< group by group; kNullBlock: not needed
  bool operator==(const ChunkBlocks&) const = default;
};
TROUPE_MESSAGE(ChunkBlocks, hash, tags, digest, tiers, blocks)

/// The chunks of one request, all or none. Loads are numbered, as they are sent again when a step
/// has failed.
struct ChunkLoad {
  std::uint64_t number = 0;
  RequestId id{};
  bool is_layered = false;  ///< the step reads them: each layer waits for its part
  std::vector<ChunkBlocks> chunks;
  bool operator==(const ChunkLoad&) const = default;
};
TROUPE_MESSAGE(ChunkLoad, number, id, is_layered, chunks)

/// To be done in order, after the forward pass.
struct ChunkOp {
  enum class Kind : std::uint8_t { kSave, kRemove, kClear };
  Kind kind = Kind::kSave;
  ChunkBlocks chunk;
  bool operator==(const ChunkOp&) const = default;
};
TROUPE_MESSAGE(ChunkOp, kind, chunk)

struct LMCacheOps {
  std::uint64_t oldest_load = 0;  ///< numbers below it do not come again
  std::vector<ChunkLoad> loads;
  std::vector<ChunkOp> ops;
  [[nodiscard]] bool empty() const noexcept { return loads.empty() && ops.empty(); }
  bool operator==(const LMCacheOps&) const = default;
};
TROUPE_MESSAGE(LMCacheOps, oldest_load, loads, ops)

[[nodiscard]] std::string pack_lmcache_ops(const LMCacheOps& ops);
[[nodiscard]] std::optional<LMCacheOps> unpack_lmcache_ops(std::string_view text);

}  // namespace troupe
