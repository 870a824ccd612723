#include "runtime/base/check.hpp"
#include "runtime/kv_transfer/kv_connector_worker.hpp"

namespace troupe {
namespace {

template <class T>
void append_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

class ConnectorExtension final : public StepExtension {
 public:
  explicit ConnectorExtension(std::unique_ptr<KVConnectorWorker> connector)
      : connector_(std::move(connector)) {
    CHECK(connector_ != nullptr);
  }

  Result<void> register_kv_caches(const KVCacheMemory& memory) override {
    return connector_->register_kv_caches(memory);
  }
  Result<void> before_forward(const SchedulerOutput& step) override {
    connector_->start_step();
    if (!step.kv_connector_metadata.empty()) connector_->start_load_kv(step.kv_connector_metadata);
    return {};
  }
  void before_layer(std::int32_t layer) override { connector_->wait_for_layer_load(layer); }
  void after_layer(std::int32_t layer) override { connector_->save_kv_layer(layer); }
  Result<void> after_forward() override { return {}; }
  /// By now a draft model has computed its layers as well.
  void report(ModelRunnerOutput& output) override {
    connector_->wait_for_save();
    const KVConnectorOutput finished = connector_->get_finished();
    append_all(output.kv_connector.finished_sending, finished.finished_sending);
    append_all(output.kv_connector.finished_recving, finished.finished_recving);
    append_all(output.kv_connector.failed_recving, finished.failed_recving);
    append_all(output.kv_connector.invalid_block_ids, finished.invalid_block_ids);
    append_all(output.kv_connector.endpoints, finished.endpoints);
  }
  bool has_layer_hooks() const noexcept override { return connector_->has_layer_hooks(); }
  KvBlend* kv_blend() noexcept override { return connector_->kv_blend(); }

 private:
  std::unique_ptr<KVConnectorWorker> connector_;
};

}  // namespace

std::unique_ptr<StepExtension> make_connector_extension(
    std::unique_ptr<KVConnectorWorker> connector) {
  return std::make_unique<ConnectorExtension>(std::move(connector));
}

}  // namespace troupe
