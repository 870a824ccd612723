// ECTieredConnector: outputs in the memory of this process, and all of them in files behind it.

#include "runtime/base/json.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/ec_transfer/connectors.hpp"

namespace troupe {
namespace {

/// What only the files have is fetched into the memory while steps go on, and loaded from there.
class TieredStore final : public OutputStore {
 public:
  TieredStore(std::shared_ptr<OutputStore> memory, std::shared_ptr<OutputStore> files)
      : memory_(std::move(memory)), files_(std::move(files)) {}

  bool has(const std::string& identifier) override {
    return memory_->has(identifier) || files_->has(identifier);
  }
  Result<StoredOutput> load(const std::string& identifier, const OutputShape& shape) override {
    auto kept = memory_->load(identifier, shape);
    return kept.ok() ? kept : files_->load(identifier, shape);
  }
  Result<void> save(const std::string& identifier, const OutputShape& shape,
                    std::span<const float> values) override {
    keep(identifier, shape, values);
    return files_->save(identifier, shape, values);
  }
  bool needs_fetch() const noexcept override { return true; }
  Result<void> fetch(const std::string& identifier, const OutputShape& shape) override {
    if (memory_->load(identifier, shape).ok()) return {};
    ASSIGN_OR_RETURN(const StoredOutput stored, files_->load(identifier, shape));
    keep(identifier, shape, stored.values);
    return {};
  }

 private:
  /// What is larger than the memory's limit is in the files alone.
  void keep(const std::string& identifier, const OutputShape& shape,
            std::span<const float> values) {
    static_cast<void>(memory_->save(identifier, shape, values));
  }

  std::shared_ptr<OutputStore> memory_;
  std::shared_ptr<OutputStore> files_;
};

}  // namespace

Result<std::shared_ptr<OutputStore>> open_tiered_store(const ECConnectorContext& context) {
  ConnectorExtraConfig extra(ConnectorKind::kEC, context.config);
  ASSIGN_OR_RETURN(const std::string pool, extra.take_text("pool", "default"));
  ASSIGN_OR_RETURN(const std::string folder, extra.take_text("shared_storage_path", "/tmp"));
  RETURN_IF_ERROR(extra.take_seconds(kLookupTimeoutKey, 0));
  RETURN_IF_ERROR(extra.check_empty());
  const auto tier = [&context](const char* key, const std::string& value) {
    ECConnectorContext own = context;
    own.config.extra_config = nlohmann::json{{key, value}}.dump();
    return own;
  };
  ASSIGN_OR_RETURN(std::shared_ptr<OutputStore> memory, open_memory_store(tier("pool", pool)));
  ASSIGN_OR_RETURN(std::shared_ptr<OutputStore> files,
                   open_file_store(tier("shared_storage_path", folder)));
  return std::shared_ptr<OutputStore>(
      std::make_shared<TieredStore>(std::move(memory), std::move(files)));
}

}  // namespace troupe
