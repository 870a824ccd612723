#pragma once
// KV connectors by name: those of this program, and those of shared objects.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/connector_module.hpp"
#include "runtime/kv_transfer/kv_connector_worker.hpp"
#include "runtime/scheduler/kv_connector.hpp"

namespace troupe {

class Credentials;

/// What a connector's worker side is made for. Its cache comes with register_kv_caches.
struct KVConnectorWorkerContext {
  ConnectorConfig config;
  std::string model_identity;  ///< see model_identity()
  ParallelConfig parallel;     ///< the rank's
  std::string host;            ///< where other hosts reach this one; empty: there are none
  std::shared_ptr<const Credentials> credentials;  ///< of connections with them
};
/// What the Scheduler's side is made for.
struct KVConnectorContext {
  ConnectorConfig config;
  std::string model_identity;
  ParallelConfig parallel;
  KVCacheConfig cache;
  KVCacheSettings settings;  ///< of the KVCacheManager: how blocks are hashed
  /// The tokens of a text, without those that stand around a prompt. Errors: the tokenizer's.
  std::function<Result<std::vector<TokenId>>(const std::string&)> encode = nullptr;
  /// It is one of a MultiConnector's, and another one, which does not forget (KVConnectorKind),
  /// stores what steps compute from its loads.
  bool among_others = false;
  std::int32_t group = 0;       ///< of the groups of ranks that share the configuration
  std::int32_t num_groups = 1;  ///< data_parallel_size
};

/// A connector's two sides. Errors: kInvalidArgument naming the key of kv_connector_extra_config,
/// kUnsupported naming what kind of layers cannot be transferred, kIo.
struct KVConnectorKind {
  const char* name = nullptr;
  Result<std::shared_ptr<KVConnector>> (*create)(const KVConnectorContext& context) = nullptr;
  Result<std::unique_ptr<KVConnectorWorker>> (*create_worker)(
      const KVConnectorWorkerContext& context) = nullptr;
  /// It forgets what it has stored of steps whose loads fail: KVConnector::set_others_load_layers.
  bool forgets = false;
};

/// Of the interfaces KVConnector, KVConnectorWorker and of what they use: changes with them.
inline constexpr std::uint32_t kKVConnectorInterface = 8;

/// What a shared object exports under the name kKVConnectorModule, as a constant:
///
///   extern "C" const troupe::KVConnectorModule troupe_kv_connectors = {...};
///
/// It is built with the compiler and the options of this program, and links what it uses of its
/// libraries.
using KVConnectorModule = ConnectorModule<KVConnectorKind, kKVConnectorInterface>;
inline constexpr const char* kKVConnectorModule = "troupe_kv_connectors";

/// Those of this program.
[[nodiscard]] std::span<const KVConnectorKind> kv_connector_kinds() noexcept;

/// find_connector among them.
[[nodiscard]] Result<const KVConnectorKind*> find_kv_connector(const ConnectorConfig& config);

}  // namespace troupe
