#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "messages/wire.hpp"
#include "runtime/base/check.hpp"
#include "runtime/kv_transfer/blend_config.hpp"
#include "runtime/kv_transfer/connectors.hpp"
#include "runtime/kv_transfer/metadata_text.hpp"
#include "runtime/kv_transfer/multi_connector.hpp"

namespace troupe {

/// The metadata of a step: of each connector, and how many of them hold the blocks of a request
/// that has ended, if more than one does.
struct MultiMetadata {
  std::vector<std::string> parts;
  std::vector<std::pair<RequestId, std::int32_t>> num_holders;
};
TROUPE_MESSAGE(MultiMetadata, parts, num_holders)

Result<std::vector<ConnectorConfig>> read_connectors(const ConnectorConfig& config) {
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, extra.take_objects("connectors"));
  RETURN_IF_ERROR(extra.check_empty());
  if (texts.empty())
    return invalid_argument(
        "kv-transfer-config: kv_connector_extra_config: connectors is missing, expected an array "
        "of "
        "objects",
        "kv-transfer-config");
  std::vector<ConnectorConfig> connectors;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(ConnectorConfig one, parse_connector_config(ConnectorKind::kKV, text));
    if (one.engine_id.empty()) one.engine_id = config.engine_id;
    connectors.push_back(std::move(one));
  }
  const auto num_blending =
      std::ranges::count(connectors, kBlendConnector, &ConnectorConfig::connector);
  if (num_blending > 1)
    return invalid_argument("kv-transfer-config: kv_connector_extra_config: connectors has " +
                                std::to_string(num_blending) + " BlendConnectors, at most 1",
                            "kv-transfer-config");
  return connectors;
}

