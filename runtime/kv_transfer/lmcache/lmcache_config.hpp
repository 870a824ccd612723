#pragma once
// LMCache's configuration of an engine's connector.

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/chunk_hash.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"
#include "runtime/kv_transfer/lmcache/tier_index.hpp"

namespace troupe::lmcache {

/// Of LMCache's controller, which sees what an engine has.
struct ControllerOptions {
  bool is_enabled = false;
  std::string instance_id;
  std::string pull_url;   ///< "host:port", for reports
  std::string reply_url;  ///< the same, for requests
  /// Where each of the workers takes orders.
  std::vector<std::int32_t> worker_ports;
  std::vector<std::int32_t> worker_ids;  ///< ranks that register; empty: all
  std::chrono::seconds heartbeat_delay{10};
  std::optional<std::chrono::seconds> heartbeat_time;  ///< none: no heartbeats
  std::chrono::milliseconds timeout{30'000};           ///< of its answers
  std::chrono::seconds pin_time{300};                  ///< of chunks that it pins
  /// Chunks are moved out of and into this engine's remote_url, which is lm:// or lms:// and has
  /// the same address for all (enable_p2p).
  bool moves_chunks = false;
  std::string store_url;  ///< that one; empty: nothing is moved
};

struct LMCacheConfig {
  std::int32_t chunk_size = 256;  ///< tokens
  bool local_cpu = true;
  double max_local_cpu_size = 5;        ///< GiB of each rank
  std::vector<std::string> local_disk;  ///< folders; a rank has one of them
  double max_local_disk_size = 0;       ///< GiB of each rank
  RemoteOptions remote;                 ///< an empty URL: none
  CachePolicy cache_policy = CachePolicy::kLru;
  /// LMCache's default is builtin, whose hashes differ between processes without PYTHONHASHSEED.
  ChunkHashAlgorithm hash_algorithm = ChunkHashAlgorithm::kSha256Cbor;
  PythonInt none_hash;
  bool save_decode_cache = false;
  bool save_unfull_chunk = false;
  /// Layers are copied while others are computed, and loaded so where there is no remote store.
  bool use_layerwise = false;
  std::int32_t min_retrieve_tokens = 0;
  std::optional<std::int32_t> priority_limit;
  std::int32_t lookup_timeout_ms = 3000;
  bool force_skip_save = false;
  std::int32_t skip_last_n_tokens = 0;
  ControllerOptions controller;
  /// Of the sockets that lookup clients ask; none: there are none.
  std::optional<std::int32_t> rpc_port;
  std::string rpc_folder;      ///< where these sockets are
  bool async_lookups = false;  ///< the clients do not wait for answers (enable_async_loading)
};

/// From the file that LMCACHE_CONFIG_FILE names (YAML), then variables LMCACHE_<KEY>, then entries
/// "lmcache.<key>" of kv_connector_extra_config, a JSON object: later ones win. `environment`: as
/// environ has it. Errors name the key, its value and where it stands: it is unknown, its value is
/// not possible, or what it asks for is not offered.
[[nodiscard]] Result<LMCacheConfig> read_lmcache_config(std::span<const std::string> environment,
                                                        const std::string& extra_config);

}  // namespace troupe::lmcache
