#include "runtime/cache/block_pool.hpp"

#include "runtime/base/check.hpp"

namespace troupe {

BlockPool::BlockPool(std::int32_t num_blocks, bool record_events, BlockMetrics* metrics)
    : num_blocks_(num_blocks),
      record_events_(record_events),
      blocks_(static_cast<std::size_t>(num_blocks) + 1),
      map_(num_blocks),
      metrics_(metrics) {
  CHECK(num_blocks >= 1, num_blocks);
  const BlockId end = num_blocks_;
  at(end).previous = at(end).next = end;
  for (BlockId block = 1; block < num_blocks; ++block) insert_before(end, block);
}

double BlockPool::usage() const noexcept {
  const std::int32_t usable = num_blocks_ - 1;
  return usable == 0 ? 0.0 : 1.0 - static_cast<double>(num_free_) / usable;
}

void BlockPool::insert_before(BlockId position, BlockId block) {
  Block& inserted = at(block);
  inserted.next = position;
  inserted.previous = at(position).previous;
  at(inserted.previous).next = block;
  at(position).previous = block;
  ++num_free_;
}

void BlockPool::remove_from_queue(BlockId block) {
  const Block& removed = at(block);
  at(removed.previous).next = removed.next;
  at(removed.next).previous = removed.previous;
  --num_free_;
}

void BlockPool::take(std::int32_t n, std::vector<BlockId>& blocks) {
  CHECK(n <= num_free_, n, num_free_);
  // In three passes, so that the cache misses of several blocks overlap.
  const std::size_t first = blocks.size();
  for (std::int32_t i = 0; i < n; ++i) {
    const BlockId block = at(num_blocks_).next;
    remove_from_queue(block);
    map_.prefetch_entry(block);
    at(block).references = 1;
    blocks.push_back(block);
  }
  const auto taken = std::span(blocks).subspan(first);
  for (const BlockId block : taken) map_.prefetch_slot_of(block);
  for (const BlockId block : taken) {
    drop_content(block);
    if (metrics_ != nullptr) metrics_->on_taken(block);
  }
}

void BlockPool::touch(BlockId block) {
  if (block == kNullBlock) return;
  if (at(block).references == 0) remove_from_queue(block);
  ++at(block).references;
  if (metrics_ != nullptr) metrics_->on_hit(block);
}

void BlockPool::free(std::span<const BlockId> blocks) {
  without_content_.clear();
  const BlockId end = num_blocks_;
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    CHECK(at(block).references > 0, block);
    if (--at(block).references > 0) continue;
    if (map_.has_entry(block))
      insert_before(end, block);
    else
      without_content_.push_back(block);
  }
  const BlockId head = at(end).next;
  // If the queue was empty, its head is the block just appended: inserting before it is correct,
  // too.
  for (const BlockId block : without_content_) insert_before(head, block);
}

void BlockPool::drop_content(BlockId block) {
  if (metrics_ != nullptr) metrics_->on_evicted(block);
  map_.erase(block, [this](const BlockKey& key) {
    if (record_events_) record(BlockRemoved{key.hash, key.group});
  });
}

bool BlockPool::reset() {
  if (num_free_ != num_blocks_ - 1) return false;
  map_.clear();
  if (metrics_ != nullptr) metrics_->clear();
  if (record_events_) record(AllBlocksCleared{});
  return true;
}

std::vector<BlockId> BlockPool::free_queue() const {
  std::vector<BlockId> queue;
  for (BlockId block = at(num_blocks_).next; block != num_blocks_; block = at(block).next)
    queue.push_back(block);
  return queue;
}

}  // namespace troupe
