#pragma once
// The connectors of this program.

#include <chrono>
#include <memory>

#include "runtime/kv_transfer/factory.hpp"

namespace troupe {

/// load_timeout_s of a connector: a load that takes longer counts as a miss.
[[nodiscard]] Result<std::chrono::milliseconds> take_load_timeout(ConnectorExtraConfig& extra);

/// OffloadingConnector: blocks are kept in the memory of the workers' hosts, at most
/// cpu_bytes_to_use bytes of all ranks together, or num_cpu_blocks blocks; kv_buffer_size bytes
/// without either. eviction_policy ("lru", "arc") says what goes first. secondary_tiers may have
/// one tier [{"type": "fs", "root_dir": FOLDER, "max_bytes": N, "eviction_policy": ...}]: files as
/// the FileConnector has them, in which blocks are kept as well. With self_describing_kv_events
/// the events of blocks stored here have tokens and parents. With use_layerwise a layer's blocks
/// are copied while the next layers are computed, and a request is computed while it is loaded,
/// where no other connector stores what is computed from it without being able to forget it
/// (KVConnectorKind::forgets); a step then waits for its blocks. A load that
/// takes longer than load_timeout_s (10) counts as a miss.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_offloading_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_offloading_connector_worker(
    const KVConnectorWorkerContext& context);

/// PeerConnector: the KV of a prompt is loaded from another engine, which kv_transfer_params names,
/// or held for another one (disaggregated prefill). lease_s (30): for so long blocks are held
/// without a sign of a reader; timeout_s (5): of a connection, and of each answer; host: where
/// other hosts reach the workers, by default this host alone does; port: of rank 0, the others'
/// follow, 0: any.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_peer_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_peer_connector_worker(
    const KVConnectorWorkerContext& context);

/// FileConnector: blocks are kept as files of shared_storage_path ("/tmp"), in a folder for each
/// model and layout of its cache, and outlive the engine. At most max_bytes bytes of all ranks
/// together; 0, which is the default, is no limit. A file that another engine has written counts
/// from the next start on. load_timeout_s: as above.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_file_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_file_connector_worker(
    const KVConnectorWorkerContext& context);

/// ExampleConnector, or SharedStorageConnector: whole prompts as files of shared_storage_path
/// ("/tmp"), in the format of vLLM's connector of that name: what its GPU backends write is read,
/// and what is written here they read. (Its CPU backend keeps numbers in an order of its own.) A
/// file of another model of the same shape is told by what this program writes into it; vLLM writes
/// nothing of the kind. For layers with full attention, of one rank or of stages, without
/// cache_salt and adapters. layer_names ("model.layers.{}.self_attn.attn"): of the files.
/// load_timeout_s: as above.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_example_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_example_connector_worker(
    const KVConnectorWorkerContext& context);

/// MultiConnector: several of these, the objects of kv_connector_extra_config's connectors, each as
/// kv-transfer-config has it. All of them save; a request's blocks are loaded from the first one
/// that has some.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_multi_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_multi_connector_worker(
    const KVConnectorWorkerContext& context);

/// DecodeBenchConnector: claims to have all tokens of a prompt but the last one, and fills their
/// blocks with numbers around fill_mean (0.015), as far from it as fill_std (0) says. To measure
/// decoding without prefill; the output is noise.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_decode_bench_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_decode_bench_connector_worker(
    const KVConnectorWorkerContext& context);

}  // namespace troupe
