#include "runtime/kv_transfer/connectors.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/config/connector_config.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/kv_transfer/store_connector.hpp"
#include "runtime/kv_transfer/store_connector_worker.hpp"

namespace troupe {
namespace {

/// Files below the host's memory.
struct DiskTier {
  std::string folder;
  std::int64_t max_bytes = 0;
  std::string eviction_policy = "lru";
};

struct OffloadingOptions {
  std::optional<std::int64_t> num_bytes;
  std::optional<std::int64_t> num_blocks;
  std::string eviction_policy = "lru";
  std::optional<DiskTier> disk;
  bool describes_events = false;
  bool use_layerwise = false;
  std::chrono::milliseconds load_timeout{};
};

Error wrong_extra(const std::string& what) {
  return invalid_argument("kv-transfer-config: kv_connector_extra_config: " + what,
                          "kv-transfer-config");
}

Result<std::string> take_policy(ConnectorExtraConfig& extra) {
  ASSIGN_OR_RETURN(std::string policy, extra.take_text("eviction_policy", "lru"));
  const auto made = make_eviction_policy(policy);
  if (!made.ok()) return wrong_extra("eviction_policy " + made.error().message);
  return policy;
}

Result<DiskTier> read_disk_tier(const std::string& text) {
  ConnectorConfig config;
  config.extra_config = text;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  DiskTier disk;
  ASSIGN_OR_RETURN(const std::string type, extra.take_text("type", "fs"));
  if (type != "fs")
    return wrong_extra("secondary_tiers: type " + type + " is unknown, expected fs");
  ASSIGN_OR_RETURN(disk.folder, extra.take_text("root_dir", "/tmp"));
  ASSIGN_OR_RETURN(const std::optional<std::int64_t> max_bytes, extra.take_number("max_bytes", 0));
  disk.max_bytes = max_bytes.value_or(0);
  ASSIGN_OR_RETURN(disk.eviction_policy, take_policy(extra));
  RETURN_IF_ERROR(extra.check_empty());
  return disk;
}

Result<OffloadingOptions> read_offloading_options(const ConnectorConfig& config) {
  OffloadingOptions options;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(options.num_bytes, extra.take_number("cpu_bytes_to_use", 1));
  ASSIGN_OR_RETURN(options.num_blocks, extra.take_number("num_cpu_blocks", 1));
  ASSIGN_OR_RETURN(options.eviction_policy, take_policy(extra));
  ASSIGN_OR_RETURN(options.describes_events,
                   extra.take_boolean("self_describing_kv_events", false));
  ASSIGN_OR_RETURN(options.use_layerwise, extra.take_boolean("use_layerwise", false));
  ASSIGN_OR_RETURN(options.load_timeout, take_load_timeout(extra));
  ASSIGN_OR_RETURN(const std::vector<std::string> tiers, extra.take_objects("secondary_tiers"));
  if (tiers.size() > 1)
    return wrong_extra("secondary_tiers has " + std::to_string(tiers.size()) + " tiers, at most 1");
  if (!tiers.empty()) {
    ASSIGN_OR_RETURN(options.disk, read_disk_tier(tiers.front()));
  }
  RETURN_IF_ERROR(extra.check_empty());
  return options;
}

struct FileOptions {
  std::string path;
  std::int64_t max_bytes = 0;
  std::chrono::milliseconds load_timeout{};
};

Result<FileOptions> read_file_options(const ConnectorConfig& config) {
  FileOptions options;
  ConnectorExtraConfig extra(ConnectorKind::kKV, config);
  ASSIGN_OR_RETURN(options.path, extra.take_text("shared_storage_path", "/tmp"));
  ASSIGN_OR_RETURN(const std::optional<std::int64_t> max_bytes, extra.take_number("max_bytes", 0));
  options.max_bytes = max_bytes.value_or(0);
  ASSIGN_OR_RETURN(options.load_timeout, take_load_timeout(extra));
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

/// What the files of a folder hold. The ranks' files are alike: the first rank's are listed.
std::vector<StoreKey> list_stored(const KVConnectorContext& context, const std::string& path) {
  ParallelConfig first = context.parallel;
  first.rank = 0;
  return list_block_files(path + "/" + origin_folder(context.model_identity, context.cache, first));
}

Result<std::unique_ptr<BlockStore>> open_files(const KVConnectorWorkerContext& context,
                                               const KVCacheConfig& cache,
                                               const std::string& path) {
  const std::string folder =
      path + "/" + origin_folder(context.model_identity, cache, context.parallel);
  RETURN_IF_ERROR(make_store_folder(folder));
  return make_file_block_store(folder);
}

}  // namespace

Result<std::chrono::milliseconds> take_load_timeout(ConnectorExtraConfig& extra) {
  ASSIGN_OR_RETURN(const double seconds, extra.take_seconds("load_timeout_s", 10));
  if (seconds == 0) return wrong_extra("load_timeout_s must be more than 0");
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

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
  std::vector<StoreTier> tiers = {
      {.max_bytes = max_bytes, .eviction_policy = options.eviction_policy}};
  if (options.disk) {
    RETURN_IF_ERROR(check_limit(context, "secondary_tiers: max_bytes", options.disk->max_bytes));
    tiers.push_back({.medium = kDiskMedium,
                     .max_bytes = options.disk->max_bytes,
                     .eviction_policy = options.disk->eviction_policy,
                     .stored = list_stored(context, options.disk->folder)});
  }
  return StoreKVConnector::create(context, tiers, options.describes_events, options.use_layerwise);
}

Result<std::unique_ptr<KVConnectorWorker>> make_offloading_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(const OffloadingOptions options, read_offloading_options(context.config));
  const auto open =
      [context, disk = options.disk](
          const KVCacheConfig& cache) -> Result<std::vector<std::unique_ptr<BlockStore>>> {
    std::vector<std::unique_ptr<BlockStore>> tiers;
    tiers.push_back(make_memory_block_store());
    if (disk) {
      ASSIGN_OR_RETURN(auto files, open_files(context, cache, disk->folder));
      tiers.push_back(std::move(files));
    }
    return tiers;
  };
  return std::unique_ptr<KVConnectorWorker>(std::make_unique<StoreKVConnectorWorker>(
      context, open, options.load_timeout, options.use_layerwise));
}

Result<std::shared_ptr<KVConnector>> make_file_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(const FileOptions options, read_file_options(context.config));
  RETURN_IF_ERROR(StoreKVConnector::check_groups(context.cache));
  RETURN_IF_ERROR(check_limit(context, "kv_connector_extra_config: max_bytes", options.max_bytes));
  return StoreKVConnector::create(context, {{.medium = kDiskMedium,
                                             .max_bytes = options.max_bytes,
                                             .stored = list_stored(context, options.path)}});
}

Result<std::unique_ptr<KVConnectorWorker>> make_file_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(const FileOptions options, read_file_options(context.config));
  const auto open =
      [context, path = options.path](
          const KVCacheConfig& cache) -> Result<std::vector<std::unique_ptr<BlockStore>>> {
    ASSIGN_OR_RETURN(auto files, open_files(context, cache, path));
    std::vector<std::unique_ptr<BlockStore>> tiers;
    tiers.push_back(std::move(files));
    return tiers;
  };
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<StoreKVConnectorWorker>(context, open, options.load_timeout));
}

}  // namespace troupe
