#pragma once
// The Scheduler's side of a KV connector whose blocks lie in a store of each rank.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/cache/block_hash.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/kv_transfer/block_index.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/store_ops.hpp"
#include "runtime/scheduler/kv_connector.hpp"

namespace troupe {

/// vLLM's names of where blocks are.
inline constexpr const char* kHostMedium = "CPU";
inline constexpr const char* kDiskMedium = "STORAGE";

struct StoreTier {
  const char* medium = kHostMedium;  ///< as KV events name it
  std::int64_t max_bytes = 0;        ///< of all ranks together; 0: no limit
  std::string eviction_policy = "lru";
  std::vector<StoreKey> stored = {};  ///< what it holds, what was used last in the end
};

/// Knows what the stores hold. Every block that a step completes is saved, in all groups, and what
/// is over the limit is removed. A waiting request gets the blocks that follow its local hit,
/// loaded while others compute. The ranks' stores do what the metadata say, in the order of the
/// steps, so that a block which is there for a load stays until it has been read.
///
/// The store may have several tiers (host memory, disk): blocks are saved in all of them, each with
/// a limit of its own, loaded from the first one that has them, and copied to it then.
///
/// A store may lose what it was given, or have something else in its place: then the load fails,
/// the index forgets the blocks, and the request computes them; it is given no others.
class StoreKVConnector final : public KVConnector {
 public:
  /// `describes_events`: events have tokens and parents, as those of the cache itself. `layered`: a
  /// request is computed while it is loaded, layer by layer. Errors:
  /// kInvalidArgument, an unknown policy.
  [[nodiscard]] static Result<std::shared_ptr<KVConnector>> create(
      const KVConnectorContext& context, const std::vector<StoreTier>& tiers,
      bool describes_events = false, bool layered = false);

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
  bool reset_cache() override;
  Result<void> start_move(const MoveCache& what) override;
  [[nodiscard]] bool is_moving() const override { return move_.has_value(); }
  [[nodiscard]] CacheMoved take_moved() override { return std::exchange(moved_, {}); }
  [[nodiscard]] Medium medium(const RequestState& request) const override;
  [[nodiscard]] std::vector<KVCacheEvent> take_events() override {
    return std::exchange(events_, {});
  }

  [[nodiscard]] const BlockIndex& index(std::size_t tier = 0) const noexcept {
    return tiers_[tier].index;
  }
  /// About which something is known.
  [[nodiscard]] std::size_t num_requests() const noexcept { return requests_.size(); }

  /// Bytes of a block of that group in the stores of all ranks.
  [[nodiscard]] static std::int64_t stored_bytes(const KVConnectorContext& context,
                                                 std::size_t group);
  /// Errors: kUnsupported, the kind of a group's layers.
  [[nodiscard]] static Result<void> check_groups(const KVCacheConfig& cache);

 private:
  struct Request {
    KVCacheRequest identity;  ///< without tokens
    std::vector<BlockHash> hashes;
    const RequestState* state = nullptr;  ///< once it has blocks
    BlockTable blocks;
    std::vector<std::int32_t> num_seen;  ///< per group: blocks that are saved, or cannot be
    std::int32_t num_matched_after = 0;  ///< the last match follows so many tokens
    std::int32_t num_matched = 0;        ///< tokens of that match
    bool load_failed = false;
  };
  struct Tier {
    const char* medium;
    BlockIndex index;
  };
  /// Of what a step computes.
  struct Progress {
    std::int32_t num_computed = 0;  ///< before it
    std::int32_t num_known = 0;     ///< after it, as far as the tokens are known
  };

  /// Of blocks to files of a folder, or back.
  struct Move {
    MoveCache what;
    std::vector<StoreKey> keys;
    std::size_t num_sent = 0;  ///< to the workers
    RequestId id{};            ///< of the load that is reported when all is done
    bool is_last_sent = false;
    CacheMoved result;
  };
  void advance_move();

  /// Other engines find what it stores.
  [[nodiscard]] bool is_persistent() const;
  [[nodiscard]] Request* find(const RequestState& request);
  void extend_hashes(Request& known, const RequestState& request) const;
  [[nodiscard]] StoreKey key_of(const Request& request, std::size_t group,
                                std::int32_t block) const;
  [[nodiscard]] std::int32_t block_size(std::size_t group) const;
  /// A request of num_computed tokens needs no block that ends before this one.
  [[nodiscard]] std::int32_t first_needed_token(std::size_t group, std::int32_t num_computed) const;
  [[nodiscard]] bool has_all(const Request& request, std::size_t group, std::int32_t begin_token,
                             std::int32_t end_token) const;
  void save_blocks(Request& request, const Progress& progress);
  /// False: the tier has no room for it.
  bool add(const StoreKey& key, std::size_t tier);
  void remove(const StoreKey& key, std::size_t tier);
  /// From all tiers.
  void forget(const StoreKey& key);
  void record_stored(const Request& request, const StoreKey& key, std::int32_t block,
                     const char* medium);
  [[nodiscard]] bool has(const StoreKey& key) const;

  StoreKVConnector(const KVConnectorContext& context, std::vector<Tier> tiers,
                   bool describes_events);

  ConnectorRole role_;
  std::string origin_folder_;  // of the first rank
  KVCacheConfig cache_;
  BlockHasher hasher_;
  std::int32_t alignment_;
  std::vector<std::int64_t> stored_bytes_;  // per group
  std::vector<Tier> tiers_;
  bool describes_events_;
  bool is_layered_ = false;
  bool others_load_layers_ = false;
  /// Blocks that steps save whose layered loads may fail: they may be computed from those.
  std::vector<StoreKey> doubtful_saves_;
  std::vector<KVCacheEvent> events_;
  std::unordered_map<RequestId, Request> requests_;
  std::uint64_t last_load_ = 0;
  std::map<std::uint64_t, BlockLoad> open_loads_;  // not yet reported
  bool sends_loads_again_ = false;
  StoreOps next_;  // for the step that is planned
  std::optional<Move> move_;
  CacheMoved moved_;
};

}  // namespace troupe
