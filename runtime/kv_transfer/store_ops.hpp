#pragma once
// The metadata of a step from a connector of a block store to its workers.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/ids.hpp"
#include "messages/reflect.hpp"
#include "runtime/kv_transfer/store_key.hpp"

namespace troupe {

/// The blocks that a waiting request needs. Loads are numbered in ascending order; one may be sent
/// again after a failed step. Without blocks: it is reported when all operations before it are
/// done, as failed if an export or an import among them has failed.
struct BlockLoad {
  std::uint64_t number = 0;
  RequestId id{};
  bool is_layered = false;  ///< the step reads them: each layer waits for its part
  std::vector<KeyedBlock> blocks;
  bool operator==(const BlockLoad&) const = default;
};
TROUPE_MESSAGE(BlockLoad, number, id, is_layered, blocks)

enum class StoreOpKind : std::uint8_t {
  kSave,    ///< the block is computed by the end of the step
  kRemove,  ///< no block of the pool
  kCopy,    ///< the same, from a later tier to this one
  kClear,   ///< everything, in all tiers
  kExport,  ///< a copy to the folder, from whichever tier has it
  kImport,  ///< a copy of the folder's
};
struct StoreOp {
  StoreOpKind kind = StoreOpKind::kSave;
  KeyedBlock block;
  std::uint8_t tier = 0;  ///< index of the store
  bool operator==(const StoreOp&) const = default;
};
TROUPE_MESSAGE(StoreOp, kind, block, tier)

/// In this order: the loads, the step, the operations.
struct StoreOps {
  std::uint64_t oldest_load = 0;  ///< those of lower numbers have been reported by every rank
  std::vector<BlockLoad> loads;
  std::vector<StoreOp> ops;
  std::string folder;  ///< of exports and imports; empty: there are none
  [[nodiscard]] bool empty() const noexcept { return loads.empty() && ops.empty(); }
  bool operator==(const StoreOps&) const = default;
};
TROUPE_MESSAGE(StoreOps, oldest_load, loads, ops, folder)

/// That workers report a load as which belongs to no request: no request has it.
[[nodiscard]] RequestId next_load_id();

[[nodiscard]] std::string pack_store_ops(const StoreOps& ops);
/// nullopt: it is no such text.
[[nodiscard]] std::optional<StoreOps> unpack_store_ops(std::string_view text);

}  // namespace troupe
