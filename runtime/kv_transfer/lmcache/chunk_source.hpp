#pragma once
// Where an engine's chunks are copied from into the stores of other engines.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>

#include "runtime/kv_transfer/lmcache/remote_store.hpp"
#include "runtime/kv_transfer/lmcache/tier_index.hpp"

namespace troupe::lmcache {

struct ChunkSource {
  RemoteOptions store;          ///< lm:// or lms://: it has what the engine has
  std::size_t chunk_bytes = 0;  ///< of a full chunk, on one rank
  std::function<std::string(const ChunkId&, std::int32_t rank)> key_of;
};

/// Copies the values of these keys to the store at target_url, as far as the source has them, from
/// the first one on. The token of the source's options is sent to lms:// only, where the
/// certificate says who gets it. Returns how many of the keys, from the first one on, the target
/// then has. Errors: kUnsupported, target_url is neither lm:// nor lms://; those of both stores;
/// kUnavailable: it was stopped.
[[nodiscard]] Result<std::size_t> copy_chunks(const ChunkSource& source,
                                              const std::string& target_url,
                                              std::span<const std::string> keys,
                                              const std::stop_token& stop);

}  // namespace troupe::lmcache
