// A shared object with an EC connector, as an application may bring one.

#include "runtime/ec_transfer/factory.hpp"

namespace troupe {
namespace {

/// Has what its extra configuration says.
class Remembering final : public ECConnector {
 public:
  explicit Remembering(std::string extra) : extra_(std::move(extra)) {}
  std::optional<bool> has_cache_item(const MultiModalFeature& item, double) override {
    return item.identifier == extra_;
  }
  void update_state_after_alloc(const RequestState&, const MultiModalFeature&) override {}
  std::string build_connector_meta(const SchedulerOutput&) override { return {}; }
  void update_connector_output(const ECConnectorOutput&) override {}
  void release(const std::string&) override {}

 private:
  std::string extra_;
};

constexpr ECConnectorKind kKinds[] = {
    {.name = "Remembering",
     .create = [](const ECConnectorContext& context) -> Result<std::shared_ptr<ECConnector>> {
       return std::shared_ptr<ECConnector>(
           std::make_shared<Remembering>(context.config.extra_config));
     },
     .create_worker = [](const ECConnectorContext&) -> Result<std::unique_ptr<ECConnectorWorker>> {
       return Error{ErrorCode::kUnsupported, "it has no workers"};
     }}};

}  // namespace
}  // namespace troupe

extern "C" const troupe::ECConnectorModule troupe_ec_connectors = {
    .interface = troupe::kECConnectorInterface, .kinds = troupe::kKinds, .num_kinds = 1};
