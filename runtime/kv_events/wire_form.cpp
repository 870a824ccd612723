#include "runtime/kv_events/wire_form.hpp"

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

constexpr const char* kMedium = "GPU";  // the device's cache, for any device

msgspec::Bytes bytes_of(const BlockHash& hash, std::size_t count) {
  return {std::string(hash.bytes.begin(), hash.bytes.begin() + static_cast<std::ptrdiff_t>(count))};
}

kv_wire::Hash hash_form(const BlockHash& hash, const KVEventForm& form) {
  if (!form.int_block_hashes) return bytes_of(hash, form.hash_bytes);
  std::uint64_t bits = 0;
  for (std::size_t i = form.hash_bytes - 8; i < form.hash_bytes; ++i)
    bits = bits << 8 | hash.bytes[i];
  return bits;
}

std::optional<std::vector<kv_wire::Key>> keys_form(const std::vector<ExtraKey>& keys) {
  if (keys.empty()) return std::nullopt;
  std::vector<kv_wire::Key> result;
  for (const ExtraKey& key : keys) {
    if (const auto* digest = std::get_if<BlockHash>(&key))
      result.emplace_back(bytes_of(*digest, digest->bytes.size()));
    else if (const auto* text = std::get_if<std::string>(&key))
      result.emplace_back(*text);
    else
      result.emplace_back(std::get<std::pair<std::string, std::int32_t>>(key));
  }
  return result;
}

kv_wire::Event wire_event(const BlocksStored& event, const KVEventForm& form) {
  kv_wire::BlockStored stored;
  for (const BlockHash& hash : event.hashes) stored.block_hashes.push_back(hash_form(hash, form));
  if (event.parent) stored.parent_block_hash = hash_form(*event.parent, form);
  stored.token_ids = event.token_ids;
  stored.block_size = event.block_size;
  stored.medium = event.medium.empty() ? kMedium : event.medium;
  if (event.lora) {
    stored.lora_id = event.lora->int_id;
    stored.lora_name = event.lora->name;
  }
  if (!event.extra_keys.empty()) {
    stored.extra_keys.emplace();
    for (const std::vector<ExtraKey>& keys : event.extra_keys)
      stored.extra_keys->push_back(keys_form(keys));
  }
  stored.group_idx = event.group;
  stored.kv_cache_spec_kind = event.kind;
  if (event.sliding_window > 0) stored.kv_cache_spec_sliding_window = event.sliding_window;
  if (!event.session_id.empty()) stored.session_id = event.session_id;
  return stored;
}

kv_wire::Event wire_event(const BlockRemoved& event, const KVEventForm& form) {
  kv_wire::BlockRemoved removed;
  removed.block_hashes = {hash_form(event.hash, form)};
  removed.medium = event.medium.empty() ? kMedium : event.medium;
  removed.group_idx = event.group;
  return removed;
}

kv_wire::Event wire_event(const AllBlocksCleared&, const KVEventForm&) {
  return kv_wire::AllBlocksCleared{};
}

}  // namespace

std::string encode_kv_event_batch(double time, std::span<const KVCacheEvent> events,
                                  const KVEventForm& form) {
  CHECK(form.hash_bytes >= 8 && form.hash_bytes <= sizeof(BlockHash), form.hash_bytes);
  kv_wire::EventBatch batch{.ts = time, .data_parallel_rank = form.data_parallel_rank};
  for (const KVCacheEvent& event : events) {
    batch.events.push_back(
        std::visit([&](const auto& kind) { return wire_event(kind, form); }, event));
  }
  return msgspec::encode(batch);
}

}  // namespace troupe
