#include "runtime/kv_transfer/lmcache/chunk_board.hpp"

#include <algorithm>

namespace troupe::lmcache {
namespace {

/// Of an engine that plans no steps: further chunks are not pinned.
constexpr std::size_t kMaxOrders = 1000;

ChunkId untagged(PythonInt key) { return {key.negative ? 0 - key.magnitude : key.magnitude, {}}; }

}  // namespace

std::optional<Location> parse_location(std::string_view name) {
  const auto found = std::ranges::find(kLocationNames, name);
  if (found == kLocationNames.end()) return std::nullopt;
  return static_cast<Location>(found - kLocationNames.begin());
}

PythonInt ChunkBoard::key_of(const ChunkId& id) const noexcept {
  return signed_hashes_ ? PythonInt::of(static_cast<std::int64_t>(id.hash))
                        : PythonInt{id.hash, false};
}

/// Pre: mutex_ is held.
void ChunkBoard::note(Location location, const ChunkId& id, bool is_there) {
  if (!id.tags.empty() || !listener_) return;
  changes_.push_back({location, is_there, key_of(id)});
  if (changes_.size() == 1) listener_();
}

void ChunkBoard::admit(Location location, const ChunkId& id) {
  const std::lock_guard lock(mutex_);
  if (held(location).try_emplace(id).second) note(location, id, true);
}

void ChunkBoard::evict(Location location, const ChunkId& id) {
  const std::lock_guard lock(mutex_);
  if (held(location).erase(id) > 0) note(location, id, false);
}

void ChunkBoard::forget_all() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < held_.size(); ++i)
    for (const auto& [id, until] : std::exchange(held_[i], {}))
      note(static_cast<Location>(i), id, false);
  orders_.clear();
}

std::vector<ChunkBoard::Order> ChunkBoard::take_orders() {
  const std::lock_guard lock(mutex_);
  return std::exchange(orders_, {});
}

void ChunkBoard::set_listener(std::function<void()> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  changes_.clear();
}

std::vector<ChunkBoard::Change> ChunkBoard::take_changes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(changes_, {});
}

std::vector<ChunkBoard::Change> ChunkBoard::snapshot() {
  const std::lock_guard lock(mutex_);
  changes_.clear();
  std::vector<Change> all;
  for (std::size_t i = 0; i < held_.size(); ++i)
    for (const auto& [id, until] : held_[i])
      if (id.tags.empty()) all.push_back({static_cast<Location>(i), true, key_of(id)});
  return all;
}

std::vector<PythonInt> ChunkBoard::keys(Location location) {
  const std::lock_guard lock(mutex_);
  std::vector<PythonInt> keys;
  for (const auto& [id, until] : held(location))
    if (id.tags.empty()) keys.push_back(key_of(id));
  return keys;
}

std::int64_t ChunkBoard::pin(Location location, std::span<const std::int64_t> tokens,
                             Clock::time_point until) {
  const std::vector<Chunk> chunks = hasher_.chunks(tokens, /*partial=*/false);
  const std::lock_guard lock(mutex_);
  if (orders_.size() >= kMaxOrders) return 0;
  Order order{.location = location, .until = until};
  for (const Chunk& chunk : chunks) {
    const auto found = held(location).find(untagged(chunk.hash));
    if (found == held(location).end()) break;
    found->second = std::max(found->second, until);
    order.chunks.push_back(found->first);
  }
  const std::size_t count = order.chunks.size();
  if (count > 0) orders_.push_back(std::move(order));
  return static_cast<std::int64_t>(count * hasher_.chunk_size());
}

std::vector<ChunkId> ChunkBoard::leading(Location location, std::span<const std::int64_t> tokens) {
  const std::vector<Chunk> chunks = hasher_.chunks(tokens, /*partial=*/false);
  const std::lock_guard lock(mutex_);
  std::vector<ChunkId> found;
  for (const Chunk& chunk : chunks) {
    if (!held(location).contains(untagged(chunk.hash))) break;
    found.push_back(untagged(chunk.hash));
  }
  return found;
}

void ChunkBoard::remove(Location location, std::span<const ChunkId> chunks, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (orders_.size() >= kMaxOrders) return;
  Order order{.kind = Order::Kind::kRemove, .location = location, .chunks = {}, .until = {}};
  for (const ChunkId& chunk : chunks) {
    const auto found = held(location).find(chunk);
    if (found == held(location).end() || found->second > now) continue;
    order.chunks.push_back(chunk);
    note(location, chunk, false);
    held(location).erase(found);
  }
  if (!order.chunks.empty()) orders_.push_back(std::move(order));
}

std::int64_t ChunkBoard::clear(Location location, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (auto chunk = held(location).begin(); chunk != held(location).end();) {
    if (chunk->second > now) {
      ++chunk;
      continue;
    }
    note(location, chunk->first, false);
    chunk = held(location).erase(chunk);
    ++count;
  }
  const bool is_ordered = !orders_.empty() && orders_.back().kind == Order::Kind::kClear &&
                          orders_.back().location == location;
  if (!is_ordered) orders_.push_back({.kind = Order::Kind::kClear, .location = location});
  return static_cast<std::int64_t>(count * hasher_.chunk_size());
}

std::size_t ChunkBoard::count_leading(std::span<const PythonInt> keys) {
  const std::lock_guard lock(mutex_);
  const auto missing = std::ranges::find_if(keys, [this](PythonInt key) {
    return std::ranges::none_of(held_,
                                [&](const Held& held) { return held.contains(untagged(key)); });
  });
  return static_cast<std::size_t>(missing - keys.begin());
}

}  // namespace troupe::lmcache
