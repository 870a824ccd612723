#pragma once
// The Scheduler's side of LMCacheConnectorV1.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/cache/block_hash.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/lmcache/chunk_board.hpp"
#include "runtime/kv_transfer/lmcache/controller_link.hpp"
#include "runtime/kv_transfer/lmcache/lmcache_config.hpp"
#include "runtime/kv_transfer/lmcache/lookup_server.hpp"
#include "runtime/kv_transfer/lmcache/remote_threads.hpp"
#include "runtime/kv_transfer/lmcache/tier_index.hpp"
#include "runtime/kv_transfer/lmcache_ops.hpp"
#include "runtime/scheduler/kv_connector.hpp"

namespace troupe {

/// Who asks from outside what an engine has; null: nobody. The board is first, as the others use
/// it.
struct LMCacheWatchers {
  std::unique_ptr<lmcache::ChunkBoard> board;
  std::unique_ptr<lmcache::ControllerLink> controller;
  std::unique_ptr<lmcache::LookupServer> lookups;
};

/// Chunks of a prompt are stored in the memory and on the disks of the workers' hosts and in a
/// remote store, written to all at once and read as one prefix, each chunk from the first that has
/// it. This side tracks the contents of the first two, whose saves and evictions it decides; the
/// remote store is queried by a separate thread, so that no step waits for it.
///
/// The keys are LMCache's, with the digest of the model and of the layout of its cache as the
/// model's name: engines whose bits would differ do not find each other's chunks. A chunk that is
/// lost or corrupt is computed.
class LMCacheConnector final : public KVConnector {
 public:
  /// Errors: kInvalidArgument, kUnsupported: the configuration does not fit the cache.
  [[nodiscard]] static Result<void> check(const KVConnectorContext& context,
                                          const lmcache::LMCacheConfig& config);
  /// Pre: check(). `lookup` may be null: there is no remote store. `stored`: what is on disk, what
  /// was used last in the end, and its bytes on one rank.
  LMCacheConnector(const KVConnectorContext& context, lmcache::LMCacheConfig config,
                   std::unique_ptr<lmcache::RemoteLookup> lookup,
                   const std::vector<std::pair<lmcache::ChunkId, std::int64_t>>& stored,
                   LMCacheWatchers watchers);

  void on_new_request(const KVCacheRequest& request) override;
  [[nodiscard]] std::optional<Match> get_num_new_matched_tokens(
      const RequestState& request, std::int32_t num_local_tokens) override;
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override;
  [[nodiscard]] Finished request_finished(const RequestState& request,
                                          const BlockTable& blocks) override;
  [[nodiscard]] std::string build_connector_metadata(const SchedulerOutput& step) override;
  void update_connector_output(const KVConnectorOutput& output) override;
  void on_failed_steps() override;
  [[nodiscard]] bool has_layered_loads() const override;
  void set_others_load_layers(bool do_others) override;
  [[nodiscard]] Medium medium(const RequestState& request) const override;
  /// False: the remote store keeps what it has.
  bool reset_cache() override;

  [[nodiscard]] const lmcache::TierIndex& cpu() const noexcept { return cpu_; }
  [[nodiscard]] const lmcache::TierIndex& disk() const noexcept { return disk_; }
  [[nodiscard]] std::size_t num_requests() const noexcept { return requests_.size(); }

 private:
  struct Request {
    KVCacheRequest identity;            ///< without tokens
    std::vector<BlockHash> digests;     ///< of the hash units
    std::vector<std::uint64_t> hashes;  ///< of the full chunks
    std::string tags;
    bool has_params = false;  ///< the two below are read
    bool saves = true;
    std::int32_t max_load_tokens = 0;     ///< 0: no limit
    const RequestState* state = nullptr;  ///< once it has blocks
    BlockTable blocks;
    std::int32_t num_seen = 0;           ///< chunks that are saved, or are not to be
    std::int32_t num_matched_after = 0;  ///< the last match follows so many tokens
    std::int32_t lookup_end = 0;         ///< of the tokens that the last match was looked up for
    bool has_asked = false;              ///< the remote store
    Medium medium = Medium::kHost;       ///< the slowest one of the last match
    bool is_layered = false;             ///< the next load is awaited by a step, layer by layer
    bool load_failed = false;
  };
  /// Tokens [begin, end): a full chunk, or what a prompt has behind its last one.
  struct Piece {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    lmcache::ChunkId id;
  };

