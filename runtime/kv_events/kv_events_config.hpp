#pragma once
// --kv-events-config: vLLM's keys and defaults.

#include <cstdint>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe {

struct KVEventsConfig {
  bool enable_kv_cache_events = false;
  std::string publisher = "zmq";          ///< or "null": events are recorded and dropped
  std::string endpoint = "tcp://*:5557";  ///< of the PUB socket
  std::string replay_endpoint;            ///< of the ROUTER socket; empty: none
  std::int64_t buffer_steps = 10'000;     ///< batches kept for replay
  /// High-water mark: queued messages per subscriber before messages are dropped.
  std::int64_t hwm = 100'000;
  std::int64_t max_queue_size = 100'000;  ///< batches waiting to be published
  std::string topic;
  /// Hashes as 64-bit integers; vLLM's VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES.
  bool use_int_block_hashes = true;

  /// Whether events are published.
  [[nodiscard]] bool publishes() const noexcept {
    return enable_kv_cache_events && publisher == "zmq";
  }
};

/// From a JSON object; empty text: the defaults. Errors: kInvalidArgument naming the key.
[[nodiscard]] Result<KVEventsConfig> parse_kv_events_config(const std::string& json);

/// The endpoint of one data-parallel rank: tcp adds the rank to the port (0 stays 0), inproc adds
/// `_dp<rank>`, and rank 0 is the endpoint itself. Errors: any other transport, no port.
[[nodiscard]] Result<std::string> offset_endpoint(const std::string& endpoint,
                                                  std::int32_t data_parallel_rank);

/// Whether a PUB socket binds this endpoint; otherwise it connects.
[[nodiscard]] bool is_bound_endpoint(const std::string& endpoint);

}  // namespace troupe
