// ECNetworkConnector: outputs in the memory of the topology's encoders, which send them over the
// network that connects the nodes.

#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"
#include "runtime/ec_transfer/remote_outputs.hpp"

namespace troupe {
namespace {

/// What this process has, and behind it what the encoders have. What is fetched from them is kept
/// here, and loaded from here.
class NetworkStore final : public OutputStore {
 public:
  NetworkStore(std::shared_ptr<OutputStore> local, std::shared_ptr<RemoteOutputs> remote,
               std::string encoder_key)
      : local_(std::move(local)),
        remote_(std::move(remote)),
        encoder_key_(std::move(encoder_key)) {}

  bool has(const std::string& identifier) override {
    return local_->has(identifier) ||
           (remote_ != nullptr && remote_->has(encoder_key_, identifier));
  }
  Result<StoredOutput> load(const std::string& identifier, const OutputShape& shape) override {
    return local_->load(identifier, shape);
  }
  Result<void> save(const std::string& identifier, const OutputShape& shape,
                    std::span<const float> values) override {
    return local_->save(identifier, shape, values);
  }
  /// An encoder's own: without requests to others.
  bool is_immediate() const noexcept override { return remote_ == nullptr; }
  bool needs_fetch() const noexcept override { return remote_ != nullptr; }
  Result<void> fetch(const std::string& identifier, const OutputShape& shape) override {
    if (remote_ == nullptr || local_->has(identifier)) return {};
    ASSIGN_OR_RETURN(const StoredOutput fetched, remote_->load(encoder_key_, identifier, shape));
    return local_->save(identifier, shape, fetched.values);
  }

 private:
  std::shared_ptr<OutputStore> local_;
  std::shared_ptr<RemoteOutputs> remote_;  ///< null: there are no others
  std::string encoder_key_;
};

}  // namespace

Result<std::shared_ptr<OutputStore>> open_network_store(const ECConnectorContext& context) {
  ASSIGN_OR_RETURN(std::shared_ptr<OutputStore> local, open_memory_store(context));
  return std::shared_ptr<OutputStore>(
      std::make_shared<NetworkStore>(std::move(local), context.remote, context.encoder_key));
}

}  // namespace troupe
