#include "runtime/kv_events/stored_blocks.hpp"

#include <algorithm>
#include <unordered_set>

#include "runtime/base/check.hpp"

namespace troupe {

void StoredBlocks::apply(const KVCacheEvent& event) {
  if (std::holds_alternative<AllBlocksCleared>(event)) {
    blocks_.clear();
  } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
    if (!removed->medium.empty()) return;
    const auto found = blocks_.find({removed->hash, removed->group});
    if (found != blocks_.end() && --found->second.num_holders == 0) blocks_.erase(found);
  } else {
    add(std::get<BlocksStored>(event));
  }
}

void StoredBlocks::add(const BlocksStored& event) {
  if (event.again || event.hashes.empty() || !event.medium.empty()) return;
  CHECK(event.block_indices.size() == event.hashes.size() &&
            event.predecessors.size() == event.hashes.size() &&
            event.extra_keys.size() == event.hashes.size(),
        event.hashes.size());
  BlocksStored common;
  common.block_size = event.block_size;
  common.lora = event.lora;
  common.group = event.group;
  common.kind = event.kind;
  common.sliding_window = event.sliding_window;
  common.session_id = event.session_id;
  const auto shared = std::make_shared<const BlocksStored>(std::move(common));
  for (std::size_t i = 0; i < event.hashes.size(); ++i) {
    Block& block = blocks_[{event.hashes[i], event.group}];
    if (block.num_holders++ > 0) continue;
    block.order = next_order_++;
    block.predecessor = event.predecessors[i];
    const auto first = event.token_ids.begin() +
                       std::ptrdiff_t{event.block_indices[i]} * std::ptrdiff_t{event.block_size};
    block.token_ids.assign(first, first + event.block_size);
    block.extra_keys = event.extra_keys[i];
    block.common = shared;
  }
}

std::vector<KVCacheEvent> StoredBlocks::events(std::size_t max_blocks) const {
  std::vector<const Blocks::value_type*> in_order;
  in_order.reserve(blocks_.size());
  for (const auto& entry : blocks_) in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(),
            [](const auto* a, const auto* b) { return a->second.order < b->second.order; });

  std::vector<KVCacheEvent> events;
  events.emplace_back(AllBlocksCleared{});
  std::unordered_set<const Blocks::value_type*> done;
  const Blocks::value_type* last = nullptr;
  const auto emit = [&](const Blocks::value_type* entry) {
    const auto& [key, block] = *entry;
    const auto continues = [&, &key = key, &block = block] {
      const auto& row = std::get<BlocksStored>(events.back());
      return row.hashes.size() < max_blocks && last->first.group == key.group &&
             block.predecessor == last->first.hash && row.block_size == block.common->block_size &&
             row.lora == block.common->lora && row.session_id == block.common->session_id;
    };
    if (last == nullptr || !continues()) {
      BlocksStored row = *block.common;
      row.parent = block.predecessor;
      events.emplace_back(std::move(row));
    }
    auto& row = std::get<BlocksStored>(events.back());
    row.block_indices.push_back(static_cast<std::int32_t>(row.hashes.size()));
    row.hashes.push_back(key.hash);
    row.predecessors.push_back(block.predecessor);
    row.extra_keys.push_back(block.extra_keys);
    row.token_ids.insert(row.token_ids.end(), block.token_ids.begin(), block.token_ids.end());
    last = entry;
  };

  std::vector<const Blocks::value_type*> chain;
  for (const auto* entry : in_order) {
    // Up to the first ancestor that was already emitted, or is not stored; then down again.
    while (done.insert(entry).second) {
      chain.push_back(entry);
      if (!entry->second.predecessor) break;
      const auto before = blocks_.find({*entry->second.predecessor, entry->first.group});
      if (before == blocks_.end()) break;
      entry = &*before;
    }
    for (; !chain.empty(); chain.pop_back()) emit(chain.back());
  }
  return events;
}

}  // namespace troupe
