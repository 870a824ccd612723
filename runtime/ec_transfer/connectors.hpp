#pragma once
// The stores of the connectors of this program, and what makes connectors of them.

#include <memory>

#include "runtime/ec_transfer/factory.hpp"
#include "runtime/ec_transfer/output_store.hpp"

namespace troupe {

/// In the extra configuration of each of them; it is not the store's.
inline constexpr const char* kLookupTimeoutKey = "lookup_timeout_s";

/// ECExampleConnector, as vLLM's: one file per output,
/// <shared_storage_path>/<identifier>/encoder_cache.safetensors with the tensor ec_cache [num_rows,
/// hidden_size], float32; bfloat16 and float16, as vLLM's have it, is taken too. Extra
/// configuration: shared_storage_path, "/tmp". The store has no limit; what waits to be written has
/// ec_buffer_size bytes.
[[nodiscard]] Result<std::shared_ptr<OutputStore>> open_file_store(
    const ECConnectorContext& context);
/// ECMemoryConnector: the memory of this process, ec_buffer_size bytes of it; what was used last
/// stays. Extra configuration: pool, "default": engines that name the same one share it, and the
/// most that one of them allows. It ends with the last of them. A Scheduler in another process than
/// its workers finds nothing there.
[[nodiscard]] Result<std::shared_ptr<OutputStore>> open_memory_store(
    const ECConnectorContext& context);
/// ECSharedMemoryConnector: memory that the processes of this host share, as files of a memory file
/// system; ec_buffer_size bytes of it with LRU eviction. Extra configuration: pool, "default";
/// directory, "/dev/shm". Locks end with their process, and the last process frees the memory; the
/// next one frees what killed ones left.
[[nodiscard]] Result<std::shared_ptr<OutputStore>> open_shared_memory_store(
    const ECConnectorContext& context);

/// ECNetworkConnector: the memory of the topology's encoders, ec_buffer_size bytes of each, and of
/// the processes that have fetched from them: a request waits until its outputs have been fetched,
/// other requests go on meanwhile. Extra configuration: pool, "default".
[[nodiscard]] Result<std::shared_ptr<OutputStore>> open_network_store(
    const ECConnectorContext& context);

/// ECTieredConnector: the memory of ECMemoryConnector, with its limit, before the files of
/// ECExampleConnector, which have everything: an output that the memory has dropped is fetched from
/// its file while other requests go on. Extra configuration: that of both.
[[nodiscard]] Result<std::shared_ptr<OutputStore>> open_tiered_store(
    const ECConnectorContext& context);

using OpenOutputStore = Result<std::shared_ptr<OutputStore>> (*)(const ECConnectorContext&);

/// The two sides of a connector of a store. What the store takes long for is done on threads of
/// their own, lookups, fetches and saves; a lookup without an answer within lookup_timeout_s (of
/// ec_connector_extra_config; 1) counts as a miss, and so does a fetch that takes 10 s. Loads are
/// done by the step that needs them.
[[nodiscard]] Result<std::shared_ptr<ECConnector>> make_store_connector(
    OpenOutputStore open, const ECConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<ECConnectorWorker>> make_store_connector_worker(
    OpenOutputStore open, const ECConnectorContext& context);

template <OpenOutputStore kOpen>
[[nodiscard]] constexpr ECConnectorKind store_connector_kind(const char* name) noexcept {
  return {
      .name = name,
      .create =
          [](const ECConnectorContext& context) { return make_store_connector(kOpen, context); },
      .create_worker =
          [](const ECConnectorContext& context) {
            return make_store_connector_worker(kOpen, context);
          },
      .open_store = kOpen};
}

}  // namespace troupe
