#pragma once
// What consumers outside (routers, indexers) hear of the prefix cache.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "messages/cache.hpp"
#include "runtime/cache/block_hash.hpp"

namespace troupe {

/// A key that entered a block's hash beside parent and tokens: LoRA name or salt, or an item's
/// identifier and its offset from the block's first token.
using ExtraKey = std::variant<std::string, std::pair<std::string, std::int32_t>>;

/// `hashes` may be fewer than `token_ids` covers: blocks that are not kept are left out.
struct BlocksStored {
  std::vector<BlockHash> hashes;
  std::optional<BlockHash> parent;  ///< of the block before the first token; it may be unknown
  std::vector<TokenId> token_ids;
  std::int32_t block_size = 0;
  std::optional<LoraRequest> lora;
  std::vector<std::vector<ExtraKey>> extra_keys;  ///< parallel to hashes
  std::int32_t group = 0;
  KVCacheKind kind{};
  std::int32_t sliding_window = 0;  ///< tokens, 0: none
  std::string session_id;
};
struct BlockRemoved {
  BlockHash hash;
  std::int32_t group = 0;
};
struct AllBlocksCleared {};

/// The extra keys of tokens [begin, end), as events show them: LoRA name, items, salt.
[[nodiscard]] std::vector<ExtraKey> extra_keys(const KVCacheRequest& request, std::int32_t begin,
                                               std::int32_t end);

using KVCacheEvent = std::variant<BlocksStored, BlockRemoved, AllBlocksCleared>;

}  // namespace troupe