  [[nodiscard]] Request* find(const RequestState& request);
  void read_params(Request& known, const RequestState& request) const;
  void extend_hashes(Request& known, const RequestState& request) const;
  [[nodiscard]] lmcache::PythonInt python_int(std::uint64_t hash) const noexcept;
  [[nodiscard]] std::uint64_t hash_chunk(const Request& known, const RequestState& request,
                                         std::int32_t begin, std::int32_t end) const;
  /// The pieces of the first `end` tokens, a multiple of the alignment.
  [[nodiscard]] std::vector<Piece> pieces(const Request& known, const RequestState& request,
                                          std::int32_t end) const;
  [[nodiscard]] std::string key_of(const lmcache::ChunkId& id, std::int32_t rank) const;
  [[nodiscard]] std::int64_t num_bytes(std::int32_t num_tokens) const;
  [[nodiscard]] std::int32_t first_needed_token(std::size_t group, std::int32_t num_computed) const;
  [[nodiscard]] ChunkBlocks chunk_blocks(const Request& known, const Piece& piece,
                                         std::int32_t begin, std::int32_t num_computed) const;
  /// From all tiers.
  void forget(const lmcache::ChunkId& id);
  /// What the planned step computes may be computed from what could not be loaded.
  [[nodiscard]] bool is_doubtful() const { return others_load_layers_ || has_layered_loads(); }
  void add(lmcache::TierIndex& tier, std::uint8_t bit, const Piece& piece, std::uint8_t& tiers);
  void remove(const lmcache::ChunkId& id, std::uint8_t tiers);
  void obey_orders();
  void save_pieces(Request& known, std::int32_t num_computed, std::int32_t num_known);
  void save(Request& known, const Piece& piece, std::int32_t num_computed);

  ConnectorRole role_;
  lmcache::LMCacheConfig config_;
  KVCacheConfig cache_;
  ParallelConfig parallel_;
  std::string model_;  // in keys
  std::string dtype_;
  BlockHasher hasher_;
  lmcache::ChunkHasher chunk_hasher_;
  std::int32_t alignment_;
  lmcache::TierIndex cpu_;
  lmcache::TierIndex disk_;
  lmcache::TierIndex remote_;  // what was put there lately; each counts as one byte
  /// What is put there counts as being there. Not after a load has failed, as the store may not be
  /// reached or may refuse what is put: then it is asked, until it has something.
  bool trusts_remote_ = true;
  bool has_windows_;  // of some layers
  bool is_layered_;   // where a load allows it
  bool others_load_layers_ = false;
  /// Chunks that steps save whose layered loads may fail: they may be computed from those.
  std::vector<lmcache::ChunkId> doubtful_saves_;
  std::unique_ptr<lmcache::RemoteLookup> lookup_;
  LMCacheWatchers watchers_;
  std::vector<lmcache::ChunkBoard::Order> pins_;  // that have not ended
  std::unordered_map<RequestId, Request> requests_;
  std::uint64_t last_load_ = 0;
  std::map<std::uint64_t, ChunkLoad> open_loads_;  // not yet reported
  bool sends_loads_again_ = false;
  LMCacheOps next_;  // for the step that is planned
};

/// The model's name in the keys of its chunks.
[[nodiscard]] std::string lmcache_model_name(const std::string& model_identity,
                                             const KVCacheConfig& cache,
                                             const ParallelConfig& parallel);
/// The name of the cache's type in keys.
[[nodiscard]] std::string lmcache_dtype(const KVCacheConfig& cache);

/// The most that a rank stores of a chunk.
[[nodiscard]] std::size_t lmcache_chunk_bytes(const KVCacheConfig& cache, std::int32_t chunk_size);

/// LMCacheConnectorV1: see LMCacheConfig for what configures it.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_lmcache_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_lmcache_connector_worker(
    const KVConnectorWorkerContext& context);

}  // namespace troupe
