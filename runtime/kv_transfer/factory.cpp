#include "runtime/kv_transfer/factory.hpp"

#include <array>

#include "runtime/kv_transfer/blend_connector.hpp"
#include "runtime/kv_transfer/connectors.hpp"
#include "runtime/kv_transfer/lmcache_connector.hpp"
#include "runtime/kv_transfer/multi_connector.hpp"

namespace troupe {
namespace {

constexpr std::array kKinds = {
    KVConnectorKind{"OffloadingConnector", make_offloading_connector,
                    make_offloading_connector_worker, /*forgets=*/true},
    KVConnectorKind{"PeerConnector", make_peer_connector, make_peer_connector_worker},
    KVConnectorKind{"FileConnector", make_file_connector, make_file_connector_worker,
                    /*forgets=*/true},
    KVConnectorKind{"ExampleConnector", make_example_connector, make_example_connector_worker},
    KVConnectorKind{"SharedStorageConnector", make_example_connector,
                    make_example_connector_worker},
    KVConnectorKind{"LMCacheConnectorV1", make_lmcache_connector, make_lmcache_connector_worker,
                    /*forgets=*/true},
    KVConnectorKind{kMultiConnector, make_multi_connector, make_multi_connector_worker},
    KVConnectorKind{kBlendConnector, make_blend_connector, make_blend_connector_worker},
    KVConnectorKind{"DecodeBenchConnector", make_decode_bench_connector,
                    make_decode_bench_connector_worker},
};

}  // namespace

std::span<const KVConnectorKind> kv_connector_kinds() noexcept { return kKinds; }

Result<const KVConnectorKind*> find_kv_connector(const ConnectorConfig& config) {
  return find_connector<KVConnectorModule>(config, kKinds, "kv", kKVConnectorModule);
}

}  // namespace troupe
