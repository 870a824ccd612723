#pragma once
// The settings of an engine's actors, from the options, the model and its cache.
// Every node derives them from the same options.

#include <cstdint>
#include <string>

#include "messages/cache.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/cache/encoder_cache_manager.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/config/options.hpp"
#include "runtime/scheduler/scheduler_config.hpp"

namespace troupe {

/// How many workers share the model, and how; the Supervisor adds ranks and rendezvous.
[[nodiscard]] ParallelConfig parallel_config(const EngineOptions& engine);
[[nodiscard]] WorkerOptions worker_options(const Options& options, const ParallelConfig& parallel);

/// Whether some node of the topology has the role `encoder`.
[[nodiscard]] bool has_encoders(const Options& options);
/// The option of that name; where it is empty and there are encoders, the connector that fetches
/// their outputs over the nodes' network.
[[nodiscard]] std::string ec_transfer_config(const Options& options);
/// Checks that encoders and connector are consistent. Errors: kInvalidArgument, and
/// those of parse_connector_config and find_ec_connector.
[[nodiscard]] Result<void> check_encoders(const Options& options);

/// The model's tokens attend to the encoder's output for the request's input.
[[nodiscard]] bool is_encoder_decoder(const ModelLoaded& model);
/// Not where a block never depends on the tokens alone: no later request could use it.
[[nodiscard]] bool caches_prefixes(const EngineOptions& engine, const ModelLoaded& model);

/// The division of the workers' memory into blocks. Errors: too little for one request of
/// max_model_len.
[[nodiscard]] Result<KVCacheConfig> kv_cache_config(const Options& options,
                                                    const ModelLoaded& model);
/// The length for which the workers have loaded the model or, with max-model-len auto, as much of
/// it as fits in the cache. Errors: those of check_prompts_fit.
[[nodiscard]] Result<std::int32_t> max_model_len(const Options& options, const ModelLoaded& model,
                                                 const KVCacheConfig& cache);

[[nodiscard]] KVCacheSettings kv_cache_settings(const EngineOptions& engine,
                                                const ModelLoaded& model,
                                                const KVCacheConfig& cache);
/// Cache size and budget for at least one item; none for a text-only model.
[[nodiscard]] EncoderCacheSettings encoder_cache_settings(const EngineOptions& engine,
                                                          const ModelLoaded& model);
/// Checks that a step can hold an item that must not be split, and that the model can have the
/// configured EncoderCacheManager. Errors: kInvalidArgument.
[[nodiscard]] Result<void> check_items(const EngineOptions& engine, const ModelLoaded& model);
[[nodiscard]] SchedulerConfig scheduler_config(const EngineOptions& engine,
                                               const ModelLoaded& model,
                                               const KVCacheConfig& cache);

}  // namespace troupe
