// A shared object with a KV connector whose loads fail.

#include <cstring>
#include <unordered_set>
#include <utility>

#include "runtime/kv_transfer/factory.hpp"

namespace troupe {
namespace {

/// Claims to have every prompt, once.
class FailingConnector final : public KVConnector {
 public:
  std::optional<Match> get_num_new_matched_tokens(const RequestState& request,
                                                  std::int32_t num_local_tokens) override {
    if (tried_.contains(request.id)) return Match{};
    return Match{.num_tokens = request.num_tokens() - 1 - num_local_tokens, .async = true};
  }
  void update_state_after_alloc(const RequestState& request, const BlockTable&,
                                std::int32_t num_external_tokens) override {
    if (num_external_tokens > 0 && tried_.insert(request.id).second) loads_.push_back(request.id);
  }
  Finished request_finished(const RequestState& request, const BlockTable&) override {
    tried_.erase(request.id);
    return {};
  }
  std::string build_connector_metadata(const SchedulerOutput&) override {
    std::string text(loads_.size() * sizeof(RequestId), '\0');
    if (!loads_.empty()) std::memcpy(text.data(), loads_.data(), text.size());
    loads_.clear();
    return text;
  }

 private:
  std::unordered_set<RequestId> tried_;
  std::vector<RequestId> loads_;
};

class FailingConnectorWorker final : public KVConnectorWorker {
 public:
  Result<void> register_kv_caches(const KVCacheMemory&) override { return {}; }
  void start_load_kv(const std::string& metadata) override {
    loads_.resize(metadata.size() / sizeof(RequestId));
    std::memcpy(loads_.data(), metadata.data(), metadata.size());
  }
  void wait_for_save() override {}
  KVConnectorOutput get_finished() override {
    KVConnectorOutput output;
    output.finished_recving = output.failed_recving = std::exchange(loads_, {});
    return output;
  }

 private:
  std::vector<RequestId> loads_;
};

const KVConnectorKind kKinds[] = {
    {"FailingConnector",
     [](const KVConnectorContext&) -> Result<std::shared_ptr<KVConnector>> {
       return std::shared_ptr<KVConnector>(std::make_shared<FailingConnector>());
     },
     [](const KVConnectorWorkerContext&) -> Result<std::unique_ptr<KVConnectorWorker>> {
       return std::unique_ptr<KVConnectorWorker>(std::make_unique<FailingConnectorWorker>());
     }}};

}  // namespace
}  // namespace troupe

extern "C" const troupe::KVConnectorModule troupe_kv_connectors = {.kinds = troupe::kKinds,
                                                                   .num_kinds = 1};
