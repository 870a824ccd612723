#pragma once
// The connectors of this program.

#include <memory>

#include "runtime/kv_transfer/factory.hpp"

namespace troupe {

/// OffloadingConnector: blocks are kept in the memory of the workers' hosts, at most
/// cpu_bytes_to_use bytes of all ranks together, or num_cpu_blocks blocks; kv_buffer_size bytes
/// without either. What was used last stays.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_offloading_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_offloading_connector_worker(
    const KVConnectorWorkerContext& context);

/// ExampleConnector: blocks are kept as files of shared_storage_path ("/tmp"), in a folder for each
/// model and layout of its cache, and outlive the engine. At most max_bytes bytes of all ranks
/// together; 0, which is the default, is no limit. A file that another engine has written counts
/// from the next start on.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_example_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_example_connector_worker(
    const KVConnectorWorkerContext& context);

}  // namespace troupe
