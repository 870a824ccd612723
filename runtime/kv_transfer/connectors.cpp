#include "runtime/kv_transfer/connectors.hpp"

#include <algorithm>
#include <filesystem>

#include "runtime/config/connector_config.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/kv_transfer/store_connector.hpp"
#include "runtime/kv_transfer/store_connector_worker.hpp"

namespace troupe {
namespace {

struct OffloadingOptions {
  std::optional<std::int64_t> num_bytes;
  std::optional<std::int64_t> num_blocks;
};

Result<OffloadingOptions> read_offloading_options(const ConnectorConfig& config) {
  OffloadingOptions options;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(options.num_bytes, extra.take_number("cpu_bytes_to_use", 1));
  ASSIGN_OR_RETURN(options.num_blocks, extra.take_number("num_cpu_blocks", 1));
  RETURN_IF_ERROR(extra.check_empty());
  return options;
}

struct ExampleOptions {
  std::string path;
  std::int64_t max_bytes = 0;
};

Result<ExampleOptions> read_example_options(const ConnectorConfig& config) {
  ExampleOptions options;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(options.path, extra.take_text("shared_storage_path", "/tmp"));
  ASSIGN_OR_RETURN(const std::optional<std::int64_t> max_bytes, extra.take_number("max_bytes", 0));
  options.max_bytes = max_bytes.value_or(0);
  RETURN_IF_ERROR(extra.check_empty());
  return options;
}

/// Errors: kInvalidArgument, there is no room for one block of each group.
Result<void> check_limit(const KVConnectorContext& context, const std::string& key,
                         std::int64_t max_bytes) {
  std::int64_t needed = 0;
  for (std::size_t g = 0; g < context.cache.groups.size(); ++g)
    needed += StoreKVConnector::stored_bytes(context, g);
  if (max_bytes == 0 || max_bytes >= needed) return {};
  return invalid_argument("kv-transfer-config: " + key + " is " + std::to_string(max_bytes) +
                              ", a block of each group takes " + std::to_string(needed) + " bytes",
                          "kv-transfer-config");
}

}  // namespace

Result<std::shared_ptr<KVConnector>> make_offloading_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(const OffloadingOptions options, read_offloading_options(context.config));
  RETURN_IF_ERROR(StoreKVConnector::check_groups(context.cache));
  std::int64_t max_bytes = options.num_bytes.value_or(context.config.buffer_size);
  if (!options.num_bytes && options.num_blocks) {
    std::int64_t largest = 0;
    for (std::size_t g = 0; g < context.cache.groups.size(); ++g)
      largest = std::max(largest, StoreKVConnector::stored_bytes(context, g));
    max_bytes = *options.num_blocks * largest;
  }
  RETURN_IF_ERROR(check_limit(
      context, options.num_bytes ? "kv_connector_extra_config: cpu_bytes_to_use" : "the limit",
      max_bytes));
  return std::shared_ptr<KVConnector>(std::make_shared<StoreKVConnector>(context, max_bytes));
}

Result<std::unique_ptr<KVConnectorWorker>> make_offloading_connector_worker(
    const KVConnectorWorkerContext& context) {
  RETURN_IF_ERROR(read_offloading_options(context.config));
  const auto open = [](const KVCacheConfig&) -> Result<std::unique_ptr<BlockStore>> {
    return make_memory_block_store();
  };
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<StoreKVConnectorWorker>(context, open));
}

Result<std::shared_ptr<KVConnector>> make_example_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(const ExampleOptions options, read_example_options(context.config));
  RETURN_IF_ERROR(StoreKVConnector::check_groups(context.cache));
  RETURN_IF_ERROR(check_limit(context, "kv_connector_extra_config: max_bytes", options.max_bytes));
  ParallelConfig first = context.parallel;
  first.rank = 0;
  const std::string folder =
      options.path + "/" + origin_folder(context.model_identity, context.cache, first);
  return std::shared_ptr<KVConnector>(
      std::make_shared<StoreKVConnector>(context, options.max_bytes, list_block_files(folder)));
}

Result<std::unique_ptr<KVConnectorWorker>> make_example_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(const ExampleOptions options, read_example_options(context.config));
  const auto open = [context,
                     options](const KVCacheConfig& cache) -> Result<std::unique_ptr<BlockStore>> {
    const std::string folder =
        options.path + "/" + origin_folder(context.model_identity, cache, context.parallel);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      return Error{ErrorCode::kIo,
                   "kv-transfer-config: cannot make the folder " + folder + ": " + error.message(),
                   "kv-transfer-config"};
    return make_file_block_store(folder);
  };
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<StoreKVConnectorWorker>(context, open));
}

}  // namespace troupe
