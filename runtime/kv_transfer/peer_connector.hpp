#pragma once
// PeerConnector: KV is loaded from another engine (disaggregated prefill).

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/peer_loader.hpp"
#include "runtime/kv_transfer/peer_server.hpp"

namespace troupe {

/// The Scheduler's side. A request with do_remote_decode leaves its blocks behind when it ends; the
/// parameters that it returns are those with which a request of another engine (do_remote_prefill)
/// loads them, as vLLM's proxies pass them on. Once: if the load fails, or the parameters are not
/// of this connector, the prompt is computed.
///
/// The workers know of such a prompt from its first step on, so that its blocks can be read as soon
/// as they are computed, whatever step comes next. With begin_early besides, the parameters of a
/// prompt of several steps are there when the first one is planned: its blocks are read while the
/// others are computed.
class PeerKVConnector final : public KVConnector {
 public:
  explicit PeerKVConnector(const KVConnectorContext& context);

  void on_new_request(const KVCacheRequest& request) override;
  void set_endpoints(std::span<const std::pair<std::int32_t, std::string>> endpoints) override;
  void on_transfer_params(const RequestState& request) override;
  [[nodiscard]] std::optional<Match> get_num_new_matched_tokens(
      const RequestState& request, std::int32_t num_local_tokens) override;
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override;
  [[nodiscard]] std::int32_t num_tokens_to_keep(const RequestState& request) const override;
  [[nodiscard]] Finished request_finished(const RequestState& request,
                                          const BlockTable& blocks) override;
  [[nodiscard]] Medium medium(const RequestState&) const override { return Medium::kPeer; }
  [[nodiscard]] std::string build_connector_metadata(const SchedulerOutput& step) override;
  void update_connector_output(const KVConnectorOutput& output) override;
  [[nodiscard]] std::vector<std::pair<RequestId, std::string>> take_early_params() override {
    return std::exchange(early_params_, {});
  }
  void on_failed_steps() override;
  bool reset_cache() override { return true; }  // it stores nothing

  /// About which something is known: requests, blocks that are held, loads.
  [[nodiscard]] std::size_t num_open() const noexcept {
    return requests_.size() + held_.size() + open_loads_.size();
  }

 private:
  enum class Progress : std::uint8_t { kUnused, kLoading, kDone };
  /// What a request is to load.
  struct Wanted {
    PeerSource source;
    std::int32_t num_tokens = 0;
    Progress progress = Progress::kUnused;
    std::int32_t num_matched_after = 0;
  };
  /// A prompt that others may read while it is being computed.
  struct Stream {
    enum class Progress : std::uint8_t { kPossible, kRunning, kEnded };
    Progress progress = Progress::kPossible;
    bool is_early = false;  ///< its reader is told when it begins, not when it has ended
    PeerStream next;        ///< for the step that is planned; its blocks grow until then
  };
  struct Request {
    KVCacheRequest identity;  ///< without tokens
    std::optional<Wanted> wanted;
    bool holds = false;  ///< its blocks, for another engine
    std::optional<Stream> stream;
  };

  [[nodiscard]] Result<Wanted> read_source(const RequestState& request) const;
  void give_up(Wanted& wanted);
  void plan_streams(const SchedulerOutput& step);
  void end_stream(Stream& stream);
  [[nodiscard]] std::string make_key(RequestId id) const;
  [[nodiscard]] bool knows_endpoints() const {
    return std::cmp_greater_equal(endpoints_.size(), parallel_.world_size());
  }
  /// What another engine needs to load a prefix.
  [[nodiscard]] std::string params_for(const std::string& key, std::int32_t num_tokens,
                                       const BlockTable& blocks) const;

  ConnectorConfig config_;
  ParallelConfig parallel_;
  std::size_t num_groups_;
  std::map<std::int32_t, std::string> endpoints_;  // by rank; those that are known
  std::string engine_id_;
  std::unordered_map<RequestId, Request> requests_;
  std::unordered_map<RequestId, PeerHold> held_;
  std::uint64_t last_load_ = 0;
  std::map<std::uint64_t, PeerLoad> open_loads_;  // not yet reported
  bool sends_again_ = false;
  std::vector<std::pair<RequestId, std::string>> early_params_;
  PeerOps next_;  // for the step that is planned
};

/// A worker's side.
class PeerKVConnectorWorker final : public KVConnectorWorker {
 public:
  PeerKVConnectorWorker(KVConnectorWorkerContext context, std::unique_ptr<PeerServer> server,
                        PeerReader reader);

  Result<void> register_kv_caches(const KVCacheMemory& memory) override;
  void start_step() override { server_->begin_step(); }
  void start_load_kv(const std::string& metadata) override;
  [[nodiscard]] bool has_layer_hooks() const noexcept override { return true; }
  void save_kv_layer(std::int32_t layer) override;
  void wait_for_save() override;
  [[nodiscard]] KVConnectorOutput get_finished() override;

 private:
  [[nodiscard]] PeerLoader& loader_of(const PeerSource& source);

  KVConnectorWorkerContext context_;
  std::unique_ptr<PeerServer> server_;
  PeerReader reader_;
  PeerPages pages_;
  Device* device_ = nullptr;                                    // of the pages
  std::map<std::string, std::unique_ptr<PeerLoader>> loaders_;  // by the engine's endpoints
  std::unordered_set<std::uint64_t> loads_;  // numbers of those that came and may come again
  bool reports_endpoint_ = false;            // in this step
};

/// What is common to a prefix on both sides: tokens, images, adapter, salt.
[[nodiscard]] PrefixDigest prefix_digest(const KVCacheRequest& identity,
                                         std::span<const TokenId> tokens);

}  // namespace troupe
