#pragma once
// The wire format of KV events: the structs of vLLM's kv_events, in msgpack.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "messages/kv_events.hpp"
#include "messages/msgpack.hpp"

namespace troupe {

/// Constant properties of a publisher's batches.
struct KVEventForm {
  /// Hashes as their last eight bytes, an unsigned integer; else all bytes.
  bool int_block_hashes = true;
  std::size_t hash_bytes = 32;  ///< BlockHasher::hash_size()
  std::optional<std::int32_t> data_parallel_rank = 0;
};

/// [time, [event, ...], data parallel rank] in msgpack.
[[nodiscard]] std::string encode_kv_event_batch(double time, std::span<const KVCacheEvent> events,
                                                const KVEventForm& form);

/// Field names and order are vLLM's.
namespace kv_wire {

using Hash = std::variant<std::uint64_t, msgspec::Bytes>;
/// Untagged: LoRA name or salt, (identifier, offset), digest.
using Key = std::variant<std::string, std::pair<std::string, std::int32_t>, msgspec::Bytes>;

struct BlockStored {
  static constexpr const char* kTag = "BlockStored";
  std::vector<Hash> block_hashes;
  std::optional<Hash> parent_block_hash;
  std::vector<TokenId> token_ids;
  std::int32_t block_size = 0;
  std::optional<std::int64_t> lora_id;
  std::optional<std::string> medium;
  std::optional<std::string> lora_name;
  msgspec::Omittable<std::vector<std::optional<std::vector<Key>>>> extra_keys;
  msgspec::Omittable<std::int32_t> group_idx;
  msgspec::Omittable<std::string> kv_cache_spec_kind;
  msgspec::Omittable<std::int32_t> kv_cache_spec_sliding_window;
  msgspec::Omittable<std::string> locality;
  msgspec::Omittable<std::string> ownership;
  msgspec::Omittable<std::string> session_id;
};
TROUPE_MESSAGE(BlockStored, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium,
               lora_name, extra_keys, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window,
               locality, ownership, session_id)

struct BlockRemoved {
  static constexpr const char* kTag = "BlockRemoved";
  std::vector<Hash> block_hashes;
  std::optional<std::string> medium;
  msgspec::Omittable<std::int32_t> group_idx;
  msgspec::Omittable<std::string> locality;
  msgspec::Omittable<std::string> ownership;
};
TROUPE_MESSAGE(BlockRemoved, block_hashes, medium, group_idx, locality, ownership)

struct AllBlocksCleared {
  static constexpr const char* kTag = "AllBlocksCleared";
};
TROUPE_MESSAGE(AllBlocksCleared)

using Event = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

struct EventBatch {
  double ts = 0;
  std::vector<Event> events;
  std::optional<std::int32_t> data_parallel_rank;
};
TROUPE_MESSAGE(EventBatch, ts, events, data_parallel_rank)

}  // namespace kv_wire
}  // namespace troupe
