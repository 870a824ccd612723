#pragma once
// What another server's prefix cache holds, from its KV events: prompts to warm a cache with.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// The result of the events so far, of Troupe's and vLLM's publishers. Blocks of adapters, tenants
/// (cache_salt) and media are left out, since their tokens do not say what they hold; so are groups
/// with sliding windows, and what lies outside the device.
class CachedPrompts {
 public:
  /// A message's payload: [time, [event, ...], data parallel rank] in msgpack. Errors: kCorrupt.
  Result<void> apply(std::string_view payload);

  /// The tokens of the prefixes that no other block continues, at most so many, what was stored
  /// last first.
  [[nodiscard]] std::vector<std::vector<TokenId>> prompts(std::size_t max_prompts) const;

 private:
  struct Block {
    std::string parent;  ///< empty: none
    std::vector<TokenId> token_ids;
    std::uint64_t order = 0;
    std::int32_t num_holders = 0;
  };
  struct Event;
  void store(const Event& event);

  std::unordered_map<std::string, Block> blocks_;  // by hash, as it is encoded
  std::set<std::int64_t> windowed_groups_;
  std::uint64_t next_order_ = 0;
};

struct KVEventsSource {
  std::string replay_endpoint;
  std::string topic;  ///< other topics are skipped; empty: all count
  std::chrono::milliseconds timeout{10'000};
};
/// Asks a publisher for its cache: for a snapshot, or, if it has none, for the batches that it
/// keeps. Blocks until it has answered. Errors: kInvalidArgument, the endpoint; kTimeout, kCorrupt,
/// kTooLarge, kUnavailable.
[[nodiscard]] Result<CachedPrompts> read_cached_prompts(const KVEventsSource& source);

}  // namespace troupe
