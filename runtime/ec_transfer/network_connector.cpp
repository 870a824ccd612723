// ECNetworkConnector: outputs in the memory of the topology's encoders, which send them over the
// network that connects the nodes.

#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"
#include "runtime/ec_transfer/remote_outputs.hpp"

namespace troupe {
namespace {

/// What this process has, and behind it what the encoders have. What has been fetched is kept here
/// as well.
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
    auto here = local_->load(identifier, shape);
    if (here.ok() || remote_ == nullptr) return here;
    ASSIGN_OR_RETURN(StoredOutput fetched, remote_->load(encoder_key_, identifier, shape));
    static_cast<void>(local_->save(identifier, shape, fetched.values));  // else it is fetched again
    return fetched;
  }
  Result<void> save(const std::string& identifier, const OutputShape& shape,
                    std::span<const float> values) override {
    return local_->save(identifier, shape, values);
  }
  /// An encoder's own: without requests to others.
  bool is_immediate() const noexcept override { return remote_ == nullptr; }

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
