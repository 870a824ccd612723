#pragma once
// Hashes of KV-cache blocks: over everything that determines a block's content, chained over the
// previous blocks. Byte for byte equal to vLLM's, for events, remote stores and routers.

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/kv_events.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// The hash of the prefix of num_tokens, a multiple of the hash unit: that of its last unit. A
/// block of several units has the hash of the prefix that it completes.
[[nodiscard]] inline const BlockHash& hash_of_prefix(std::span<const BlockHash> hashes,
                                                     std::int32_t num_tokens, std::int32_t unit) {
  return hashes[static_cast<std::size_t>(num_tokens / unit) - 1];
}

enum class BlockHashAlgorithm : std::uint8_t { kSha256Cbor, kXxhashCbor, kSha256, kXxhash };
/// "sha256", "sha256_cbor", "xxhash", "xxhash_cbor".
[[nodiscard]] Result<BlockHashAlgorithm> parse_block_hash_algorithm(std::string_view name);

/// SHA-256 of the prompt's embedding rows [begin, end), as far as they exist. Pre: some do.
[[nodiscard]] BlockHash embeds_digest(const KVCacheRequest& request, std::int32_t begin,
                                      std::int32_t end);

/// Hashes units of `unit` tokens. Immutable after construction.
class BlockHasher {
 public:
  static constexpr std::string_view kDefaultSeed = "vllm-none-hash";

  /// `seed` determines the parent of every first unit.
  BlockHasher(BlockHashAlgorithm algorithm, std::int32_t unit,
              std::string_view seed = kDefaultSeed);

  /// Appends to `hashes` those of all further full units of request.token_ids: H(parent, tokens of
  /// the unit, extra keys).
  void extend(const KVCacheRequest& request, std::vector<BlockHash>& hashes) const;

  [[nodiscard]] const BlockHash& none_hash() const noexcept { return none_hash_; }
  [[nodiscard]] std::int32_t unit() const noexcept { return unit_; }
  [[nodiscard]] std::size_t hash_size() const noexcept { return hash_size_; }

 private:
  [[nodiscard]] BlockHash digest(std::span<const std::uint8_t> bytes) const;

  BlockHashAlgorithm algorithm_;
  std::int32_t unit_;
  std::size_t hash_size_;
  BlockHash none_hash_;
};

}  // namespace troupe