namespace {

void append_results(KVConnectorOutput& to, const KVConnectorOutput& from) {
  const auto append = [](auto& all, const auto& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  append(to.finished_sending, from.finished_sending);
  append(to.finished_recving, from.finished_recving);
  append(to.failed_recving, from.failed_recving);
  append(to.invalid_block_ids, from.invalid_block_ids);
  append(to.endpoints, from.endpoints);
}

/// A request that is blended belongs to the BlendConnector alone: what the others kept of it would
/// not be exact.
class MultiKVConnector final : public KVConnector {
 public:
  /// `blending`: the BlendConnector, or null.
  MultiKVConnector(std::vector<std::shared_ptr<KVConnector>> connectors, KVConnector* blending)
      : connectors_(std::move(connectors)), blending_(blending) {}

  Result<void> check_transfer_params(const std::string& params) const override {
    for (const auto& connector : connectors_)
      RETURN_IF_ERROR(connector->check_transfer_params(params));
    return {};
  }

  void on_new_request(const KVCacheRequest& request) override {
    for (const auto& connector : connectors_) connector->on_new_request(request);
  }
  void set_endpoints(std::span<const std::pair<std::int32_t, std::string>> endpoints) override {
    for (const auto& connector : connectors_) connector->set_endpoints(endpoints);
  }
  void on_transfer_params(const RequestState& request) override {
    for (const auto& connector : connectors_) connector->on_transfer_params(request);
  }
  std::optional<Match> get_num_new_matched_tokens(const RequestState& request,
                                                  std::int32_t num_local_tokens) override {
    chosen_.erase(request.id);
    Match best;
    for (std::size_t i = 0; i < connectors_.size(); ++i) {
      const auto match = connectors_[i]->get_num_new_matched_tokens(request, num_local_tokens);
      if (!match) return std::nullopt;
      // The Scheduler takes it where nothing can be loaded.
      best.num_blended = std::max(best.num_blended, match->num_blended);
      if (best.num_tokens > 0 || match->num_tokens == 0) continue;
      best.num_tokens = match->num_tokens;
      best.async = match->async;
      chosen_[request.id] = i;
    }
    return best;
  }
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override {
    if (request.is_blended && blended_.insert(request.id).second) {
      for (const auto& connector : connectors_)
        if (connector.get() != blending_)
          static_cast<void>(connector->request_finished(request, blocks));
    }
    if (blended_.contains(request.id))
      return blending_->update_state_after_alloc(request, blocks, num_external_tokens);
    const auto chosen = chosen_.find(request.id);
    for (std::size_t i = 0; i < connectors_.size(); ++i) {
      const bool loads = chosen != chosen_.end() && chosen->second == i;
      connectors_[i]->update_state_after_alloc(request, blocks, loads ? num_external_tokens : 0);
    }
  }
  std::int32_t num_tokens_to_keep(const RequestState& request) const override {
    std::int32_t fewest = request.num_computed_tokens;
    for (const auto& connector : connectors_)
      fewest = std::min(fewest, connector->num_tokens_to_keep(request));
    return fewest;
  }
  Finished request_finished(const RequestState& request, const BlockTable& blocks) override {
    chosen_.erase(request.id);
    if (blended_.erase(request.id) > 0) return blending_->request_finished(request, blocks);
    Finished finished;
    std::int32_t num_holders = 0;
    for (const auto& connector : connectors_) {
      Finished one = connector->request_finished(request, blocks);
      num_holders += one.delay_free;
      if (finished.kv_transfer_params.empty())
        finished.kv_transfer_params = std::move(one.kv_transfer_params);
    }
    finished.delay_free = num_holders > 0;
    if (num_holders > 1) num_holders_.emplace(request.id, num_holders);
    return finished;
  }
  Medium medium(const RequestState& request) const override {
    const auto chosen = chosen_.find(request.id);
    return chosen == chosen_.end() ? Medium::kHost : connectors_[chosen->second]->medium(request);
  }
  std::vector<KVCacheEvent> take_events() override {
    std::vector<KVCacheEvent> events;
    for (const auto& connector : connectors_)
      for (KVCacheEvent& event : connector->take_events()) events.push_back(std::move(event));
    return events;
  }
  std::string build_connector_metadata(const SchedulerOutput& step) override {
    MultiMetadata metadata;
    compare_loads();
    for (const auto& connector : connectors_)
      metadata.parts.push_back(connector->build_connector_metadata(step));
    metadata.num_holders.assign(num_holders_.begin(), num_holders_.end());
    const auto is_empty = [](const std::string& part) { return part.empty(); };
    if (std::ranges::all_of(metadata.parts, is_empty)) return {};
    return metadata_text(metadata);
  }
  void update_connector_output(const KVConnectorOutput& output) override {
    for (const RequestId id : output.finished_sending) num_holders_.erase(id);
    for (const auto& connector : connectors_) connector->update_connector_output(output);
    compare_loads();
  }
  std::vector<std::pair<RequestId, std::string>> take_early_params() override {
    std::vector<std::pair<RequestId, std::string>> params;
    for (const auto& connector : connectors_)
      for (auto& one : connector->take_early_params()) params.push_back(std::move(one));
    return params;
  }
  void on_failed_steps() override {
    for (const auto& connector : connectors_) connector->on_failed_steps();
  }
  bool has_pending_block_frees() const override {
    return std::ranges::any_of(
        connectors_, [](const auto& connector) { return connector->has_pending_block_frees(); });
  }
  /// Exports from the first one that can, imports into all that can.
  Result<void> start_move(const MoveCache& what) override {
    std::optional<Error> error;
    moving_.clear();
    for (const auto& connector : connectors_) {
      auto started = connector->start_move(what);
      if (started.ok()) {
        moving_.push_back(connector.get());
        if (!what.is_import) break;
      } else if (!error || error->code == ErrorCode::kUnsupported) {
        error = std::move(started).error();
      }
    }
    if (!moving_.empty()) return {};
    return *error;
  }
  bool is_moving() const override {
    return std::ranges::any_of(moving_, [](const auto* each) { return each->is_moving(); });
  }
  CacheMoved take_moved() override {
    CacheMoved all;
    for (KVConnector* const connector : std::exchange(moving_, {})) {
      CacheMoved moved = connector->take_moved();
      all.num_blocks = std::max(all.num_blocks, moved.num_blocks);
      if (!all.error) all.error = std::move(moved.error);
    }
    return all;
  }
  bool reset_cache() override {
    bool all = true;
    for (const auto& connector : connectors_) all &= connector->reset_cache();
    return all;
  }

 private:
  /// Each gets to know whether others load layer by layer.
  void compare_loads() {
    const auto count = [](const auto& connector) { return connector->has_layered_loads(); };
    const auto num_loading = std::ranges::count_if(connectors_, count);
    for (const auto& connector : connectors_)
      connector->set_others_load_layers(num_loading > (connector->has_layered_loads() ? 1 : 0));
  }

  std::vector<std::shared_ptr<KVConnector>> connectors_;
  KVConnector* blending_;  // one of them, or null
  std::unordered_set<RequestId> blended_;
  std::unordered_map<RequestId, std::size_t> chosen_;  // who loads for a request
  std::vector<KVConnector*> moving_;                   // what start_move has started
  std::map<RequestId, std::int32_t> num_holders_;      // of requests that have ended, from two on
};

class MultiKVConnectorWorker final : public KVConnectorWorker {
 public:
  explicit MultiKVConnectorWorker(std::vector<std::unique_ptr<KVConnectorWorker>> connectors)
      : connectors_(std::move(connectors)) {}

  Result<void> register_kv_caches(const KVCacheMemory& memory) override {
    num_missing_.clear();
    for (const auto& connector : connectors_)
      RETURN_IF_ERROR(connector->register_kv_caches(memory));
    return {};
  }
  void start_step() override {
    for (const auto& connector : connectors_) connector->start_step();
  }
  [[nodiscard]] KvBlend* kv_blend() noexcept override {
    for (const auto& connector : connectors_)
      if (KvBlend* const blend = connector->kv_blend()) return blend;
    return nullptr;
  }
  void start_load_kv(const std::string& text) override {
    MultiMetadata metadata;
    CHECK(wire::decode(text.data(), text.size(), metadata) &&
              metadata.parts.size() == connectors_.size(),
          text.size());
    for (const auto& [id, count] : metadata.num_holders) num_missing_.try_emplace(id, count);
    for (std::size_t i = 0; i < connectors_.size(); ++i)
      if (!metadata.parts[i].empty()) connectors_[i]->start_load_kv(metadata.parts[i]);
  }
  bool has_layer_hooks() const noexcept override {
    return std::ranges::any_of(connectors_,
                               [](const auto& connector) { return connector->has_layer_hooks(); });
  }
  void wait_for_layer_load(std::int32_t layer) override {
    for (const auto& connector : connectors_) connector->wait_for_layer_load(layer);
  }
  void save_kv_layer(std::int32_t layer) override {
    for (const auto& connector : connectors_) connector->save_kv_layer(layer);
  }
  void wait_for_save() override {
    for (const auto& connector : connectors_) connector->wait_for_save();
  }
  /// Blocks that several of them hold are free when the last one has done with them.
  KVConnectorOutput get_finished() override {
    KVConnectorOutput output;
    for (const auto& connector : connectors_) append_results(output, connector->get_finished());
    std::erase_if(output.finished_sending, [this](RequestId id) {
      const auto missing = num_missing_.find(id);
      if (missing == num_missing_.end()) return false;
      if (--missing->second > 0) return true;
      num_missing_.erase(missing);
      return false;
    });
    return output;
  }

 private:
  std::vector<std::unique_ptr<KVConnectorWorker>> connectors_;
  std::map<RequestId, std::int32_t> num_missing_;  // holders that have not done yet
};

}  // namespace

Result<std::shared_ptr<KVConnector>> make_multi_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(const std::vector<ConnectorConfig> configs, read_connectors(context.config));
  std::vector<std::shared_ptr<KVConnector>> connectors;
  KVConnector* blending = nullptr;
  std::vector<const KVConnectorKind*> kinds;
  for (const ConnectorConfig& config : configs) {
    ASSIGN_OR_RETURN(const KVConnectorKind* const kind, find_kv_connector(config));
    kinds.push_back(kind);
  }
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const ConnectorConfig& config = configs[i];
    const KVConnectorKind* const kind = kinds[i];
    KVConnectorContext own = context;
    own.config = config;
    for (std::size_t other = 0; other < kinds.size(); ++other)
      own.among_others |= other != i && !kinds[other]->forgets;
    ASSIGN_OR_RETURN(auto connector, kind->create(own));
    if (config.connector == kBlendConnector) blending = connector.get();
    connectors.push_back(std::move(connector));
  }
  return std::shared_ptr<KVConnector>(
      std::make_shared<MultiKVConnector>(std::move(connectors), blending));
}

Result<std::unique_ptr<KVConnectorWorker>> make_multi_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(const std::vector<ConnectorConfig> configs, read_connectors(context.config));
  std::vector<std::unique_ptr<KVConnectorWorker>> connectors;
  for (const ConnectorConfig& config : configs) {
    ASSIGN_OR_RETURN(const KVConnectorKind* const kind, find_kv_connector(config));
    KVConnectorWorkerContext own = context;
    own.config = config;
    ASSIGN_OR_RETURN(auto connector, kind->create_worker(own));
    connectors.push_back(std::move(connector));
  }
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<MultiKVConnectorWorker>(std::move(connectors)));
}

}  // namespace troupe
